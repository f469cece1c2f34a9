package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A namespace that may be used needs root; it is tested with the real runtime
// library, under integration.
func TestCheckNetnsRefuses(t *testing.T) {
	dir := t.TempDir()
	file, fifo, link := filepath.Join(dir, "file"), filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/proc/self/ns/net", link); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct{ path, says string }{
		"empty":             {"", "it is empty"},
		"missing":           {filepath.Join(dir, "missing"), "no such file"},
		"ordinary file":     {file, "it is not a namespace"},
		"directory":         {dir, "it is not a namespace"},
		"FIFO":              {fifo, "it is not a namespace"},
		"device":            {"/dev/null", "it is not a namespace"},
		"other namespace":   {"/proc/self/ns/mnt", "not a network namespace"},
		"our own":           {"/proc/self/ns/net", "is the host's own"},
		"link to our own":   {link, "is the host's own"},
		"our own, by a pid": {"/proc/thread-self/ns/net", "is the host's own"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := checkNetns(tt.path)
			if err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), tt.path) {
				t.Errorf("got %v, want %q and the path", err, tt.says)
			}
		})
	}
}

func TestCheckNetnsLeavesNothingOpen(t *testing.T) {
	count := func() int {
		t.Helper()
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := count()
	for range 3 {
		for _, path := range []string{"/proc/self/ns/net", "/proc/self/ns/mnt", "/dev/null"} {
			if checkNetns(path) == nil {
				t.Errorf("%s was accepted", path)
			}
		}
	}
	if after := count(); after != before {
		t.Errorf("%d files open before, %d after", before, after)
	}
}
