// Package nlconn keeps a netlink socket in a pod's network namespace.
//
// A kept socket costs a request a few microseconds, where one that is opened for
// each request costs a change of namespace as well. It also keeps the namespace
// alive: its owner closes it together with the namespace's Handle.
//
// # Failures it survives
//
//   - The socket is in another namespace than it should be: it is compared with the
//     Handle before it is used.
//   - A request is given up half-way (its context ended, its replies were cut): what
//     is still to come is recognised by its number and dropped, by later requests.
//   - Lengths in a reply that lie, a reply that was cut off, a message from anybody
//     but the kernel.
//   - A dump that was interrupted by changes ([ErrInterrupted]) or lost for want of
//     memory (ENOBUFS): both say so, neither passes for a complete answer.
package nlconn

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// ErrInterrupted says that what was dumped changed meanwhile: the dump may lack
// something that was there all the time, or hold something twice.
var ErrInterrupted = errors.New("the dump was interrupted by a change")

// errTruncated says that a message was longer than the largest the kernel sends.
var errTruncated = errors.New("netlink message was truncated")

// A Conn is a netlink socket in a network namespace. Its methods may be called from
// several goroutines; requests wait for each other.
type Conn struct {
	mu    sync.Mutex
	file  *os.File
	seq   uint32
	dirty bool // replies to an abandoned request may still come
}

// Open opens a socket of a netlink protocol, as unix.NETLINK_ROUTE, in a namespace.
func Open(h *netns.Handle, protocol int) (*Conn, error) {
	fd := -1
	err := h.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot open a netlink socket (protocol %d): %w", protocol, err)
	}
	if err := prepare(fd, h.ID()); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	return &Conn{file: os.NewFile(uintptr(fd), "netlink")}, nil
}

// prepare checks where a new socket is and sets it up.
func prepare(fd int, want netns.ID) error {
	got, err := netns.SocketID(fd)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("netlink socket is in network namespace %s, not %s", got, want)
	}
	// Connected to the kernel, the socket takes messages from nobody else.
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("cannot connect netlink socket: %w", err)
	}
	// Explanations in errors, without the request's copy; and filters in dump requests
	// that are obeyed. Kernels without them do without.
	for _, option := range []int{unix.NETLINK_EXT_ACK, unix.NETLINK_CAP_ACK, unix.NETLINK_GET_STRICT_CHK} {
		err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, option, 1)
		if err != nil && !errors.Is(err, unix.ENOPROTOOPT) {
			return fmt.Errorf("cannot set netlink socket option %d: %w", option, err)
		}
	}
	return nil
}

// Close gives the socket up. It is idempotent.
func (c *Conn) Close() error {
	if err := c.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// Request sends a request and hands each reply to each, which must not keep it. It
// returns when the kernel has answered all of it. An error of the kernel's is the
// unix.Errno, with the kernel's explanation around it; one of each's does not keep
// the other replies from being read.
//
// flags are NLM_F_DUMP for a dump and NLM_F_ACK, with others, for a change; with
// neither, exactly one reply is expected.
func (c *Conn) Request(ctx context.Context, kind, flags uint16, payload []byte, each func(reply []byte) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	raw, err := c.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = c.request(ctx, int(fd), kind, flags|unix.NLM_F_REQUEST, payload, each)
	}); err != nil {
		return fmt.Errorf("netlink socket: %w", os.ErrClosed)
	}
	return failed
}

func (c *Conn) request(ctx context.Context, fd int, kind, flags uint16, payload []byte, each func([]byte) error) error {
	buf := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buf)
	if c.dirty {
		if err := c.drain(ctx, fd, buf[:]); err != nil {
			return err
		}
	}
	c.seq++
	message := appendHeader(buf[:0], kind, flags, c.seq, len(payload))
	message = append(message, payload...)
	c.dirty = true
	if err := retry(func() error { return unix.Sendto(fd, message, 0, nil) }); err != nil {
		return fmt.Errorf("cannot send netlink request: %w", err)
	}
	r := reader{seq: c.seq, single: flags&(unix.NLM_F_DUMP|unix.NLM_F_ACK) == 0, each: each}
	for !r.done {
		n, err := receive(ctx, fd, buf[:])
		if err != nil {
			return fmt.Errorf("cannot receive netlink reply: %w", err)
		}
		if err := r.read(buf[:n]); err != nil {
			return err
		}
	}
	c.dirty = false
	return r.err
}

// drain reads what is left of earlier requests. A dump that is not read to its end
// would keep the kernel from starting another.
func (c *Conn) drain(ctx context.Context, fd int, buf []byte) error {
	for {
		_, err := receiveNow(fd, buf)
		switch {
		case errors.Is(err, unix.EAGAIN):
			c.dirty = false
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, errTruncated):
			return fmt.Errorf("cannot drain netlink socket: %w", err)
		}
	}
}

// receive waits for a datagram until ctx ends.
func receive(ctx context.Context, fd int, buf []byte) (int, error) {
	for {
		n, err := receiveNow(fd, buf)
		if !errors.Is(err, unix.EAGAIN) {
			return n, err
		}
		// The kernel answers before the request's system call returns: this is rare.
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		wait := 100 * time.Millisecond // at most: ctx may end without a deadline
		if deadline, ok := ctx.Deadline(); ok {
			wait = max(0, min(wait, time.Until(deadline)))
		}
		poll := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, int(wait.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return 0, err
		}
	}
}

// receiveNow reads a datagram if there is one, or fails with EAGAIN.
func receiveNow(fd int, buf []byte) (n int, err error) {
	var flags int
	var from unix.Sockaddr
	for {
		err = retry(func() (err error) {
			n, _, flags, from, err = unix.Recvmsg(fd, buf, nil, unix.MSG_DONTWAIT)
			return err
		})
		if err != nil {
			return 0, err
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue
		}
		if flags&unix.MSG_TRUNC != 0 {
			return 0, errTruncated
		}
		return n, nil
	}
}

func retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// bufferSize is more than the 32 KiB that the kernel puts into one datagram.
const bufferSize = 64 << 10

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// appendHeader appends the header of a message with a payload of size bytes.
func appendHeader(b []byte, kind, flags uint16, seq uint32, size int) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+size))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	return binary.NativeEndian.AppendUint32(b, 0)
}
