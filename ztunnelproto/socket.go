package ztunnelproto

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// DefaultSocket is where agent and proxy of an ambient mesh meet by default.
const DefaultSocket = "/var/run/ztunnel/ztunnel.sock"

const (
	network = "unixpacket"
	// A listener is bound under its path and this, then renamed to its path.
	temporary = ".new"
	// sockaddr_un has room for this much path and a final zero.
	maxPath = 107
)

// Dial connects to the listener at path.
func Dial(ctx context.Context, path string) (*Conn, error) {
	if err := checkPath(path, ""); err != nil {
		return nil, err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, network, path)
	if err != nil {
		return nil, fmt.Errorf("cannot connect to %s: %w", path, withoutAddress(err))
	}
	return NewConn(c.(*net.UnixConn)), nil
}

// Listener accepts connections at a path.
type Listener struct {
	l     *net.UnixListener
	path  string
	file  fs.FileInfo // of its socket; the kernel keeps the inode while l is open
	close func() error
}

// Listen listens at path, for root only (mode 0600), and makes path's directory
// if there is none. Another listener at path gets no more connections, and no
// connection finds path missing on the way: the socket is bound under a
// temporary name and renamed. So two processes must not do this at once; it is
// for the caller to keep a second one out.
func Listen(path string) (*Listener, error) {
	if err := checkPath(path, temporary); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("cannot listen at %s: %w", path, err)
	}
	for _, p := range []string{path, path + temporary} {
		if err := checkSocket(p); err != nil {
			return nil, fmt.Errorf("cannot listen at %s: %w", path, err)
		}
	}
	l, err := bind(path + temporary)
	if err != nil {
		return nil, fmt.Errorf("cannot listen at %s: %w", path, withoutAddress(err))
	}
	file, err := os.Lstat(path + temporary)
	if err == nil {
		err = os.Rename(path+temporary, path)
	}
	if err != nil {
		// The first failure is the one to tell of.
		_ = l.Close()
		_ = os.Remove(path + temporary)
		return nil, fmt.Errorf("cannot listen at %s: %w", path, err)
	}
	return &Listener{l: l, path: path, file: file, close: sync.OnceValue(l.Close)}, nil
}

func bind(path string) (*net.UnixListener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	// The file gets its mode when it is made: a chmod afterwards would leave a
	// moment in which the umask alone says who may connect.
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var chmodErr error
		err := raw.Control(func(fd uintptr) { chmodErr = unix.Fchmod(int(fd), 0o600) })
		return errors.Join(err, chmodErr)
	}}
	l, err := config.Listen(context.Background(), network, path)
	if err != nil {
		return nil, err
	}
	ul := l.(*net.UnixListener)
	// By then the file may be a successor's.
	ul.SetUnlinkOnClose(false)
	return ul, nil
}

// checkSocket refuses to replace anything that is not a socket.
func checkSocket(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return fmt.Errorf("%s exists and is not a socket: remove it, or choose another path", path)
	}
	return nil
}

func checkPath(path, suffix string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("bad socket path %q: it must be absolute", path)
	}
	if limit := maxPath - len(suffix); len(path) > limit {
		return fmt.Errorf("bad socket path %q: it has %d bytes, the limit is %d", path, len(path), limit)
	}
	return nil
}

// withoutAddress drops the address package net adds, which for a listener is the
// temporary one.
func withoutAddress(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// Accept waits for a connection. Its error is net.ErrClosed after Close.
func (l *Listener) Accept() (*Conn, error) {
	c, err := l.l.AcceptUnix()
	if err != nil {
		return nil, fmt.Errorf("cannot accept connection: %w", withoutAddress(err))
	}
	return NewConn(c), nil
}

// InPlace says whether whoever dials the path reaches this listener: its file, or
// the directory, may have been removed, or something else put there.
func (l *Listener) InPlace() bool {
	there, err := os.Lstat(l.path)
	return err == nil && os.SameFile(there, l.file)
}

// Close may be called more than once. The socket file stays: whoever dials is
// refused until there is another Listener.
func (l *Listener) Close() error { return l.close() }
