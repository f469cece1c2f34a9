package plugin

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"golang.org/x/sys/unix"
)

// logFile appends to a file that many plugins share. At the limit it is renamed,
// once: the newest 1 to 2 limits are kept. It is opened at the first line, in a
// directory that is the agent's: where there is none, there is no log.
type logFile struct {
	path   func() string
	limit  int64
	file   *os.File
	failed bool
}

// Write never fails for the caller's purposes: no pod is stopped for a log.
func (l *logFile) Write(line []byte) (int, error) {
	if l.file == nil && !l.failed {
		file, err := openLog(l.path(), l.limit)
		l.file, l.failed = file, err != nil
	}
	if l.failed {
		return len(line), nil
	}
	return l.file.Write(line)
}

func (l *logFile) close() {
	if l.file != nil {
		_ = l.file.Close() // there is nobody left to tell
	}
}

// openLog opens the log, and rotates it first if it is full.
func openLog(path string, limit int64) (*os.File, error) {
	file, err := openAppend(path)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	if info.Size() < limit {
		return file, nil
	}
	return rotate(file, info, path)
}

// rotate returns the file that comes after full. Of the plugins that find it full
// at once, the first to lock it renames it; the others find another file under
// its name, or write to the full one.
func rotate(full *os.File, info os.FileInfo, path string) (*os.File, error) {
	if !lock(full) {
		return full, nil
	}
	now, err := os.Lstat(path)
	if err == nil && os.SameFile(info, now) {
		err = os.Rename(path, path+".1")
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, errors.Join(err, full.Close())
	}
	next, err := openAppend(path)
	return next, errors.Join(err, full.Close())
}

func lock(file *os.File) bool {
	return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
}

func openAppend(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the log: %v", err)
	}
	return file, nil
}

// withoutTime spares stderr what the runtime's own log adds.
func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}
