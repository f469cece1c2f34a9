package agentapi

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Listener accepts clients at a path, and can be put there again.
type Listener struct {
	path string

	mu     sync.Mutex
	bound  []bound // the last one has the path; the others' clients come first
	closed bool
}

type bound struct {
	*net.UnixListener
	file fs.FileInfo // of its socket; the kernel keeps the inode while it is open
}

// Listen makes socket's directory private to root, and listens. The socket is
// bound under another name and renamed over a leftover one, so that there is no
// moment without a socket. It stays behind when the listener is closed: a
// client is refused then, and the next agent replaces it. Keeping a second agent
// out is the caller's part, before Listen and before Rebind: see Lock.
func Listen(socket string) (*Listener, error) {
	l := &Listener{path: socket}
	if err := l.Rebind(); err != nil {
		return nil, err
	}
	return l, nil
}

// InPlace says whether whoever dials the path reaches this listener: its file, or
// the directory, may have been removed, or something else put there.
func (l *Listener) InPlace() bool {
	there, err := os.Lstat(l.path)
	l.mu.Lock()
	defer l.mu.Unlock()
	return err == nil && os.SameFile(there, l.bound[len(l.bound)-1].file)
}

// Rebind puts the listener at its path again, as Listen did. Clients that have
// connected before are still accepted, before those that come now.
func (l *Listener) Rebind() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	fresh, err := bind(l.path)
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %v", l.path, err)
	}
	l.bound = append(l.bound, fresh)
	if n := len(l.bound); n > 1 {
		// Wakes who waits for a client there. It fails only where nobody does.
		_ = l.bound[n-2].SetDeadline(time.Unix(1, 0))
	}
	return nil
}

func bind(socket string) (bound, error) {
	dir := filepath.Dir(socket)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return bound{}, err
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return bound{}, err
	}
	unborn := socket + "~"
	if err := os.Remove(unborn); err != nil && !errors.Is(err, os.ErrNotExist) {
		return bound{}, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: unborn, Net: "unix"})
	if err != nil {
		return bound{}, err
	}
	l.SetUnlinkOnClose(false)
	err = os.Chmod(unborn, 0o600)
	var file fs.FileInfo
	if err == nil {
		file, err = os.Lstat(unborn)
	}
	if err == nil {
		err = os.Rename(unborn, socket)
	}
	if err != nil {
		return bound{}, errors.Join(err, l.Close(), os.Remove(unborn))
	}
	return bound{l, file}, nil
}

// AcceptUnix waits for a client. They come in the order in which they have
// connected. Only one goroutine may call it.
func (l *Listener) AcceptUnix() (*net.UnixConn, error) {
	for {
		first, last := l.first()
		if !last && !hasClient(first) {
			l.done(first)
			continue
		}
		conn, err := first.AcceptUnix()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return conn, err
		}
		_ = first.SetDeadline(time.Time{}) // it fails on a closed one only, and so does the next accept
	}
}

func (l *Listener) first() (first bound, last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bound[0], len(l.bound) == 1
}

// done lets go of one that nobody can dial any more.
func (l *Listener) done(b bound) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = b.Close()
	l.bound = l.bound[1:]
}

// hasClient says whether somebody has connected and was not accepted yet.
func hasClient(b bound) bool {
	raw, err := b.SyscallConn()
	if err != nil {
		return false
	}
	ready := 0
	err = raw.Control(func(fd uintptr) {
		ready, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	})
	return err == nil && ready > 0
}

// Close may be called more than once. The socket file stays.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	var errs []error
	for _, b := range l.bound {
		errs = append(errs, b.Close())
	}
	return errors.Join(errs...)
}
