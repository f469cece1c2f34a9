package demo

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A screen prints the story: on a terminal with colours and progress, elsewhere as
// plain text.
type screen struct {
	out    io.Writer
	live   bool // progress may be shown, and taken away again
	colour bool
	width  int
}

const (
	plainWidth = 100
	titleWidth = 45
)

func newScreen(out *os.File) *screen {
	s := &screen{out: out, width: plainWidth}
	if _, err := unix.IoctlGetTermios(int(out.Fd()), unix.TCGETS); err != nil {
		return s
	}
	s.live = os.Getenv("TERM") != "dumb"
	s.colour = s.live && os.Getenv("NO_COLOR") == "" //nolint:misspell // its name, see no-color.org
	if size, err := unix.IoctlGetWinsize(int(out.Fd()), unix.TIOCGWINSZ); err == nil && size.Col >= 40 {
		s.width = min(int(size.Col), plainWidth)
	}
	return s
}

// Colours, as the terminal's own palette has them.
const (
	plain  = ""
	bold   = "1"
	dim    = "2"
	red    = "31"
	green  = "32"
	yellow = "33"
)

func (s *screen) paint(colour, text string) string {
	if !s.colour || colour == plain {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

func (s *screen) printf(format string, args ...any) {
	_, _ = fmt.Fprintf(s.out, format, args...) // nobody could be told
}

// paragraph prints text wrapped and indented, its first line after a label.
func (s *screen) paragraph(colour, label, indent, text string) {
	for i, line := range wrap(text, s.width-len([]rune(indent))) {
		if i == 0 {
			s.printf("%s%s\n", label, s.paint(colour, line))
		} else {
			s.printf("%s%s\n", indent, s.paint(colour, line))
		}
	}
}

// step begins a step of the story.
func (s *screen) step(number int, title, text string) {
	s.printf("\n%s\n", s.paint(bold, fmt.Sprintf("%d  %s", number, title)))
	s.paragraph(plain, "   ", "   ", text)
}

// verdict prints a check's outcome.
func (s *screen) verdict(title, seen string, err error) {
	mark, colour := "✓", dim
	if err != nil {
		mark, colour, seen = "✗", red, err.Error()
	}
	indent := strings.Repeat(" ", 5+titleWidth+1)
	if s.width < plainWidth {
		indent = "       "
		s.printf("   %s %s\n", s.mark(mark), title)
		s.paragraph(colour, indent, indent, seen)
		return
	}
	s.paragraph(colour, fmt.Sprintf("   %s %-*s ", s.mark(mark), titleWidth, title), indent, seen)
}

func (s *screen) mark(mark string) string {
	if mark == "✓" {
		return s.paint(green, mark)
	}
	return s.paint(red, mark)
}

// progress shows, on a terminal, that something is being waited for, until done is
// called.
func (s *screen) progress(title string) (done func()) {
	if !s.live {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		began := time.Now()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-stop:
				s.printf("\r\x1b[K")
				return
			case <-tick.C:
				frame := []rune("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏")[i%10]
				s.printf("\r   %c %s %s", frame, title, s.paint(dim, fmt.Sprintf("%.1f s", time.Since(began).Seconds())))
			}
		}
	}()
	return func() { close(stop); <-stopped }
}

// wrap breaks text into lines of at most width characters, at blanks.
func wrap(text string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len([]rune(line))+1+len([]rune(word)) <= width:
			line += " " + word
		default:
			lines = append(lines, line)
			line = word
		}
	}
	return append(lines, line)
}
