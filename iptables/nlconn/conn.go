// Package nlconn keeps a netlink socket in a pod's network namespace.
//
// A kept socket costs a request a few microseconds, where one that is opened for
// each request costs a change of namespace as well. It also keeps the namespace
// alive: its owner closes it together with the namespace's Handle, just before.
//
// No request waits: the kernel handles it inside the call that sends it, and the
// rest of a dump inside the calls that read it, so that all there is to an answer
// has come when there is nothing left to read. Where the answer has an end of its own
// that is not waited for.
//
// # Failures it survives
//
//   - The socket is in another namespace than it should be: it is compared with the
//     Handle before anything is sent.
//   - A process in the pod that sends to our socket, and could tell us whatever it
//     liked: the kernel refuses it, since the socket is connected to the kernel.
//   - A request is given up half-way (its context ended, its caller had seen enough
//     of a dump without an end, its answer was lost or made no sense): the next one
//     gets a new socket.
//   - Lengths in a reply that lie, a reply that was cut off, or none.
//   - A dump that was interrupted by changes ([ErrInterrupted]) or lost for want of
//     memory (ENOBUFS): both say so, neither passes for a complete answer.
//   - One of several requests that belong together fails: none is done ([Conn.Batch]).
//     One of several that have nothing to do with each other: the others are answered
//     ([Conn.Gets]).
package nlconn

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// ErrInterrupted says that what was dumped changed meanwhile: the dump may lack
// something that was there all the time, or hold something twice.
var ErrInterrupted = errors.New("the dump was interrupted by a change")

// A Conn is a netlink socket in a network namespace. Its methods may be called from
// several goroutines; requests wait for each other.
type Conn struct {
	namespace *netns.Handle // borrowed
	protocol  int

	mu     sync.Mutex
	fd     int // -1 once closed
	seq    uint32
	unread bool // answers to a request that was given up may be left
}

// Open opens a socket of a netlink protocol, as unix.NETLINK_ROUTE, in a namespace.
// It borrows the Handle, which has to stay open for as long as the Conn.
func Open(h *netns.Handle, protocol int) (*Conn, error) {
	fd, err := Socket(h, protocol)
	if err != nil {
		return nil, err
	}
	return &Conn{namespace: h, protocol: protocol, fd: fd}, nil
}

// Socket opens a socket as Open does, to hear notifications on: the number is the
// caller's, who closes it. Only the kernel can send to it, except to a multicast group.
func Socket(h *netns.Handle, protocol int) (int, error) {
	fd := -1
	err := h.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
		return err
	})
	if err == nil {
		if err = prepare(fd, h.ID()); err == nil {
			return fd, nil
		}
		err = errors.Join(err, unix.Close(fd))
	}
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		err = fmt.Errorf("%w: the kernel has no %s", err, name(protocol))
	}
	return -1, fmt.Errorf("cannot open a socket for %s in network namespace %s: %w", name(protocol), h.ID(), err)
}

func name(protocol int) string {
	switch protocol {
	case unix.NETLINK_ROUTE:
		return "rtnetlink"
	case unix.NETLINK_NETFILTER:
		return "netfilter (module nfnetlink)"
	case unix.NETLINK_SOCK_DIAG:
		return "sock_diag"
	}
	return fmt.Sprintf("netlink protocol %d", protocol)
}

// prepare checks where a new socket is and sets it up.
func prepare(fd int, want netns.ID) error {
	got, err := netns.SocketID(fd)
	if err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("the socket is in network namespace %s, not %s: nothing was sent", got, want)
	}
	if err := unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("cannot connect to the kernel: %w", err)
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

// Port is the number that the kernel's notifications of a change give the socket that
// asked for it. It is another one after a request that was given up.
func (c *Conn) Port() (uint32, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	address, err := unix.Getsockname(c.fd)
	if err != nil {
		return 0, fmt.Errorf("cannot read the number of a netlink socket: %w", err)
	}
	return address.(*unix.SockaddrNetlink).Pid, nil
}

// Close gives the socket up. It is idempotent.
func (c *Conn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return nil
	}
	fd := c.fd
	c.fd = -1
	return unix.Close(fd)
}

// Request sends a request and hands each reply to each, which must not keep it. It
// returns when the kernel has answered all of it, or at the first error of each's. An
// error of the kernel's is the unix.Errno, with the kernel's explanation around it.
//
// flags are NLM_F_DUMP for a dump and NLM_F_ACK, with others, for a change.
func (c *Conn) Request(ctx context.Context, kind, flags uint16, payload []byte, each func(reply []byte) error) error {
	a := answer{each: each, single: flags&(unix.NLM_F_DUMP|unix.NLM_F_ACK) == 0}
	err := c.exchange(ctx, func(b []byte) []byte {
		a.seq = c.seq
		return c.append(b, kind, flags, payload)
	}, 1, func(m message) error {
		if m.flags&unix.NLM_F_MULTI != 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		return a.take(m)
	}, func() bool { return a.complete })
	if err != nil {
		return err
	}
	return a.outcome()
}

// List lists what the replies to a dump stand for, without those that parse does not
// want. It reads again, twice, if there are changes meanwhile, and returns what it has
// with an error.
func List[T any](ctx context.Context, c *Conn, kind uint16, payload []byte, parse func(reply []byte) (thing T, wanted bool, err error)) ([]T, error) {
	var all []T
	var err error
	for range 3 {
		all = nil
		err = c.Request(ctx, kind, unix.NLM_F_DUMP, payload, func(reply []byte) error {
			thing, wanted, err := parse(reply)
			if err == nil && wanted {
				all = append(all, thing)
			}
			return err
		})
		if !errors.Is(err, ErrInterrupted) {
			break
		}
	}
	return all, err
}

// exchange sends what write appends to a buffer, and has take read the answers, so many
// datagrams at once, until it fails, they are complete or there are no more.
func (c *Conn) exchange(ctx context.Context, write func([]byte) []byte, atOnce int, take func(message) error, complete func() bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(ctx.Err(), c.renew()); err != nil {
		return err
	}
	b := buffers.Get().(*buffer)
	defer buffers.Put(b)
	c.unread = true
	if err := send(c.fd, write(b.bytes[:0])); err != nil {
		return err
	}
	for !complete() {
		more, err := b.receive(c.fd, atOnce, func(datagram []byte) error { return split(datagram, take) })
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	c.unread = false
	return nil
}

// renew exchanges a socket that answers may be left on. Reading them would take as
// long as the pod likes, and until they are read the kernel begins no other dump.
func (c *Conn) renew() error {
	if c.fd < 0 {
		return fmt.Errorf("socket for %s in network namespace %s: %w", name(c.protocol), c.namespace.ID(), os.ErrClosed)
	}
	if !c.unread {
		return nil
	}
	fd, err := Socket(c.namespace, c.protocol)
	if err != nil {
		return err
	}
	old := c.fd
	c.fd, c.unread = fd, false
	return unix.Close(old)
}

// append appends a message under the next number.
func (c *Conn) append(b []byte, kind, flags uint16, payload []byte) []byte {
	b = appendHeader(b, kind, flags|unix.NLM_F_REQUEST, c.seq, len(payload))
	c.seq++
	return append(b, payload...)
}

// appendHeader appends the header of a message with a payload of size bytes.
func appendHeader(b []byte, kind, flags uint16, seq uint32, size int) []byte {
	b = binary.NativeEndian.AppendUint32(b, uint32(unix.SizeofNlMsghdr+size))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	return binary.NativeEndian.AppendUint32(b, 0)
}
