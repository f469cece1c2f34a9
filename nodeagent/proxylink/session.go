package proxylink

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// SessionState is how far a session has come.
type SessionState string

// The states of a session, in order.
const (
	Held     SessionState = "held"     // kept waiting: connections of its process ended badly
	Hello    SessionState = "hello"    // connected, and has not said hello
	Snapshot SessionState = "snapshot" // has not acked its snapshot: it may wait for Open
	Synced   SessionState = "synced"
)

var (
	errClosed = errors.New("the proxy closed the connection")
	errFlood  = errors.New("too many connections were open that had not said hello")
)

// session is one process's connection. One goroutine runs it; the fields in the
// third block are the server's lock's.
type session struct {
	id     uint64
	peer   ztunnelproto.Credentials
	conn   *ztunnelproto.Conn
	server *Server
	log    *slog.Logger

	until time.Time // it is held
	why   string    // it is

	state   SessionState
	since   time.Time // of state
	asked   *request  // not answered yet; nil: none is under way
	askedAt time.Time
	records map[string]*record
	todo    queue
	last    queue // what is suspect: to do when there is nothing else to do
	idle    bool  // waits in idleReceive, until its read deadline wakes it
	cut     bool  // closed, since there are too many like it
}

// connected says whether a proxy is there, and not just somebody who dialled.
func (c *session) connected() bool { return c.state == Snapshot || c.state == Synced }

// enter moves the session on to state.
func (c *session) enter(state SessionState) {
	c.server.metrics.left(c.state)
	c.server.metrics.entered(state)
	c.state, c.since = state, time.Now()
}

func (c *session) sleep() {
	c.idle = true
	_ = c.conn.SetReadDeadline(time.Time{}) // fails if closed: Receive says so
}

func (c *session) wake() {
	if c.idle {
		c.idle = false
		_ = c.conn.SetReadDeadline(time.Unix(1, 0)) // fails if closed: nobody waits
	}
}

// run does what the session has to do until it ends, and returns why.
func (c *session) run() error {
	if err := c.hold(); err != nil {
		return err
	}
	if err := c.hello(); err != nil {
		return err
	}
	c.server.mu.Lock()
	c.helloSaid()
	c.server.mu.Unlock()
	c.log.Info("proxy connected")
	c.server.cfg.Changed("")
	for {
		c.server.mu.Lock()
		r := c.next()
		c.asked, c.askedAt = r, time.Now()
		c.server.mu.Unlock()
		var err error
		if r == nil {
			err = c.idleReceive()
		} else {
			err = c.do(r)
		}
		if err != nil {
			return err
		}
	}
}

// hold keeps a process waiting that has behaved badly, unless it goes.
func (c *session) hold() error {
	if c.until.IsZero() {
		return nil
	}
	if err := c.conn.SetReadDeadline(c.until); err != nil {
		return ended(endError, err)
	}
	switch err := c.conn.WaitHangup(); {
	case err == nil:
		return ended(endClosed, errClosed)
	case !errors.Is(err, os.ErrDeadlineExceeded):
		return ended(endError, err)
	}
	c.server.mu.Lock()
	defer c.server.mu.Unlock()
	c.enter(Hello)
	return nil
}

func (c *session) hello() error {
	if err := c.conn.SetReadDeadline(time.Now().Add(c.server.cfg.HelloTimeout)); err != nil {
		return ended(endError, err)
	}
	var hello ztunnelproto.ZdsHello
	if err := c.receive(&hello); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return ended(endHelloTimeout, fmt.Errorf("no hello within %v", c.server.cfg.HelloTimeout))
		}
		return err
	}
	if hello.Version != ztunnelproto.Version_V1 {
		return ended(endProtocol, fmt.Errorf("the proxy speaks version %d, this agent speaks version 1", hello.Version))
	}
	return nil
}

// receive reads a record that must come without a file.
func (c *session) receive(m proto.Message) error {
	f, err := c.conn.Receive(m)
	switch {
	case f != nil:
		_ = f.Close() // not ours, not wanted
		return ended(endProtocol, errors.New("a file descriptor came with the record"))
	case errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET):
		return ended(endClosed, errClosed)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return err
	case err != nil:
		return ended(endError, err)
	}
	return nil
}

// idleReceive waits to be woken.
func (c *session) idleReceive() error {
	if err := c.receiveUnasked(); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// receiveUnasked receives when nothing but the end can rightly arrive.
func (c *session) receiveUnasked() error {
	if err := c.receive(&ztunnelproto.WorkloadResponse{}); err != nil {
		return err
	}
	return ended(endProtocol, errors.New("a response came without a request"))
}

// do sends r and records the answer.
func (c *session) do(r *request) error {
	if r.decides {
		c.server.cfg.Changed(r.uid) // from Queued to Waiting
	}
	start := time.Now()
	state, text, err := c.exchange(r)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.server.mu.Lock()
			suspect := c.timedOut(r)
			c.server.mu.Unlock()
			if suspect {
				c.log.Warn("two connections have ended for want of an answer to this request: proxies are told of other workloads first", "request", r.String())
			}
			err = ended(endAckTimeout, fmt.Errorf("no answer to %s within %v", r, c.server.cfg.AckTimeout))
		}
		return err
	}
	c.server.metrics.answered(r.kind, state, time.Since(start))
	if state != Acked {
		c.log.Warn("workload not accepted by proxy", "request", r.String(), "state", state, "text", text)
	}
	if state == Nacked && r.kind != kindAdd {
		// There is no telling what the proxy serves now. A new snapshot settles it.
		return ended(endProtocol, fmt.Errorf("the proxy refused %s: %s", r, text))
	}
	c.server.mu.Lock()
	c.answered(r, state, text)
	c.server.mu.Unlock()
	c.server.cfg.Changed(r.uid)
	return nil
}

func (r *request) String() string {
	switch r.kind {
	case kindAdd:
		return fmt.Sprintf("add of %s/%s (%s)", r.workload.Namespace, r.workload.Name, r.uid)
	case kindKeep, kindDel:
		return r.kind + " of " + r.uid
	}
	return "snapshot"
}

func (c *session) exchange(r *request) (state State, text string, err error) {
	if err := c.conn.SetDeadline(time.Now().Add(c.server.cfg.AckTimeout)); err != nil {
		return "", "", ended(endError, err)
	}
	// What is there before the request is sent cannot answer it.
	if ready, err := c.conn.Ready(); err != nil {
		return "", "", ended(endError, err)
	} else if ready {
		return "", "", c.receiveUnasked()
	}
	switch err := c.send(r); {
	case errors.Is(err, ztunnelproto.ErrUnsent):
		return Unsent, err.Error(), nil
	case errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET):
		return "", "", ended(endClosed, errClosed)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "", "", err
	case err != nil:
		return "", "", ended(endError, err)
	}
	var response ztunnelproto.WorkloadResponse
	if err := c.receive(&response); err != nil {
		return "", "", err
	}
	ack := response.GetAck()
	switch {
	case ack == nil:
		return "", "", ended(endProtocol, errors.New("a response of an unknown kind came"))
	case ack.Error != "":
		return Nacked, ack.Error, nil
	}
	return Acked, "", nil
}

func (c *session) send(r *request) error {
	if r.kind != kindAdd {
		return c.conn.Send(r.message, nil)
	}
	var err error
	if lent := r.workload.Netns.File(func(f *os.File) error {
		err = c.conn.Send(r.message, f)
		return nil
	}); lent != nil {
		return fmt.Errorf("%w: %w", ztunnelproto.ErrUnsent, lent)
	}
	return err
}
