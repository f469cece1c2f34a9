package sockets

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Destroy resets connections: both ends see an error at their next use. It returns
// how many there were; that one is gone is no error. The kernel is asked for exactly
// the sockets that were listed, and touches no other that has come to the same
// addresses and ports since.
func (c *Conn) Destroy(ctx context.Context, connections []Connection) (int, error) {
	destroyed := 0
	var errs []error
	for _, one := range connections {
		err := ctx.Err()
		if err == nil {
			err = c.destroy(ctx, one.socket)
		}
		switch {
		case err == nil:
			destroyed++
		case errors.Is(err, unix.ENOENT):
		case ctx.Err() != nil, errors.Is(err, ErrCannotDestroy):
			return destroyed, errors.Join(append(errs, fmt.Errorf("cannot destroy connections: %w", err))...)
		default:
			errs = append(errs, fmt.Errorf("cannot destroy connection %s: %w", one, err))
		}
	}
	return destroyed, errors.Join(errs...)
}

// ErrCannotDestroy says that this kernel destroys no sockets.
var ErrCannotDestroy = errors.New("the kernel lacks CONFIG_INET_DIAG_DESTROY")

func (c *Conn) destroy(ctx context.Context, s socket) error {
	if !s.destroyable() {
		return fmt.Errorf("state %d, mark %#x: not an open connection of the app's", s.state, s.mark)
	}
	err := c.conn.Request(ctx, sockDestroy, unix.NLM_F_ACK, s.exactly(), func([]byte) error { return nil })
	return explain(err)
}

// destroyable keeps what must live from being destroyed by mistake: a listener is the
// app's port, a marked socket is the proxy's.
func (s socket) destroyable() bool {
	return carriedStates&(1<<s.state) != 0 && !s.isProxy() && !s.isLoopback() && s.cookie != 0
}

func explain(err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w: %w", ErrCannotDestroy, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%w (CAP_NET_ADMIN is missing)", err)
	}
	return err
}
