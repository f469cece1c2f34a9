package agentapi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestLock(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "agent.sock")
	path := LockFile(socket)
	first, err := Lock(socket)
	if err != nil {
		t.Fatal(err)
	}
	wantTaken(t, socket)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the file is to stay: %v", err)
	}
	second, err := Lock(socket)
	if err != nil {
		t.Fatalf("after the first is gone: %v", err)
	}
	defer second.Close()

	// The holder's word is shown only if it is a number.
	if err := os.WriteFile(path, []byte("\x1b[2J evil"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(socket); err == nil || !strings.HasPrefix(err.Error(), "another agent runs on this node") {
		t.Errorf("with garbage in the file: %v", err)
	}
}

// wantTaken checks that a second agent, which runs in this process too, is kept out.
func wantTaken(t *testing.T, socket string) {
	t.Helper()
	second, err := Lock(socket)
	if err == nil {
		t.Fatalf("a second agent is let in: %v", second.Close())
	}
	want := fmt.Sprintf("another agent (pid %d) runs on this node and holds %s", os.Getpid(), LockFile(socket))
	if !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), want) {
		t.Errorf("the second agent: %v, want %q", err, want)
	}
}

func TestALongerNumberIsReplaced(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	if err := os.WriteFile(LockFile(socket), []byte("123456789012\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lock, err := Lock(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if got, err := os.ReadFile(LockFile(socket)); err != nil || string(got) != fmt.Sprintf("%d\n", os.Getpid()) {
		t.Errorf("the file holds %q, %v", got, err)
	}
}

func TestLockNeedsAPlace(t *testing.T) {
	if _, err := Lock("/dev/null/agent.sock"); err == nil || !strings.Contains(err.Error(), "cannot lock the node for this agent") {
		t.Error(err)
	}
	socket := filepath.Join(t.TempDir(), "agent.sock")
	if err := os.Mkdir(LockFile(socket), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(socket); err == nil || errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), LockFile(socket)) {
		t.Error(err)
	}
}

// displacements are what may happen to a file of a running agent: it, or the
// directory, is not there any more for who looks.
var displacements = map[string]func(file string) error{
	"removed": os.Remove,
	"replaced": func(file string) error {
		return errors.Join(os.WriteFile(file+".new", nil, 0o600), os.Rename(file+".new", file))
	},
	"directory removed": func(file string) error { return os.RemoveAll(filepath.Dir(file)) },
	"directory moved":   func(file string) error { return os.Rename(filepath.Dir(file), filepath.Dir(file)+".old") },
	"directory replaced": func(file string) error {
		dir := filepath.Dir(file)
		return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o755))
	},
}

func TestALostLockIsTakenAgain(t *testing.T) {
	for name, displace := range displacements {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "run", "agent.sock")
			lock, err := Lock(socket)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = lock.Close() }()
			if err := displace(LockFile(socket)); err != nil {
				t.Fatal(err)
			}
			for _, want := range []bool{true, false} {
				if lost, err := lock.Keep(); lost != want || err != nil {
					t.Errorf("lost: %v, %v; want %v", lost, err, want)
				}
				wantTaken(t, socket)
			}
		})
	}
}

// Of two agents the one that has the lock has the node, until it ends.
func TestALostLockThatIsTaken(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	first, err := Lock(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	if err := os.Remove(LockFile(socket)); err != nil {
		t.Fatal(err)
	}
	second, err := Lock(socket)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := first.Keep(); !errors.Is(err, ErrTaken) {
			t.Errorf("the first agent: %v", err)
		}
		if lost, err := second.Keep(); lost || err != nil {
			t.Errorf("the second agent: lost %v, %v", lost, err)
		}
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if lost, err := first.Keep(); !lost || err != nil {
		t.Errorf("when the second has ended: lost %v, %v", lost, err)
	}
}

func TestLastSeen(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	if got := LastSeen(socket); !got.IsZero() {
		t.Errorf("an agent that never was has been seen at %v", got)
	}
	lock, err := Lock(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	want := time.Unix(1_200_000_000, 0)
	if err := os.Chtimes(LockFile(socket), want, want); err != nil {
		t.Fatal(err)
	}
	if got := LastSeen(socket); !got.Equal(want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if _, err := lock.Keep(); err != nil {
		t.Error(err)
	}
	if got := LastSeen(socket); !got.After(want) {
		t.Errorf("after a sign of life: %v", got)
	}
}
