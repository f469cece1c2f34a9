package nft

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// errMotion means that what was read is not one state of the table: it was changed meanwhile.
var errMotion = errors.New("the ruleset was changed while it was read")

// socket speaks nfnetlink with the kernel of the network namespace it was opened in.
//
// It never waits: the kernel handles a request inside the call that sends it, so that the answer is there when the call
// returns. And it is connected to the kernel, so that nobody else can send to it: a process with CAP_NET_ADMIN in the pod
// could otherwise tell us whatever it liked about the pod's rules.
type socket struct {
	fd  int
	seq uint32
}

// openSocket opens a socket in the calling thread's namespace.
func openSocket() (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, fmt.Errorf("the kernel has no nfnetlink (module nfnetlink): %w", err)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open a netfilter socket: %w", err)
	}
	s := &socket{fd: fd}
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	for _, step := range []func() error{
		func() error { return unix.Bind(fd, kernel) }, // to a number the kernel chooses
		func() error { return unix.Connect(fd, kernel) },
		func() error { return unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1) },
		func() error { return unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1) },
	} {
		if err := step(); err != nil {
			return nil, errors.Join(fmt.Errorf("cannot set up a netfilter socket: %w", err), s.close())
		}
	}
	return s, nil
}

func (s *socket) close() error { return unix.Close(s.fd) }

// message is one nfnetlink message.
type message struct {
	kind       uint16 // subsystem and type, as in the header
	flags      uint16
	seq        uint32
	attributes []byte // what follows the nfgenmsg; of an error or end the whole payload
}

const (
	nlHeader  = unix.SizeofNlMsghdr
	nfHeader  = 4 // struct nfgenmsg
	subsystem = unix.NFNL_SUBSYS_NFTABLES << 8
)

// request is a message of the nf_tables subsystem, for tables of family inet.
func request(kind, flags uint16, attributes []byte) message {
	return message{kind: subsystem | kind, flags: unix.NLM_F_REQUEST | flags, attributes: attributes}
}

// appendTo writes the message behind b, under the socket's next sequence number.
func (s *socket) appendTo(b []byte, m message, family uint8, resource uint16) []byte {
	s.seq++
	b = binary.NativeEndian.AppendUint32(b, uint32(nlHeader+nfHeader+len(m.attributes)))
	b = binary.NativeEndian.AppendUint16(b, m.kind)
	b = binary.NativeEndian.AppendUint16(b, m.flags)
	b = binary.NativeEndian.AppendUint32(b, s.seq)
	b = binary.NativeEndian.AppendUint32(b, 0)
	b = append(b, family, unix.NFNETLINK_V0)
	b = binary.BigEndian.AppendUint16(b, resource)
	return append(b, m.attributes...) // attributes are padded to four bytes
}

// transaction sends messages as one batch: the kernel does all of them or none. The int is the index of the message that the
// error is about, or -1 if it is about all of them.
func (s *socket) transaction(messages []message) (int, error) {
	begin := message{kind: unix.NFNL_MSG_BATCH_BEGIN, flags: unix.NLM_F_REQUEST}
	end := message{kind: unix.NFNL_MSG_BATCH_END, flags: unix.NLM_F_REQUEST}
	// One acknowledgement is enough: a message that fails is always answered.
	messages[len(messages)-1].flags |= unix.NLM_F_ACK

	batch := s.appendTo(nil, begin, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	first := s.seq + 1
	for _, m := range messages {
		batch = s.appendTo(batch, m, unix.NFPROTO_INET, 0)
	}
	batch = s.appendTo(batch, end, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	if err := s.send(batch); err != nil {
		return -1, err
	}
	var (
		confirmed bool
		failure   error
		about     int
	)
	err := s.drain(func(m message) {
		i := int(int32(m.seq - first)) // -1 is begin, len(messages) end
		if m.kind != unix.NLMSG_ERROR || i < -1 || i > len(messages) {
			return
		}
		switch err := m.failure(); {
		case err == nil:
			confirmed = confirmed || i == len(messages)-1
		case failure == nil: // the first one is the cause of the others
			failure, about = err, i
		}
	})
	switch {
	case failure != nil && about < len(messages):
		return about, failure
	case failure != nil:
		return -1, failure
	case err != nil:
		return -1, err
	case !confirmed:
		return -1, errors.New("the kernel did not confirm the transaction")
	}
	return -1, nil
}

// get sends a request that has one answer, and returns its attributes.
func (s *socket) get(m message) ([]byte, error) {
	if err := s.send(s.appendTo(nil, m, unix.NFPROTO_INET, 0)); err != nil {
		return nil, err
	}
	var (
		answer  []byte
		failure error
		found   bool
	)
	if err := s.drain(func(m message) {
		switch {
		case m.seq != s.seq:
		case m.kind == unix.NLMSG_ERROR:
			failure = m.failure()
		default:
			answer, found = m.attributes, true
		}
	}); err != nil {
		return nil, err
	}
	if failure == nil && !found {
		failure = errors.New("the kernel did not answer")
	}
	return answer, failure
}

// errEnough is returned by a dump's callback that has seen enough.
var errEnough = errors.New("enough")

// dump sends a request that has any number of answers and calls fn with the attributes of each. After an error other
// than errMotion the socket is useless, since the kernel goes on with the dump: it must be closed.
func (s *socket) dump(m message, fn func(attributes []byte) error) error {
	m.flags |= unix.NLM_F_DUMP
	if err := s.send(s.appendTo(nil, m, unix.NFPROTO_INET, 0)); err != nil {
		return err
	}
	buffer := make([]byte, receiveBuffer)
	interrupted := false
	for {
		messages, err := s.receive(buffer)
		if err != nil {
			return err
		}
		for _, m := range messages {
			if m.seq != s.seq {
				continue
			}
			interrupted = interrupted || m.flags&unix.NLM_F_DUMP_INTR != 0
			switch m.kind {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				if err := m.failure(); err != nil && !errors.Is(err, unix.EINTR) {
					return err
				} else if err != nil || interrupted {
					return errMotion
				}
				return nil
			}
			if err := fn(m.attributes); err != nil {
				return err
			}
		}
	}
}

// receiveBuffer is as large as the kernel makes one part of a dump.
const receiveBuffer = 32 << 10

func (s *socket) send(b []byte) error {
	for {
		err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("cannot send %d bytes to the kernel: %w", len(b), err)
		}
	}
}

// drain calls fn with every message that is there.
func (s *socket) drain(fn func(message)) error {
	buffer := make([]byte, answerBuffer)
	for {
		messages, err := s.receive(buffer)
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, m := range messages {
			m.attributes = append([]byte(nil), m.attributes...) // the buffer is used again
			fn(m)
		}
	}
}

// answerBuffer is enough for one answer: a table, a chain, a generation, an error.
const answerBuffer = 4 << 10

// receive returns the messages of the next datagram, which live in buffer.
func (s *socket) receive(buffer []byte) ([]message, error) {
	for {
		n, from, err := unix.Recvfrom(s.fd, buffer, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS):
			return nil, fmt.Errorf("answers of the kernel were lost: %w", err)
		case err != nil:
			return nil, fmt.Errorf("cannot read the kernel's answer: %w", err)
		case n > len(buffer):
			return nil, fmt.Errorf("the kernel's answer has %d bytes, more than %d", n, len(buffer))
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			continue // not the kernel; a connected socket gets no such message
		}
		return parseMessages(buffer[:n])
	}
}

func parseMessages(b []byte) ([]message, error) {
	var messages []message
	for len(b) >= nlHeader {
		size := int(binary.NativeEndian.Uint32(b))
		m := message{
			kind:  binary.NativeEndian.Uint16(b[4:]),
			flags: binary.NativeEndian.Uint16(b[6:]),
			seq:   binary.NativeEndian.Uint32(b[8:]),
		}
		header := nlHeader
		if m.kind != unix.NLMSG_ERROR && m.kind != unix.NLMSG_DONE {
			header += nfHeader
		}
		if size < header || size > len(b) {
			return nil, fmt.Errorf("malformed netlink message: size %d of %d", size, len(b))
		}
		m.attributes = b[header:size]
		messages = append(messages, m)
		b = b[min(len(b), (size+3)&^3):]
	}
	return messages, nil
}

// failure is the error in a message of kind error or done.
func (m message) failure() error {
	const code = 4
	if len(m.attributes) < code {
		return nil
	}
	errno := int32(binary.NativeEndian.Uint32(m.attributes))
	if errno >= 0 {
		return nil
	}
	return &kernelError{errno: unix.Errno(-errno), words: m.words()}
}

// words is what the kernel says about an error besides its number.
func (m message) words() string {
	const code = 4
	tail := code + nlHeader // with NETLINK_CAP_ACK the header of the request, and no more of it
	if m.kind != unix.NLMSG_ERROR || m.flags&unix.NLM_F_ACK_TLVS == 0 || len(m.attributes) < tail {
		return ""
	}
	if m.flags&unix.NLM_F_CAPPED == 0 {
		tail = code + int(binary.NativeEndian.Uint32(m.attributes[code:]))
	}
	if tail > len(m.attributes) {
		return ""
	}
	attributes, err := decode(m.attributes[(tail+3)&^3:])
	if err != nil {
		return ""
	}
	return attributes.text(unix.NLMSGERR_ATTR_MSG)
}

// kernelError is the kernel's answer that it will not.
type kernelError struct {
	errno unix.Errno
	words string
}

func (e *kernelError) Error() string {
	if e.words != "" {
		return fmt.Sprintf("%s (%v)", e.words, e.errno)
	}
	return e.errno.Error()
}

func (e *kernelError) Unwrap() error { return e.errno }
