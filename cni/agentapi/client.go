package agentapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

var (
	// ErrAbsent: nobody accepts connections on the socket.
	ErrAbsent = errors.New("the agent cannot be reached")
	// ErrBroken: the connection ended before the answer was complete. The
	// request may or may not have been carried out.
	ErrBroken = errors.New("the agent closed the connection before it had answered")
)

// Client asks the agent that listens on Socket.
type Client struct {
	Socket string
}

// Call sends one request and waits for its answer until ctx ends. The agent's
// refusal is not an error of Call: it stands in the Response.
func (c Client) Call(ctx context.Context, req Request) (Response, error) {
	var answer Response
	err := c.talk(ctx, req, func(lines *bufio.Reader) error {
		var err error
		answer, err = readResponse(lines)
		return err
	})
	if err != nil {
		return Response{}, err
	}
	return answer, nil
}

// Stream sends one request and hands each item of its answer to item, until the
// answer's end, the first error, or the end of ctx. A refusal by the agent is
// returned as *Error.
func (c Client) Stream(ctx context.Context, req Request, item func(json.RawMessage) error) error {
	return c.talk(ctx, req, func(lines *bufio.Reader) error {
		for {
			answer, err := readResponse(lines)
			switch {
			case err != nil:
				return err
			case answer.Error != nil:
				return answer.Error
			case answer.End:
				return nil
			}
			if err := item(answer.Item); err != nil {
				return err
			}
		}
	})
}

// talk sends req and lets receive read the answer, on a connection that is cut
// when ctx ends.
func (c Client) talk(ctx context.Context, req Request, receive func(*bufio.Reader) error) error {
	req.Version = Version
	if err := req.Validate(); err != nil {
		return fmt.Errorf("invalid request: %v", err)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", c.Socket)
	if err != nil {
		return c.explain(ctx, ErrAbsent, err)
	}
	defer conn.Close() //nolint:errcheck // nothing is left to be sent
	stop := context.AfterFunc(ctx, func() {
		// It fails on a closed connection only, which nobody waits for.
		_ = conn.SetDeadline(time.Unix(1, 0))
	})
	defer stop()
	if err := writeLine(conn, req); err != nil {
		return c.explain(ctx, ErrBroken, err)
	}
	err = receive(bufio.NewReaderSize(conn, MaxMessage))
	var network *net.OpError
	if errors.Is(err, io.EOF) || errors.As(err, &network) {
		return c.explain(ctx, ErrBroken, err)
	}
	return err
}

// explain gives a failed conversation its class and keeps the cause. When ctx
// has ended, that is the cause, whatever the socket says.
func (c Client) explain(ctx context.Context, class, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("no answer from the agent at %s: %w", c.Socket, ctx.Err())
	}
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w (%s)", class, c.Socket)
	}
	return fmt.Errorf("%w: %w", class, err)
}

// readResponse returns io.EOF for an answer that is missing or cut off.
func readResponse(lines *bufio.Reader) (Response, error) {
	line, err := lines.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return Response{}, fmt.Errorf("the agent's answer is longer than %d bytes", MaxMessage)
	}
	if err != nil {
		return Response{}, err
	}
	var r Response
	if err := json.Unmarshal(line, &r); err != nil {
		return Response{}, fmt.Errorf("cannot decode the agent's answer: %v", err)
	}
	if r.Version == Version {
		return r, nil
	}
	e := badRequest("the agent speaks version %d of its API, we speak version %d", r.Version, Version)
	if r.Error != nil {
		e.Details = "the agent said: " + r.Error.Error()
	}
	return Response{Version: r.Version, Error: e}, nil
}
