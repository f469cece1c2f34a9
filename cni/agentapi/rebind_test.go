package agentapi

import (
	"errors"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// listening is a listener in a directory that can be removed.
func listening(t *testing.T) *Listener {
	t.Helper()
	l, err := Listen(filepath.Join(t.TempDir(), "run", "agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(l.Close(), l.Close()); err != nil {
			t.Error(err)
		}
	})
	return l
}

// says connects and sends a word, which the one that accepts it knows it by.
func says(t *testing.T, path, word string) {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Write([]byte(word)); err != nil {
		t.Fatal(err)
	}
}

func accepts(t *testing.T, l *Listener) (word string) {
	t.Helper()
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	text := make([]byte, 100)
	n, err := c.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	return string(text[:n])
}

func TestRebind(t *testing.T) {
	all := maps.Clone(displacements)
	all["replaced by another listener"] = func(file string) error {
		other, err := Listen(file)
		if err != nil {
			return err
		}
		return other.Close()
	}
	for name, displace := range all {
		t.Run(name, func(t *testing.T) {
			l := listening(t)
			if !l.InPlace() {
				t.Error("it is not in its place at first")
			}
			waiting := make(chan string)
			go func() { waiting <- accepts(t, l) }()
			for range 2 {
				_ = os.RemoveAll(filepath.Dir(l.path) + ".old") // the last round's
				if err := displace(l.path); err != nil {
					t.Fatal(err)
				}
				if l.InPlace() {
					t.Error("it is in its place, though displaced")
				}
				if err := l.Rebind(); err != nil {
					t.Fatal(err)
				}
				if !l.InPlace() {
					t.Error("it is not in its place again")
				}
			}
			modes(t, map[string]fs.FileMode{filepath.Dir(l.path): fs.ModeDir | 0o700, l.path: fs.ModeSocket | 0o600})
			says(t, l.path, "hello")
			if got := <-waiting; got != "hello" {
				t.Errorf("got %q", got)
			}
		})
	}
}

// Who has connected is served, and before who comes later, whatever became of the
// socket in the meantime.
func TestRebindKeepsTheOrder(t *testing.T) {
	l := listening(t)
	var want, got []string
	for _, word := range []string{"first", "second", "third"} {
		says(t, l.path, word+", early")
		says(t, l.path, word+", late")
		want = append(want, word+", early", word+", late")
		if err := os.Remove(l.path); err != nil {
			t.Fatal(err)
		}
		if err := l.Rebind(); err != nil {
			t.Fatal(err)
		}
	}
	says(t, l.path, "last")
	want = append(want, "last")
	for range want {
		got = append(got, accepts(t, l))
	}
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Errorf("accepted %q, want %q", got, want)
	}
	if n := len(l.bound); n != 1 {
		t.Errorf("%d sockets are left open", n)
	}
}

func TestRebindThatFails(t *testing.T) {
	l := listening(t)
	dir := filepath.Dir(l.path)
	if err := errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := l.Rebind(); err == nil || !strings.Contains(err.Error(), "cannot listen on "+l.path) {
		t.Errorf("got %v", err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := l.Rebind(); err != nil {
		t.Error(err)
	}
	says(t, l.path, "hello")
	if got := accepts(t, l); got != "hello" {
		t.Errorf("got %q", got)
	}
}

func TestAClosedListenerStaysClosed(t *testing.T) {
	l := listening(t)
	if err := l.Rebind(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error)
	go func() { _, err := l.AcceptUnix(); ended <- err }()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("who waits gets %v", err)
	}
	if err := l.Rebind(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("bound again: %v", err)
	}
	if _, err := net.Dial("unix", l.path); err == nil {
		t.Error("somebody listens")
	}
}
