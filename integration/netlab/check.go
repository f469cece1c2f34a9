package netlab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Eventually waits until check succeeds, and fails the test with check's last
// error if it has not after 10 seconds.
func Eventually(t testing.TB, check func() error) {
	t.Helper()
	if err := eventually(10*time.Second, check); err != nil {
		t.Fatalf("still not after 10 s: %v", err)
	}
}

func eventually(patience time.Duration, check func() error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		if err := check(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// CheckLeaks fails the test if after its end the process goes on holding files,
// sockets or namespaces that it did not hold when CheckLeaks was called. Call it before
// anything that cleans up after itself. A goroutine may be about to close its own.
func CheckLeaks(t testing.TB) {
	t.Helper()
	before := openFiles(t)
	t.Cleanup(func() {
		if err := eventually(time.Second, func() (err error) {
			for target, count := range openFiles(t) {
				if more := count - before[target]; more > 0 {
					err = errors.Join(err, fmt.Errorf("left open: %s (%d more than before)", target, more))
				}
			}
			return err
		}); err != nil {
			t.Errorf("%v", err)
		}
	})
}

// openFiles counts the process's open files by what they are. It leaves out what Go
// keeps for itself: the poller's files, and pipes for splicing between connections.
func openFiles(t testing.TB) map[string]int {
	t.Helper()
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]int{}
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(dir, entry.Name()))
		if err != nil || strings.HasPrefix(target, "anon_inode:[event") || strings.HasPrefix(target, "pipe:") {
			continue
		}
		files[target]++
	}
	return files
}

// Running lists the processes whose program lies in a directory, by its name.
func Running(t testing.TB, dir string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		t.Fatal(err)
	}
	var running []string
	for _, link := range links {
		if program, err := os.Readlink(link); err == nil && strings.HasPrefix(program, dir+"/") {
			running = append(running, filepath.Base(program))
		}
	}
	return running
}
