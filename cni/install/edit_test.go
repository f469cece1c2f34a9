package install

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// An owner that has opened the file before we took it away may write and close it at any
// moment while we look whether it does.
func TestEditWhileTheOwnerClosesIt(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	for round := range 500 {
		write(t, path, "before")
		file, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- edit(dir, "a", []byte("ours"), []byte("before")) }()
		for taken := false; !taken && len(done) == 0; {
			text, err := os.ReadFile(path)
			taken = err == nil && string(text) == "ours"
		}
		_, err = file.WriteString("after ")
		if err := errors.Join(err, file.Close()); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil && !errors.Is(err, errWritten) {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || string(got) != "after " {
			t.Fatalf("round %d: the file holds %q, %v", round, got, err)
		}
	}
}
