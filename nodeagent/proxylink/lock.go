package proxylink

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Lock keeps a second agent out of the node until it is closed or the process
// ends. It is for the agent to take before it touches anything. The file stays:
// its presence says that an agent has run since the node was booted.
func Lock(path string) (io.Closer, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("cannot lock the node for this agent: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the node for this agent: %w", err)
	}
	if err := take(f); err != nil {
		_ = f.Close() // nothing was written
		return nil, err
	}
	return f, nil
}

func take(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("another agent%s runs on this node and holds %s: stop it first", holder(f), f.Name())
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
