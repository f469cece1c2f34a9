package plugin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func logAt(path string, limit int64) *logFile {
	return &logFile{path: func() string { return path }, limit: limit}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, l *logFile, line string) {
	t.Helper()
	if n, err := l.Write([]byte(line)); n != len(line) || err != nil {
		t.Errorf("wrote %d bytes of %d, %v", n, len(line), err)
	}
}

func TestLogRotatesOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cni.log")
	for _, line := range []string{"first\n", "second\n", "third\n"} {
		l := logAt(path, 3) // every line fills it
		write(t, l, line)
		l.close()
	}
	if got := read(t, path); got != "third\n" {
		t.Errorf("cni.log has %q", got)
	}
	if got := read(t, path+".1"); got != "second\n" {
		t.Errorf("cni.log.1 has %q", got)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
}

// The plugin's own log is full at 1 MiB.
func TestLogIsLimited(t *testing.T) {
	for size, full := range map[int64]bool{1<<20 - 1: false, 1 << 20: true} {
		w := newWorld(t, "ADD")
		path := w.file.path()
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, size)); err != nil {
			t.Fatal(err)
		}
		w.log.Info("line")
		w.file.close()
		if _, err := os.Stat(path + ".1"); (err == nil) != full {
			t.Errorf("at %d bytes: %v; want it full: %t", size, err, full)
		}
	}
}

// Many plugins at once tear no line, and rotate: who holds the lock may be slow, and
// the others write to the full file meanwhile, but no file holds everything.
func TestLogIsShared(t *testing.T) {
	const writers, lines, limit = 32, 20, 4 << 10
	tail := strings.Repeat("x", 40)
	path := filepath.Join(t.TempDir(), "cni.log")
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range lines {
				l := logAt(path, limit)
				write(t, l, fmt.Sprintf("writer %02d line %02d %s\n", w, i, tail))
				l.close()
			}
		})
	}
	all.Wait()
	for _, file := range []string{path, path + ".1"} {
		text := read(t, file)
		if strings.Count(text, "\n") == writers*lines {
			t.Errorf("%s holds everything", file)
		}
		for line := range strings.Lines(text) {
			if strings.Count(line, "writer") != 1 || !strings.HasPrefix(line, "writer ") || !strings.HasSuffix(line, " "+tail+"\n") {
				t.Errorf("%s: torn line %q", file, line)
			}
		}
	}
}

// full opens a log that is over its limit.
func full(t *testing.T) (path string, file *os.File, info os.FileInfo) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "cni.log")
	if err := os.WriteFile(path, []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := openAppend(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err = file.Stat(); err != nil {
		t.Fatal(err)
	}
	return path, file, info
}

func TestLogThatAnotherRotates(t *testing.T) {
	path, other, _ := full(t)
	if !lock(other) {
		t.Fatal("cannot lock the log")
	}
	l := logAt(path, 1)
	write(t, l, "line\n")
	l.close()
	if got := read(t, path); got != "old\nline\n" {
		t.Errorf("cni.log has %q", got)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestLogThatAnotherHasRotated(t *testing.T) {
	path, file, info := full(t)
	other := logAt(path, 1)
	write(t, other, "new\n")
	other.close()
	next, err := rotate(file, info, path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := next.WriteString("line\n"); err != nil {
		t.Fatal(err)
	}
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, path) + read(t, path+".1"); got != "new\nline\nold\n" {
		t.Errorf("the logs have %q", got)
	}
}

func TestLogThatCannotBe(t *testing.T) {
	dir := t.TempDir()
	blocked := filepath.Join(dir, "blocked")
	if err := os.WriteFile(blocked, []byte("full"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(blocked+".1", "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/dev/null", link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{filepath.Join(dir, "no", "cni.log"), dir, blocked, link} {
		l := logAt(path, 1)
		write(t, l, "line\n")
		write(t, l, "line\n")
		l.close()
		if l.file != nil {
			t.Errorf("%s was opened", path)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "no")); err == nil {
		t.Error("a directory was made for the log")
	}
}
