package inroot_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/cni/inroot"
)

// Whatever the links, what is opened is in the root.
func TestOpen(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "root")
	if err := errors.Join(
		os.MkdirAll(filepath.Join(root, "run"), 0o755), os.Mkdir(filepath.Join(root, "var"), 0o755),
		os.WriteFile(filepath.Join(base, "file"), []byte("ours"), 0o600),
		os.WriteFile(filepath.Join(root, "file"), []byte("theirs, at the top"), 0o600),
		os.WriteFile(filepath.Join(root, "run/file"), []byte("theirs"), 0o600),
		os.Symlink("/run", filepath.Join(root, "var/run")),
		os.Symlink("../../../../file", filepath.Join(root, "run/up")),
		os.Symlink(filepath.Join(base, "file"), filepath.Join(root, "run/ours")),
		os.Symlink("loop", filepath.Join(root, "loop")),
	); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	want := map[string]string{
		"/run/file":         "theirs",
		"run/file":          "theirs",
		"/var/run/file":     "theirs",
		"/run/../file":      "theirs, at the top",
		"/../../file":       "theirs, at the top",
		"/run/up":           "theirs, at the top",
		"/run/ours":         "no such file or directory",
		"/run/none":         "no such file or directory",
		"/run/file/further": "not a directory",
		"/loop":             "too many levels of symbolic links",
		"":                  "no such file or directory",
	}
	for path := range want {
		got[path] = content(inroot.Open(root, path, unix.O_RDONLY))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Files are renamed on the machine all the time, and what a path leads to is found all the same.
func TestOpenWhileFilesAreRenamed(t *testing.T) {
	root := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(root, "a"), 0o755), os.WriteFile(filepath.Join(root, "file"), []byte("theirs"), 0o600)); err != nil {
		t.Fatal(err)
	}
	from, to := filepath.Join(t.TempDir(), "from"), filepath.Join(t.TempDir(), "to")
	if err := os.Mkdir(from, 0o755); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			err = errors.Join(os.Rename(from, to), os.Rename(to, from))
		}
		done <- err
	}()
	path := strings.Repeat("/a/..", 100) + "/file"
	for n := range 5000 {
		if got := content(inroot.Open(root, path, unix.O_RDONLY)); got != "theirs" {
			t.Errorf("try %d: %q", n, got)
			break
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// The root is a directory, and no link in it leads by a process.
func TestRefused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		root, path string
		want       error
	}{
		{file, "/", unix.ENOTDIR},
		{file + "-not-there", "/", unix.ENOENT},
		{"/", "/proc/self/exe", unix.ELOOP},
		{"/", "/proc/self/root/etc", unix.ELOOP},
	} {
		if _, err := inroot.Open(test.root, test.path, unix.O_PATH); !errors.Is(err, test.want) {
			t.Errorf("%s in %s: %v, want %v", test.path, test.root, err, test.want)
		}
	}
}

func content(file *os.File, err error) string {
	if err != nil {
		return err.Error()
	}
	text, err := io.ReadAll(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Sprintf("%s, %v", text, err)
	}
	return string(text)
}
