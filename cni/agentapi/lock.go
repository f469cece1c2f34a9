package agentapi

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrTaken is part of errors that say that another agent has the node.
var ErrTaken = errors.New("another agent")

// A NodeLock keeps a second agent out of the node until it is closed or the process
// ends.
type NodeLock struct {
	path string
	file *os.File // the kernel keeps its inode while it is open
}

// Lock is for the agent to take before it touches anything. The file stays: its
// presence says that an agent has run since the node was booted.
func Lock(socket string) (*NodeLock, error) {
	path := LockFile(socket)
	file, err := lock(path)
	if err != nil {
		return nil, err
	}
	return &NodeLock{path, file}, nil
}

func lock(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("cannot lock the node for this agent: %w", err)
	}
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, fmt.Errorf("cannot lock the node for this agent: %w", err)
		}
		if err := take(f); err != nil {
			_ = f.Close() // nothing was written
			return nil, err
		}
		if isAt(f, path) {
			return f, nil
		}
		_ = f.Close() // removed before it was locked: another agent may hold the next one
	}
}

// Keep is the agent's sign of life, to be given every second or so. A lock that was
// removed or replaced keeps nobody out: lost says so, and it is taken again. With
// ErrTaken another agent was faster, and has the node.
func (l *NodeLock) Keep() (lost bool, err error) {
	if lost = !isAt(l.file, l.path); lost {
		file, err := lock(l.path)
		if err != nil {
			return true, err
		}
		_ = l.file.Close() // it keeps nobody out
		l.file = file
	}
	now := time.Now()
	if err := os.Chtimes(l.path, now, now); err != nil {
		return lost, fmt.Errorf("cannot renew the lock's time: %w", err)
	}
	return lost, nil
}

// isAt says whether whoever opens path opens f.
func isAt(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(there, open)
}

// Close lets the next agent in.
func (l *NodeLock) Close() error { return l.file.Close() }

func take(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("%w%s runs on this node and holds %s: stop it first", ErrTaken, holder(f), f.Name())
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	if err != nil {
		return fmt.Errorf("cannot lock %s: %w", f.Name(), err)
	}
	return nil
}

// holder names the process that wrote f, as it numbers itself.
func holder(f *os.File) string {
	b := make([]byte, 20)
	n, err := f.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		return ""
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b[:n])))
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (pid %d)", pid)
}
