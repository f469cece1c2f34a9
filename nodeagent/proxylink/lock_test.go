package proxylink

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "lock")
	first, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Lock(path)
	if want := fmt.Sprintf("another agent (pid %d) runs on this node and holds %s", os.Getpid(), path); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the second one: %v, want %q", err, want)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the file is to stay: %v", err)
	}
	second, err := Lock(path)
	if err != nil {
		t.Fatalf("after the first is gone: %v", err)
	}
	defer second.Close()

	// The holder's word is shown only if it is a number.
	if err := os.WriteFile(path, []byte("\x1b[2J evil"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(path); err == nil || !strings.HasPrefix(err.Error(), "another agent runs on this node") {
		t.Errorf("with garbage in the file: %v", err)
	}
}

func TestALongerNumberIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	if err := os.WriteFile(path, []byte("123456789012\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	lock, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if got, err := os.ReadFile(path); err != nil || string(got) != fmt.Sprintf("%d\n", os.Getpid()) {
		t.Errorf("the file holds %q, %v", got, err)
	}
}

func TestLockNeedsAPlace(t *testing.T) {
	if _, err := Lock("/dev/null/lock"); err == nil || !strings.Contains(err.Error(), "cannot lock the node for this agent") {
		t.Error(err)
	}
	dir := t.TempDir()
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), dir) {
		t.Error(err)
	}
}
