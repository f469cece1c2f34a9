package install

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// An owner that writes several times while we edit once: its last text stays.
func TestEditWhileTheOwnerWrites(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	const rounds, burst, ours = 1000, 4, " and ours"
	write(t, path, "0")
	for round := range rounds {
		whileWritten(t, func() (err error) {
			for n := range burst {
				err = errors.Join(err, os.WriteFile(path+".new", []byte(fmt.Sprintf("%d.%d", round, n)), 0o644), os.Rename(path+".new", path))
			}
			return err
		}, func() {
			seen, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := strings.CutSuffix(string(seen), ours)
			if err := edit(dir, "a", []byte(text+ours), seen); err != nil && !errors.Is(err, errWritten) {
				t.Fatal(err)
			}
		})
		if got, err := os.ReadFile(path); err != nil || string(got) != fmt.Sprintf("%d.%d%s", round, burst-1, ours) {
			t.Fatalf("round %d ended as %q, %v", round, got, err)
		}
	}
}

// An owner that has opened the file before we took it away writes after it.
func TestEditWhileTheOwnerHasItOpen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	write(t, path, "before")
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if err := edit(dir, "a", []byte("ours"), []byte("before")); !errors.Is(err, errWritten) {
		t.Errorf("got %v", err)
	}
	if _, err := file.WriteString("after "); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "after " {
		t.Errorf("the file holds %q, %v", got, err)
	}
}

// What the owner has written since we looked stays.
func TestEditOfAnOtherText(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "written since")
	before := tree(t, dir)
	if err := edit(dir, "a", []byte("ours"), []byte("what we saw")); !errors.Is(err, errWritten) {
		t.Errorf("got %v", err)
	}
	if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
		t.Errorf("(-before +after)\n%s", diff)
	}
}

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

// whileWritten has a step taken again and again while somebody writes, and once after that.
func whileWritten(t *testing.T, write func() error, step func()) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- write() }()
	for writing := true; writing; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			writing = false
		default:
		}
		step()
	}
}
