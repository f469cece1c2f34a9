package manifests

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const manifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: NAME}\n"

// reading is a reader of a directory with one file, which it has read when the
// file was as old as said.
func reading(t *testing.T, age time.Duration) *reader {
	t.Helper()
	r := &reader{path: t.TempDir(), now: func() time.Time { return time.Now().Add(age) }}
	rewrite(t, r, "one")
	scan(t, r, hint{})
	if got := r.podName(t); got != "one" {
		t.Fatalf("pod %s", got)
	}
	return r
}

func rewrite(t *testing.T, r *reader, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(r.path, "a.yaml"), []byte(strings.Replace(manifest, "NAME", name, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// rewriteUnseen changes the file's text in a way that its stamp does not show, as
// within one tick of the file system's clock.
func rewriteUnseen(t *testing.T, r *reader) {
	t.Helper()
	rewrite(t, r, "two")
	r.files["a.yaml"].stamp = stampNow(t, r)
}

func scan(t *testing.T, r *reader, h hint) {
	t.Helper()
	if err := r.scan(h); err != nil {
		t.Fatal(err)
	}
}

func (r *reader) podName(t *testing.T) string {
	t.Helper()
	f := r.files["a.yaml"]
	if f == nil || f.good == nil {
		t.Fatalf("not good: %+v", f)
	}
	return f.good.pods[0].Name
}

func TestChangeThatTheStampDoesNotShow(t *testing.T) {
	for name, test := range map[string]struct {
		age  time.Duration
		hint hint
		want string
	}{
		"polled soon after a change": {0, hint{poll: true}, "two"},
		"notified":                   {time.Hour, hint{names: map[string]bool{"a.yaml": true}}, "two"},
		"notifications were lost":    {time.Hour, hint{all: true}, "two"},
		"another was notified":       {0, hint{names: map[string]bool{"b.yaml": true}}, "one"},
		"polled long after":          {time.Hour, hint{poll: true}, "one"},
	} {
		t.Run(name, func(t *testing.T) {
			r := reading(t, test.age)
			rewriteUnseen(t, r)
			scan(t, r, test.hint)
			if got := r.podName(t); got != test.want {
				t.Errorf("pod %s, want %s", got, test.want)
			}
		})
	}
}

// The same size, inode and time of modification do not make it the same file.
func TestChangeThatIsHidden(t *testing.T) {
	r := reading(t, time.Hour)
	path := filepath.Join(r.path, "a.yaml")
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for r.files["a.yaml"].stamp == stampNow(t, r) { // until the clock has ticked
		rewrite(t, r, "two")
		if err := os.Chtimes(path, time.Time{}, before.ModTime()); err != nil {
			t.Fatal(err)
		}
	}
	scan(t, r, hint{})
	if got := r.podName(t); got != "two" {
		t.Errorf("pod %s", got)
	}
}

func stampNow(t *testing.T, r *reader) stamp {
	t.Helper()
	s, err := stat(unix.AT_FDCWD, filepath.Join(r.path, "a.yaml"), 0)
	if err != nil {
		t.Fatal(err)
	}
	return stampOf(s)
}

func TestUnchangedFileIsNotOpened(t *testing.T) {
	r := reading(t, time.Hour)
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, filepath.Join(r.path, "a.yaml"), unix.IN_OPEN); err != nil {
		t.Fatal(err)
	}
	opened := func() bool {
		n, _ := unix.Read(fd, make([]byte, 4096)) // EAGAIN: it was not
		return n > 0
	}
	known := r.files["a.yaml"]
	scan(t, r, hint{poll: true})
	if opened() || r.files["a.yaml"] != known {
		t.Error("a file that has not changed is read again")
	}
	scan(t, r, hint{all: true})
	if !opened() {
		t.Error("the test does not see a file being opened")
	}
	scan(t, r, hint{})
	if opened() {
		t.Error("a file that was read again is not known")
	}
}

func TestFileThatIsRemovedIsForgotten(t *testing.T) {
	r := reading(t, time.Hour)
	if err := os.Remove(filepath.Join(r.path, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	scan(t, r, hint{})
	if len(r.files) != 0 {
		t.Errorf("files %v", r.files)
	}
}

func TestReadRegular(t *testing.T) {
	dir := t.TempDir()
	largest, pipe, socket := filepath.Join(dir, "largest"), filepath.Join(dir, "pipe"), filepath.Join(dir, "socket")
	if err := errors.Join(
		os.WriteFile(largest, make([]byte, maxSize), 0o600),
		unix.Mkfifo(pipe, 0o600),
		unix.Mknod(socket, unix.S_IFSOCK|0o600, 0),
	); err != nil {
		t.Fatal(err)
	}
	if text, _, err := readRegular(unix.AT_FDCWD, largest); err != nil || len(text) != maxSize {
		t.Errorf("the largest file: %d bytes, %v", len(text), err)
	}
	for path, want := range map[string]string{
		dir: "a directory", pipe: "a pipe", socket: "a socket", "/dev/zero": "a device",
		"/proc/kallsyms": "larger than 1 MiB", filepath.Join(dir, "none"): "no such file",
	} {
		if _, _, err := readRegular(unix.AT_FDCWD, path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
}

// What a file is when it is looked at, it need not be when it is opened.
func TestFileThatBecomesAPipe(t *testing.T) {
	r := reading(t, time.Hour)
	path := filepath.Join(r.path, "a.yaml")
	stop := make(chan struct{})
	done := make(chan error)
	go func() {
		var err error
		for err == nil {
			select {
			case <-stop:
				done <- nil
				return
			default:
				err = errors.Join(unix.Mkfifo(path+"~", 0o600), os.Rename(path+"~", path),
					os.WriteFile(path+"~", []byte(manifest), 0o600), os.Rename(path+"~", path))
			}
		}
		done <- err
	}()
	for range 2000 { // a reader that waits for a writer stays in here
		scan(t, r, hint{all: true})
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	scan(t, r, hint{all: true})
	if got := r.podName(t); got != "NAME" || r.files["a.yaml"].unread != "" {
		t.Errorf("pod %s, unread %q", got, r.files["a.yaml"].unread)
	}
}

// A directory that is moved away between two files has not lost the second.
func TestDirectoryThatMovesMeanwhile(t *testing.T) {
	r := reading(t, time.Hour)
	stop := make(chan struct{})
	done := make(chan error)
	go func() {
		var err error
		for err == nil {
			select {
			case <-stop:
				done <- nil
				return
			default:
				err = errors.Join(os.Rename(r.path, r.path+"~"), os.Rename(r.path+"~", r.path))
			}
		}
		done <- err
	}()
	for range 2000 {
		if err := r.scan(hint{all: true}); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if len(r.files) != 1 {
			t.Error("the file is forgotten")
			break
		}
	}
	close(stop)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// What a directory said is known again when it can be read again, be it the same.
func TestDirectoryThatCanBeReadAgain(t *testing.T) {
	r := reading(t, time.Hour)
	changes := 0
	d, err := New(Config{Path: r.path, Poll: time.Hour, Changed: func() { changes++ }, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	d.reader.now = r.now
	want := func(changed, problems int) {
		t.Helper()
		d.read(hint{poll: true})
		if pods, bad := len(d.Pods()), d.Problems(); pods != 1 || changes != changed || len(bad) != problems {
			t.Errorf("%d pods after %d changes, problems %q; want 1 after %d, %d problems", pods, changes, bad, changed, problems)
		}
	}
	want(1, 0)
	want(1, 0)
	if err := os.Rename(r.path, r.path+"~"); err != nil {
		t.Fatal(err)
	}
	want(2, 1)
	if err := os.Rename(r.path+"~", r.path); err != nil {
		t.Fatal(err)
	}
	want(3, 0)
}
