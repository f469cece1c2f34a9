package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// What can be asked for.
const (
	opStart = "start"
	opStop  = "stop"
	opList  = "list"
	opKeep  = "keep"
	opEnd   = "end"
)

// A request is one JSON object, and so is its reply; then the connection is closed.
type request struct {
	Op      string
	Service Service
	Name    string
	Signal  int
}

type reply struct {
	Error    string
	Services []Status
}

// A call is a request on its way to the loop.
type call struct {
	request request
	answer  chan<- reply
}

func (s *server) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		go s.serve(conn)
	}
}

// serve answers one request. A peer that talks nonsense, or has gone, hurts nobody.
func (s *server) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }() // nobody is left to tell
	var r request
	if err := json.NewDecoder(conn).Decode(&r); err != nil {
		return
	}
	answer := make(chan reply, 1)
	s.requests <- call{r, answer}
	_ = json.NewEncoder(conn).Encode(<-answer) // the peer has gone
}

// A Client asks a supervisor, known by its socket.
type Client struct{ Socket string }

// Start starts a service.
func (c Client) Start(ctx context.Context, s Service) error {
	_, err := c.ask(ctx, request{Op: opStart, Service: s})
	return err
}

// Stop sends a service a signal and waits until it has ended. It is not started
// again. One that does not run is stopped already.
func (c Client) Stop(ctx context.Context, name string, s unix.Signal) error {
	_, err := c.ask(ctx, request{Op: opStop, Name: name, Signal: int(s)})
	return err
}

// List tells of all services, in the order of their first start.
func (c Client) List(ctx context.Context) ([]Status, error) {
	r, err := c.ask(ctx, request{Op: opList})
	return r.Services, err
}

// Keep lets everything go on when the lifeline breaks.
func (c Client) Keep(ctx context.Context) error {
	_, err := c.ask(ctx, request{Op: opKeep})
	return err
}

// End ends the supervisor and all its processes, and waits until it has.
func (c Client) End(ctx context.Context) error {
	_, err := c.ask(ctx, request{Op: opEnd})
	if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
		return nil // it has no time to say good bye
	}
	return err
}

// Pid returns the supervisor's process number, as the caller's namespace has it.
func (c Client) Pid(ctx context.Context) (int, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // nothing was written
	return peer(conn)
}

// Kill kills a supervisor that does not answer, and with it all its processes.
func (c Client) Kill(ctx context.Context) error {
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing was written
	pid, err := peer(conn)
	if err != nil {
		return err
	}
	process, err := os.FindProcess(pid) // holds it: from here on the number stays its own
	if err != nil {
		return err
	}
	defer func() { _ = process.Release() }() // cannot fail
	// Its socket still takes connections: it was alive when it was held.
	again, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = again.Close() }() // nothing was written
	if now, err := peer(again); err != nil || now != pid {
		return fmt.Errorf("cannot kill process %d: the socket %s is another's now", pid, c.Socket)
	}
	return process.Kill()
}

func (c Client) dial(ctx context.Context) (*net.UnixConn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.Socket)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// peer returns the process that listens at the other end.
func peer(conn *net.UnixConn) (int, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	if lent := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); lent != nil {
		return 0, lent
	}
	if err != nil {
		return 0, fmt.Errorf("cannot tell who listens at the other end: %w", err)
	}
	return int(cred.Pid), nil
}

func (c Client) ask(ctx context.Context, r request) (reply, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return reply{}, err
	}
	defer func() { _ = conn.Close() }() // the reply is all that counts
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	var answer reply
	err = json.NewEncoder(conn).Encode(r)
	if err == nil {
		err = json.NewDecoder(conn).Decode(&answer)
	}
	switch {
	case ctx.Err() != nil:
		return answer, fmt.Errorf("cannot %s %s: no answer from %s: %w", r.Op, r.Service.Name+r.Name, c.Socket, context.Cause(ctx))
	case err != nil:
		return answer, err
	case answer.Error != "":
		return answer, errors.New(answer.Error)
	}
	return answer, nil
}
