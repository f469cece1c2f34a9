package agentapi

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Peer is the process at the other end of a connection, as it was when it
// connected.
type Peer struct {
	PID int32
	UID uint32
}

// PeerOf asks the kernel (SO_PEERCRED) who is at the other end of c.
func PeerOf(c *net.UnixConn) (Peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Peer{}, fmt.Errorf("cannot read the peer's credentials: %v", err)
	}
	var cred *unix.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) {
		cred, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err := errors.Join(err, optErr); err != nil {
		return Peer{}, fmt.Errorf("cannot read the peer's credentials: %v", err)
	}
	return Peer{PID: cred.Pid, UID: cred.Uid}, nil
}

// CheckPeer refuses every peer but root.
func CheckPeer(c *net.UnixConn) error {
	peer, err := PeerOf(c)
	if err != nil {
		return err
	}
	return peer.check()
}

func (p Peer) check() error {
	if p.UID != 0 {
		return fmt.Errorf("process %d of user %d may not talk to the agent, only root may", p.PID, p.UID)
	}
	return nil
}

// ErrPeerGone is the cause of a context that WithPeer has ended.
var ErrPeerGone = errors.New("the client closed its connection")

// WithPeer returns a context that ends when the peer closes c, or sends more
// than its one request; where that has happened already, it has ended. It is
// called after ReadRequest and clears c's read deadline. stop must be called.
func WithPeer(ctx context.Context, c *net.UnixConn) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if !Waits(c) {
		cancel(ErrPeerGone)
		return ctx, func() {}
	}
	done := make(chan struct{})
	// Setting a deadline fails on a closed connection only, where Read returns.
	_ = c.SetReadDeadline(time.Time{})
	go func() {
		defer close(done)
		_, err := c.Read(make([]byte, 1))
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			cancel(ErrPeerGone)
		}
	}()
	return ctx, func() {
		_ = c.SetReadDeadline(time.Unix(1, 0))
		<-done
		cancel(context.Canceled)
	}
}

// Waits reports whether the peer is there and has sent nothing that is not read.
func Waits(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	quiet := false
	err = raw.Control(func(fd uintptr) { quiet = nothingToRead(fd) })
	return err == nil && quiet
}

// Await waits until there is something to read, be it the end, or until c's read
// deadline. It reads nothing.
func Await(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Read(func(fd uintptr) bool { return !nothingToRead(fd) })
}

func nothingToRead(fd uintptr) bool {
	for {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if !errors.Is(err, unix.EINTR) {
			return errors.Is(err, unix.EAGAIN)
		}
	}
}
