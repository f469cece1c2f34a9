package demo

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal returns both ends of a pseudo terminal.
func terminal(t *testing.T, columns uint16) (screen *bufio.Reader, program *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: columns, Row: 25})
	}
	if err == nil {
		program, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = master.Close() // nothing is lost
		_ = program.Close()
	})
	return bufio.NewReader(master), program
}

func line(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	text, err := r.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimRight(text, "\r\n")
}

func TestTerminalHasColours(t *testing.T) {
	t.Setenv("NO_COLOR", "") //nolint:misspell // its name
	t.Setenv("TERM", "xterm")
	out, program := terminal(t, 120)
	s := newScreen(program)
	s.verdict("it runs", "well", nil)
	if got := line(t, out); !strings.HasPrefix(got, "   \x1b[32m✓\x1b[0m it runs   ") || !strings.HasSuffix(got, " \x1b[2mwell\x1b[0m") {
		t.Errorf("%q", got)
	}
	s.verdict("it runs", "", errors.New("no"))
	if got := line(t, out); !strings.HasPrefix(got, "   \x1b[31m✗\x1b[0m it runs   ") || !strings.HasSuffix(got, " \x1b[31mno\x1b[0m") {
		t.Errorf("%q", got)
	}
	// Something that takes long is shown as such, and then gone.
	done := s.progress("waiting")
	shown, err := out.ReadString('s')
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(shown, "\r   ⠋ waiting \x1b[2m0.") {
		t.Errorf("progress: %q", shown)
	}
	done()
	s.printf("end\n")
	if got := line(t, out); !strings.HasSuffix(got, "\r\x1b[Kend") {
		t.Errorf("after it: %q", got)
	}
}

func TestColoursThatAreNotWanted(t *testing.T) {
	for name, value := range map[string]string{"NO_COLOR": "1", "TERM": "dumb"} { //nolint:misspell // its name
		t.Run(name, func(t *testing.T) {
			t.Setenv("TERM", "xterm")
			t.Setenv(name, value)
			out, program := terminal(t, 120)
			newScreen(program).verdict("it runs", "well", nil)
			if got := line(t, out); strings.Contains(got, "\x1b") {
				t.Errorf("%q", got)
			}
		})
	}
}

func TestNarrowTerminal(t *testing.T) {
	out, program := terminal(t, 60)
	s := newScreen(program)
	s.colour = false
	s.step(1, "A title", "some words that do not fit on one line of a narrow terminal")
	s.verdict("it runs", "and what was seen then is rather too long for one such line", nil)
	for _, want := range []string{
		"", "1  A title",
		"   some words that do not fit on one line of a narrow",
		"   terminal",
		"   ✓ it runs",
		"       and what was seen then is rather too long for one",
		"       such line",
	} {
		if got := line(t, out); got != want {
			t.Errorf("%q\nwant %q", got, want)
		}
	}
}

func TestPipeIsPlain(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s := newScreen(w)
	s.progress("waiting")()
	s.step(1, "A title", "some words")
	s.verdict("it runs", "well", nil)
	s.verdict("it runs", "", errors.New("because of this and that, and because of something that takes more than a line to say"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(r)
	for _, want := range []string{
		"", "1  A title", "   some words",
		"   ✓ it runs                                       well",
		"   ✗ it runs                                       because of this and that, and because of",
		"                                                   something that takes more than a line to say",
	} {
		if got := line(t, out); got != want {
			t.Errorf("%q\nwant %q", got, want)
		}
	}
}

func TestWrap(t *testing.T) {
	for text, want := range map[string][]string{
		"":                          {""},
		"one":                       {"one"},
		"  one \n two  ":            {"one two"},
		"one two three":             {"one two", "three"},
		"incomprehensible as it is": {"incomprehensible", "as it is"},
		"äöüä äöü as":               {"äöüä äöü", "as"},
	} {
		if got := wrap(text, 8); !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
