package nlconn

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A buffer is what is read into. It is kept, and used again by whoever comes next.
type buffer struct {
	bytes [bufferSize]byte
	// For each of the datagrams that are read at once.
	slots   [mostAtOnce]slot
	parts   [mostAtOnce]unix.Iovec // of the bytes
	senders [mostAtOnce]unix.RawSockaddrNetlink
}

const (
	bufferSize = 64 << 10 // more than the 32 KiB that the kernel puts into one datagram
	mostAtOnce = 16
)

// A slot is a struct mmsghdr of recvmmsg(2).
type slot struct {
	header unix.Msghdr
	size   uint32
}

var buffers = sync.Pool{New: func() any { return new(buffer) }}

// receive reads the datagrams that are there, so many at most, and has take read each,
// until it fails. It returns false if there were none.
func (b *buffer) receive(fd, atOnce int, take func(datagram []byte) error) (bool, error) {
	count := min(atOnce, mostAtOnce)
	room := len(b.bytes) / count
	for i := range count {
		b.parts[i].Base = &b.bytes[i*room]
		b.parts[i].SetLen(room)
		h := &b.slots[i].header
		h.Name, h.Namelen, h.Iov = (*byte)(unsafe.Pointer(&b.senders[i])), unix.SizeofSockaddrNetlink, &b.parts[i]
		h.SetIovlen(1)
	}
	n, err := recvmmsg(fd, b.slots[:count])
	switch {
	case errors.Is(err, unix.EAGAIN):
		return false, nil
	case errors.Is(err, unix.ENOBUFS):
		return false, fmt.Errorf("the kernel's answer was lost: %w", err)
	case err != nil:
		return false, fmt.Errorf("cannot read the kernel's answer: %w", err)
	}
	for i := range n {
		if b.senders[i].Pid != 0 {
			continue // not the kernel; a connected socket gets no such datagram
		}
		size := int(b.slots[i].size)
		if size > room {
			return true, fmt.Errorf("the kernel's answer has %d bytes, more than %d", size, room)
		}
		if err := take(b.bytes[i*room:][:size]); err != nil {
			return true, err
		}
	}
	return true, nil
}

func recvmmsg(fd int, slots []slot) (int, error) {
	for {
		n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&slots[0])), uintptr(len(slots)),
			unix.MSG_DONTWAIT|unix.MSG_TRUNC, 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

func send(fd int, b []byte) error {
	for {
		switch err := unix.Sendto(fd, b, 0, nil); {
		case err == nil:
			return nil
		case !errors.Is(err, unix.EINTR):
			return fmt.Errorf("cannot send %d bytes to the kernel: %w", len(b), err)
		}
	}
}
