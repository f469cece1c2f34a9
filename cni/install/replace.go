package install

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	listMode   = 0o600
	binaryMode = 0o755

	dropInDirMode = 0o755
)

// tempName is what a file is called until it is whole. Runtimes pass over a name that
// does not end as a configuration's does, and notice only a rename from a name in the
// same directory. It is always the same one, so that what a killed process leaves is
// found again.
func tempName(name string) string { return "." + name + ".tmp" }

// replace puts a file there whole, or leaves what is there.
func replace(dir, name string, mode fs.FileMode, content io.Reader) error {
	temp := filepath.Join(dir, tempName(name))
	err := writeTemp(temp, mode, content)
	if err == nil {
		err = os.Rename(temp, filepath.Join(dir, name))
	}
	if err != nil {
		_ = os.Remove(temp) // on a full disk it is in the way; else the next try removes it
		return err
	}
	return syncDir(dir)
}

func writeTemp(temp string, mode fs.FileMode, content io.Reader) error {
	_ = os.Remove(temp) // what a killed process has left; if it stays, the next line fails
	file, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	if err == nil {
		err = file.Chmod(mode) // whatever the umask
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// errWritten is a file of somebody else's that its owner wrote at the same moment as we.
var errWritten = errors.New("its owner has written it at the same moment; it is looked at again")

// edit replaces the content of somebody else's file, unless it is not any more what the
// new one was made of. The files change places, so that what is taken away can be
// compared. What is not as expected is newer and goes back, which may take away what the
// owner has written since, and so on: what an owner has written last is never lost.
func edit(dir, name string, content, made []byte) (err error) {
	path, temp := filepath.Join(dir, name), filepath.Join(dir, tempName(ListName))
	var was unix.Stat_t
	if err := unix.Stat(path, &was); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(temp) // if it stays, the next try removes it
		}
	}()
	if err := writeTemp(temp, fs.FileMode(was.Mode&0o777), bytes.NewReader(content)); err != nil {
		return err
	}
	if int(was.Uid) != os.Geteuid() || int(was.Gid) != os.Getegid() {
		if err := os.Chown(temp, int(was.Uid), int(was.Gid)); err != nil {
			return err
		}
	}
	var written error // nil while what was taken away is as expected
	expected := made
	for {
		if err := exchange(temp, path); err != nil {
			return errors.Join(written, err)
		}
		unfinished := beingWritten(temp) // asked first: what is read then is the last that is written
		taken, err := os.ReadFile(temp)
		if err == nil && bytes.Equal(taken, expected) && !unfinished {
			return errors.Join(written, os.Remove(temp), syncDir(dir))
		}
		written = errors.Join(errWritten, err)
		content, expected = taken, content
	}
}

// beingWritten says whether somebody has a file open for writing: a read lease is refused
// then (fcntl(2)). Where there are no leases, it is not known.
func beingWritten(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }() // it was only read
	_, err = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
	return errors.Is(err, unix.EAGAIN)
}

func exchange(a, b string) error {
	if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
		return &os.LinkError{Op: "exchange", Old: a, New: b, Err: err}
	}
	return nil
}

// syncDir makes a rename last.
func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// holds says whether a file has this content and mode.
func holds(path string, content []byte, mode fs.FileMode) bool {
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != mode || info.Size() != int64(len(content)) {
		return false
	}
	have, err := os.ReadFile(path)
	return err == nil && bytes.Equal(have, content)
}

// installFile copies a program into a directory, unless it is there already.
func installFile(source, dir, name string) (wrote bool, err error) {
	from, err := os.Open(source)
	if err != nil {
		return false, err
	}
	defer func() { _ = from.Close() }() // it was only read
	same, err := sameProgram(from, filepath.Join(dir, name))
	if same || err != nil {
		return false, err
	}
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	return true, replace(dir, name, binaryMode, from)
}

// sameProgram says whether a path holds a program of the same bytes. Its error is the
// source's; whatever is wrong with the path is put right by writing it.
func sameProgram(source *os.File, path string) (bool, error) {
	want, err := source.Stat()
	if err != nil {
		return false, err
	}
	have, err := os.Lstat(path)
	if err != nil || have.Mode() != binaryMode || have.Size() != want.Size() {
		return false, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return false, nil
	}
	defer func() { _ = file.Close() }() // it was only read
	a, b := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, err := io.ReadFull(source, a)
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return false, err
		}
		if m, _ := io.ReadFull(file, b[:n]); m != n || !bytes.Equal(a[:n], b[:n]) {
			return false, nil
		}
		if err != nil {
			return true, nil // the end of both: they are of one size
		}
	}
}
