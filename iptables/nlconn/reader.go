package nlconn

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A message is one that the kernel sends.
type message struct {
	kind, flags uint16
	seq         uint32
	payload     []byte
}

// split calls take with the messages of a datagram, until it fails. It fails itself
// if they make no sense.
func split(datagram []byte, take func(message) error) error {
	for len(datagram) > 0 {
		if len(datagram) < unix.SizeofNlMsghdr {
			return fmt.Errorf("netlink reply ends in the middle of a header (%d bytes)", len(datagram))
		}
		size := int(binary.NativeEndian.Uint32(datagram))
		if size < unix.SizeofNlMsghdr || size > len(datagram) {
			return fmt.Errorf("netlink reply says it has %d bytes, of %d", size, len(datagram))
		}
		if err := take(message{
			kind:    binary.NativeEndian.Uint16(datagram[4:]),
			flags:   binary.NativeEndian.Uint16(datagram[6:]),
			seq:     binary.NativeEndian.Uint32(datagram[8:]),
			payload: datagram[unix.SizeofNlMsghdr:size],
		}); err != nil {
			return err
		}
		datagram = datagram[min(align(size), len(datagram)):]
	}
	return nil
}

var errNoAnswer = errors.New("the kernel did not answer")

// An answer is what the kernel says to one request.
type answer struct {
	seq    uint32
	single bool // it is one reply, or an error: no end is announced
	each   func([]byte) error

	complete, interrupted bool
	failure               error
}

// take fails if each does.
func (a *answer) take(m message) error {
	if m.seq != a.seq || m.kind == unix.NLMSG_NOOP || a.complete {
		return nil
	}
	a.interrupted = a.interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
	if m.kind == unix.NLMSG_ERROR || m.kind == unix.NLMSG_DONE {
		a.complete = true
		a.failure = m.failure()
		return nil
	}
	a.complete = a.single
	return a.each(m.payload)
}

func (a *answer) outcome() error {
	switch {
	case a.failure == nil && !a.complete:
		return errNoAnswer
	case errors.Is(a.failure, unix.EINTR), a.failure == nil && a.interrupted:
		return ErrInterrupted
	}
	return a.failure
}

// failure is the error in a message of kind NLMSG_ERROR or NLMSG_DONE, nil if it is
// an acknowledgement.
func (m message) failure() error {
	if m.kind == unix.NLMSG_DONE && len(m.payload) == 0 {
		return nil
	}
	if len(m.payload) < 4 {
		return fmt.Errorf("netlink error message of %d bytes", len(m.payload))
	}
	code := int32(binary.NativeEndian.Uint32(m.payload))
	if code == 0 {
		return nil
	}
	if code > 0 {
		return fmt.Errorf("netlink error message with code %d", code)
	}
	err := unix.Errno(-code)
	if words := m.words(); words != "" {
		return fmt.Errorf("%w (%s)", err, words)
	}
	return err
}

// words is what the kernel says about an error besides its number.
func (m message) words() string {
	const code = 4
	if m.kind != unix.NLMSG_ERROR || m.flags&unix.NLM_F_ACK_TLVS == 0 || len(m.payload) < code+unix.SizeofNlMsghdr {
		return ""
	}
	echoed := unix.SizeofNlMsghdr
	if m.flags&unix.NLM_F_CAPPED == 0 { // not the request's header alone
		echoed = align(int(binary.NativeEndian.Uint32(m.payload[code:])))
	}
	if code+echoed > len(m.payload) {
		return ""
	}
	attrs, err := ParseAttrs(m.payload[code+echoed:])
	if err != nil {
		return "" // the number says enough
	}
	return attrs.Text(unix.NLMSGERR_ATTR_MSG)
}
