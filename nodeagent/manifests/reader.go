package manifests

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// maxSize bounds what is read of one file.
const maxSize = 1 << 20

// A reader knows the files of a directory. It reads those again that may be
// different from what it knows.
type reader struct {
	path  string
	now   func() time.Time
	files map[string]*file // by name
}

// A file is what is known of one file. It does not change.
type file struct {
	stamp stamp // of the version that was read last
	young bool  // it was read so soon after a change that another may have the same stamp

	sum    [sha256.Size]byte // of the bytes that were parsed last
	good   *documents        // the last version that parsed; nil: none has
	broken string            // why the bytes parsed last are not good
	unread string            // why the present bytes are not known
}

// A stamp is different after a file was changed, unless that was within a tick of
// the file system's clock.
type stamp struct {
	device, inode uint64
	size          int64
	mtime, ctime  unix.Timespec
}

// tick is as long as the coarsest clock's.
const tick = 2 * time.Second

func stampOf(s unix.Stat_t) stamp { return stamp{s.Dev, s.Ino, s.Size, s.Mtim, s.Ctim} }

// problem is what is wrong with the file, and what follows.
func (f *file) problem(name string) string {
	why := f.broken
	if f.unread != "" {
		why = f.unread
	}
	switch {
	case why == "":
		return ""
	case f.good == nil:
		return fmt.Sprintf("%s: %s; what it holds is not known, so pods of namespaces without a manifest do not start: mend or remove it", name, why)
	default:
		return fmt.Sprintf("%s: %s; its last good version stays in force", name, why)
	}
}

// A hint says which files may be different although their stamps are not.
type hint struct {
	names map[string]bool // notified
	poll  bool            // nothing was notified: those whose stamps prove little
	all   bool            // notifications were lost
}

func newHint() hint { return hint{names: map[string]bool{}} }

func (h hint) doubts(name string, f *file) bool {
	return h.all || h.names[name] || h.poll && f.young
}

// scan brings files up to date; if the directory cannot be read, they stay. It
// holds on to the directory: one that is moved away meanwhile has not lost its files.
func (r *reader) scan(h hint) error {
	dir, err := os.Open(r.path)
	if err != nil {
		return cause(err)
	}
	defer func() { _ = dir.Close() }() // nothing was written
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return cause(err)
	}
	files := map[string]*file{}
	for _, name := range names {
		if !isManifest(name) {
			continue
		}
		if f := r.look(int(dir.Fd()), name, h); f != nil {
			files[name] = f
		}
	}
	r.files = files
	return nil
}

// look returns what is known of a file now; nil if it has been removed.
func (r *reader) look(dir int, name string, h hint) *file {
	var f *file
	if old := r.files[name]; old == nil {
		f = &file{}
	} else {
		if s, err := stat(dir, name, 0); err == nil && stampOf(s) == old.stamp && !h.doubts(name, old) {
			return old
		}
		changed := *old
		f = &changed
	}
	now := r.now()
	text, s, err := readRegular(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		if _, gone := stat(dir, name, unix.AT_SYMLINK_NOFOLLOW); errors.Is(gone, fs.ErrNotExist) {
			return nil
		}
	}
	if err != nil {
		f.stamp, f.unread = stamp{}, fmt.Sprintf("cannot read it: %v", cause(err))
		return f
	}
	f.stamp, f.unread = stampOf(s), ""
	f.young = now.Sub(time.Unix(s.Ctim.Unix())) < tick
	sum := sha256.Sum256(text)
	if sum == f.sum {
		return f
	}
	f.sum, f.broken = sum, ""
	docs, err := parse(text)
	if err != nil {
		f.broken = err.Error()
		return f
	}
	f.good = &docs
	return f
}

// readRegular reads a regular file of limited size, and nothing else: a pipe would
// have it wait, a device may not have an end. It is looked at before it is opened,
// since opening a device can have effects, and after, since it may be another then.
func readRegular(dir int, name string) ([]byte, unix.Stat_t, error) {
	s, err := stat(dir, name, 0)
	if err == nil {
		err = acceptable(s)
	}
	if err != nil {
		return nil, s, err
	}
	fd, err := uninterrupted(func() (int, error) {
		return unix.Openat(dir, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, s, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { _ = f.Close() }() // nothing was written
	if err = unix.Fstat(fd, &s); err == nil {
		err = acceptable(s)
	}
	if err != nil {
		return nil, s, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err == nil && len(text) > maxSize {
		err = errTooLarge
	}
	return text, s, err
}

func stat(dir int, name string, flags int) (unix.Stat_t, error) {
	return uninterrupted(func() (s unix.Stat_t, err error) {
		err = unix.Fstatat(dir, name, &s, flags)
		return s, err
	})
}

// uninterrupted repeats a call that a signal has cut short, as some file systems do.
func uninterrupted[T any](call func() (T, error)) (T, error) {
	for {
		if v, err := call(); !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}

var errTooLarge = errors.New("it is larger than 1 MiB")

func acceptable(s unix.Stat_t) error {
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if s.Size > maxSize {
			return errTooLarge
		}
		return nil
	case unix.S_IFDIR:
		return errors.New("it is a directory, not a regular file")
	case unix.S_IFIFO:
		return errors.New("it is a pipe, not a regular file")
	case unix.S_IFSOCK:
		return errors.New("it is a socket, not a regular file")
	default:
		return errors.New("it is a device, not a regular file")
	}
}

// cause is err without the operation and the path, which its reader knows.
func cause(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}
