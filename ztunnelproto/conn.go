package ztunnelproto

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
)

// MaxRecord is the length of the longest record either side accepts.
const MaxRecord = 1024

// Conn carries records. One goroutine may send while another receives.
type Conn struct {
	c     *net.UnixConn
	close func() error
}

// NewConn takes ownership of c, whose type must be SOCK_SEQPACKET ("unixpacket").
func NewConn(c *net.UnixConn) *Conn {
	return &Conn{c: c, close: sync.OnceValue(c.Close)}
}

// ErrUnsent is the kind of error of a Send that failed for its message or file
// alone: nothing was sent, and the connection is as good as before.
var ErrUnsent = errors.New("not sent")

type unsentError struct{ error }

func (e unsentError) Unwrap() []error { return []error{e.error, ErrUnsent} }

// Send writes m as one record, with f attached unless it is nil. f stays the
// caller's, who may close it when Send returns.
func (c *Conn) Send(m proto.Message, f *os.File) error {
	b, err := encode(m)
	if err != nil {
		return unsentError{err}
	}
	if f == nil {
		return c.write(b, nil)
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return unsentError{fmt.Errorf("cannot send %s: %s: %w", nameOf(m), f.Name(), err)}
	}
	// Inside Control the number cannot become another file's, even if f is closed.
	var sendErr error
	if err := raw.Control(func(fd uintptr) { sendErr = c.write(b, unix.UnixRights(int(fd))) }); err != nil {
		return unsentError{fmt.Errorf("cannot send %s: %s: %w", nameOf(m), f.Name(), err)}
	}
	return sendErr
}

func (c *Conn) write(b, control []byte) error {
	n, nc, err := c.c.WriteMsgUnix(b, control, nil)
	if err != nil {
		return fmt.Errorf("cannot send record: %w", withoutAddress(err))
	}
	if n != len(b) || nc != len(control) {
		return fmt.Errorf("cannot send record: %d of %d bytes were written", n, len(b))
	}
	return nil
}

func encode(m proto.Message) ([]byte, error) {
	b, err := proto.Marshal(m)
	switch {
	case err != nil:
		return nil, fmt.Errorf("cannot encode %s: %w", nameOf(m), err)
	case len(b) == 0:
		return nil, fmt.Errorf("cannot send an empty %s: the peer would take it for the end", nameOf(m))
	case len(b) > MaxRecord:
		return nil, fmt.Errorf("cannot send %s: %d bytes, the longest record is %d", nameOf(m), len(b), MaxRecord)
	}
	return b, nil
}

// Receive reads one record into m. The file that came with it, if any, is the
// caller's to close; after an error there is none. The error is io.EOF when the
// peer has closed, or sent an empty record, which cannot be told apart. After
// any other error the connection is of no more use, except after a deadline.
func (c *Conn) Receive(m proto.Message) (*os.File, error) {
	// Space for one descriptor is, for alignment, space for two. The kernel
	// discards what does not fit and says so.
	b, control := make([]byte, MaxRecord), make([]byte, unix.CmsgSpace(4))
	n, nc, flags, _, err := c.c.ReadMsgUnix(b, control)
	files, controlErr := parseFiles(control[:nc])
	switch {
	case n == 0 && (err == nil || errors.Is(err, io.EOF)):
		err = io.EOF
	case err != nil:
		err = fmt.Errorf("cannot receive record: %w", withoutAddress(err))
	default:
		err = errors.Join(checkRecord(flags, len(files)), controlErr)
	}
	if err == nil {
		err = decode(b[:n], m)
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	if len(files) == 0 {
		return nil, nil
	}
	return files[0], nil
}

func checkRecord(flags, files int) error {
	switch {
	case flags&unix.MSG_TRUNC != 0:
		return fmt.Errorf("cannot receive record: longer than %d bytes", MaxRecord)
	case flags&unix.MSG_CTRUNC != 0:
		return errors.New("cannot receive record: file descriptors were lost: too many came with it, or this process may not open any more (see ulimit -n)")
	case files > 1:
		return fmt.Errorf("cannot receive record: %d file descriptors came with it, at most one is allowed", files)
	}
	return nil
}

func decode(b []byte, m proto.Message) error {
	if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, m); err != nil {
		return fmt.Errorf("cannot decode %s: %w", nameOf(m), err)
	}
	return nil
}

// parseFiles makes a file of every descriptor in control, also when it returns
// an error: the kernel has opened them in this process already.
func parseFiles(control []byte) ([]*os.File, error) {
	if len(control) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return nil, fmt.Errorf("cannot parse control messages: %w", err)
	}
	var files []*os.File
	var errs []error
	for _, msg := range messages {
		fds, err := unix.ParseUnixRights(&msg)
		if err != nil {
			errs = append(errs, fmt.Errorf("cannot parse control message of type %d: %w", msg.Header.Type, err))
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), fmt.Sprintf("received fd %d", fd)))
		}
	}
	return files, errors.Join(errs...)
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // read-only to us: nothing to lose
	}
}

func nameOf(m proto.Message) string { return string(m.ProtoReflect().Descriptor().Name()) }

// Close may be called at any time, more than once; it ends a Send or Receive in
// progress.
func (c *Conn) Close() error { return c.close() }

// SetDeadline bounds Send and Receive, those in progress included.
func (c *Conn) SetDeadline(t time.Time) error { return c.c.SetDeadline(t) }

// SetReadDeadline bounds Receive.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.c.SetReadDeadline(t) }

// SetWriteDeadline bounds Send.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.c.SetWriteDeadline(t) }

// Credentials say who a peer was when it dialled or listened.
type Credentials struct {
	PID      int32 // 0: not visible from this PID namespace
	UID, GID uint32
}

// Peer asks the kernel for the other end's credentials.
func (c *Conn) Peer() (Credentials, error) {
	var cred *unix.Ucred
	err := c.control(func(fd int) (err error) {
		cred, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	if err != nil {
		return Credentials{}, fmt.Errorf("cannot read peer credentials: %w", err)
	}
	return Credentials{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid}, nil
}

// Ready says whether a record, or the end, is there to be received. Responses
// carry no id: one that is there before its request is sent answers nothing.
func (c *Conn) Ready() (bool, error) {
	var n int
	err := c.control(func(fd int) (err error) {
		n, err = poll(fd, unix.POLLIN)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("cannot poll connection: %w", err)
	}
	return n > 0, nil
}

// WaitHangup waits until the peer has closed, and leaves what it sent before to be
// received. It ends with os.ErrDeadlineExceeded at the read deadline, which has to
// be set before.
func (c *Conn) WaitHangup() error {
	raw, err := c.c.SyscallConn()
	if err != nil {
		return withoutAddress(err)
	}
	var pollErr error
	if err := raw.Read(func(fd uintptr) bool {
		var n int
		n, pollErr = poll(int(fd), unix.POLLRDHUP)
		return n > 0 || pollErr != nil
	}); err != nil {
		return fmt.Errorf("cannot wait for the peer: %w", withoutAddress(err))
	}
	return pollErr
}

// poll asks for events that are there now. A signal may come in between, as the Go
// runtime sends them to its threads.
func poll(fd int, events int16) (n int, err error) {
	for {
		n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: events}}, 0)
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

func (c *Conn) control(fn func(fd int) error) error {
	raw, err := c.c.SyscallConn()
	if err != nil {
		return withoutAddress(err)
	}
	var fnErr error
	if err := raw.Control(func(fd uintptr) { fnErr = fn(int(fd)) }); err != nil {
		return withoutAddress(err)
	}
	return fnErr
}

// NewResponse is the answer to a request: success if text is empty, else a nack
// whose text is made to fit a record.
func NewResponse(text string) *WorkloadResponse {
	// Tag and length around the text, twice: the Ack and its error.
	const room = MaxRecord - 2*(1+2)
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) > room {
		cut := room
		for !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	return &WorkloadResponse{Payload: &WorkloadResponse_Ack{Ack: &Ack{Error: text}}}
}
