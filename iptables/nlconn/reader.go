package nlconn

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// A reader takes the datagrams that answer one request.
type reader struct {
	seq    uint32
	single bool // one reply, and no acknowledgement, is the whole answer
	each   func([]byte) error

	done bool
	err  error // the request's outcome, once done
}

// read takes the messages of one datagram. It fails if they make no sense.
func (r *reader) read(datagram []byte) error {
	for len(datagram) > 0 && !r.done {
		if len(datagram) < unix.SizeofNlMsghdr {
			return fmt.Errorf("netlink reply ends in the middle of a header (%d bytes)", len(datagram))
		}
		size := int(binary.NativeEndian.Uint32(datagram))
		if size < unix.SizeofNlMsghdr || size > len(datagram) {
			return fmt.Errorf("netlink reply says it has %d bytes, of %d", size, len(datagram))
		}
		kind := binary.NativeEndian.Uint16(datagram[4:])
		flags := binary.NativeEndian.Uint16(datagram[6:])
		seq := binary.NativeEndian.Uint32(datagram[8:])
		if seq == r.seq {
			r.message(kind, flags, datagram[unix.SizeofNlMsghdr:size])
		}
		datagram = datagram[min(align(size), len(datagram)):]
	}
	return nil
}

func (r *reader) message(kind, flags uint16, payload []byte) {
	if flags&unix.NLM_F_DUMP_INTR != 0 && !errors.Is(r.err, ErrInterrupted) {
		r.err = errors.Join(r.err, ErrInterrupted)
	}
	switch kind {
	case unix.NLMSG_NOOP:
	case unix.NLMSG_ERROR:
		r.done = true
		r.err = errors.Join(r.err, kernelError(payload, flags))
	case unix.NLMSG_DONE:
		r.done = true
		if len(payload) >= 4 { // a dump that failed half-way ends with its error
			r.err = errors.Join(r.err, kernelError(payload, 0))
		}
	default:
		if r.err == nil || errors.Is(r.err, ErrInterrupted) {
			r.err = errors.Join(r.err, r.each(payload))
		}
		r.done = r.single && flags&unix.NLM_F_MULTI == 0
	}
}

// kernelError is the error in an NLMSG_ERROR, nil if that is an acknowledgement.
func kernelError(payload []byte, flags uint16) error {
	if len(payload) < 4 {
		return fmt.Errorf("netlink error message of %d bytes", len(payload))
	}
	code := int32(binary.NativeEndian.Uint32(payload))
	if code == 0 {
		return nil
	}
	if code > 0 {
		return fmt.Errorf("netlink error message with code %d", code)
	}
	err := unix.Errno(-code)
	if text := explanation(payload, flags); text != "" {
		return fmt.Errorf("%w (%s)", err, text)
	}
	return err
}

// explanation is the text the kernel adds to some errors.
func explanation(payload []byte, flags uint16) string {
	const (
		ackTLVs = 0x200 // NLM_F_ACK_TLVS
		capped  = 0x100 // NLM_F_CAPPED: without the request's payload
		text    = 1     // NLMSGERR_ATTR_MSG
	)
	if flags&ackTLVs == 0 || len(payload) < 4+unix.SizeofNlMsghdr {
		return ""
	}
	echoed := unix.SizeofNlMsghdr
	if flags&capped == 0 {
		echoed = align(int(binary.NativeEndian.Uint32(payload[4:])))
	}
	if echoed > len(payload)-4 {
		return ""
	}
	attrs, err := ParseAttrs(payload[4+echoed:])
	if err != nil {
		return ""
	}
	for _, a := range attrs {
		if a.Kind == text {
			return unix.ByteSliceToString(a.Value)
		}
	}
	return ""
}
