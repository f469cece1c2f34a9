package ztunnelproto

import (
	"errors"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sendUntilError sends until the peer's buffer is full, and then waits in Send.
func sendUntilError(t *testing.T, c *Conn, f *os.File) <-chan error {
	t.Helper()
	result := make(chan error, 1)
	go func() {
		for {
			if err := c.Send(snapshotSent(), f); err != nil {
				result <- err
				return
			}
		}
	}()
	for deadline := time.Now().Add(10 * time.Second); ; {
		var n int
		if err := c.control(func(fd int) (err error) {
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return result
		}
		if time.Now().After(deadline) {
			t.Fatal("the buffer never filled")
		}
	}
}

func TestABlockedSendEnds(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(a, b *Conn) error
		want []error // one of these
	}{
		{"when the peer goes", func(_, b *Conn) error { return b.Close() }, []error{unix.ECONNRESET, unix.EPIPE}},
		{"when closed", func(a, _ *Conn) error { return a.Close() }, []error{net.ErrClosed}},
		{"at its deadline", func(a, _ *Conn) error { return a.SetWriteDeadline(time.Unix(1, 0)) },
			[]error{os.ErrDeadlineExceeded}},
		{"at its overall deadline", func(a, _ *Conn) error { return a.SetDeadline(time.Unix(1, 0)) },
			[]error{os.ErrDeadlineExceeded}},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, b := pair(t)
			result := sendUntilError(t, a, devNull(t))
			if err := test.end(a, b); err != nil {
				t.Fatal(err)
			}
			err := <-result
			if !slices.ContainsFunc(test.want, func(want error) bool { return errors.Is(err, want) }) {
				t.Errorf("got %v, want one of %v", err, test.want)
			}
		})
	}
}

func TestAReceiveEnds(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(c *Conn) error
		want error
	}{
		{"when closed", (*Conn).Close, net.ErrClosed},
		{"at its deadline", func(c *Conn) error { return c.SetReadDeadline(time.Unix(1, 0)) }, os.ErrDeadlineExceeded},
	} {
		t.Run(test.name, func(t *testing.T) {
			a, _ := pair(t)
			result := make(chan error, 1)
			go func() {
				_, err := a.Receive(&WorkloadRequest{})
				result <- err
			}()
			if err := test.end(a); err != nil {
				t.Fatal(err)
			}
			if err := <-result; !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		})
	}
}

func TestAConnectionOutlivesADeadline(t *testing.T) {
	a, b := pair(t)
	if err := a.SetReadDeadline(time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Receive(&WorkloadRequest{}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	if err := a.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := b.Send(snapshotSent(), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Receive(&WorkloadRequest{}); err != nil {
		t.Error(err)
	}
}

func TestReady(t *testing.T) {
	a, b := pair(t)
	ready := func(want bool) {
		t.Helper()
		if got, err := b.Ready(); got != want || err != nil {
			t.Errorf("ready: %v, %v; want %v", got, err, want)
		}
	}
	ready(false)
	if err := a.Send(snapshotSent(), nil); err != nil {
		t.Fatal(err)
	}
	ready(true)
	if _, err := b.Receive(&WorkloadRequest{}); err != nil {
		t.Fatal(err)
	}
	ready(false)
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	ready(true)
}

func TestCloseTwice(t *testing.T) {
	a, _ := pair(t)
	for range 2 {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := a.Peer(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Peer after Close: %v", err)
	}
	if _, err := a.Ready(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Ready after Close: %v", err)
	}
	if err := a.Send(snapshotSent(), nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Send after Close: %v", err)
	}
}
