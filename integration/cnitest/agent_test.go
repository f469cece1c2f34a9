package cnitest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

// agent stands in for the node's agent, on the real socket.
type agent struct {
	t        *testing.T
	listener *agentapi.Listener
	answer   answer
	stopped  context.CancelFunc
	all      sync.WaitGroup

	mu       sync.Mutex
	requests []agentapi.Request
}

// answer decides on a request of peer; ctx ends with the plugin's connection.
type answer func(ctx context.Context, peer agentapi.Peer, req agentapi.Request) *agentapi.Error

// killed is the answer of an agent that dies.
var killed = &agentapi.Error{}

func always(e *agentapi.Error) answer {
	return func(context.Context, agentapi.Peer, agentapi.Request) *agentapi.Error { return e }
}

// startAgent serves socket until the end of the test, or stop.
func startAgent(t *testing.T, socket string, answer answer) *agent {
	t.Helper()
	listener, err := agentapi.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &agent{t: t, listener: listener, answer: answer, stopped: cancel}
	a.all.Go(func() {
		for {
			c, err := listener.AcceptUnix()
			if err != nil {
				return
			}
			a.all.Go(func() {
				defer c.Close()
				if err := a.serve(ctx, c); err != nil {
					t.Errorf("agent: %v", err)
				}
			})
		}
	})
	t.Cleanup(a.stop)
	return a
}

func (a *agent) serve(ctx context.Context, c *net.UnixConn) error {
	peer, err := agentapi.PeerOf(c)
	if err != nil {
		return err
	}
	req, err := agentapi.ReadRequest(c)
	if err != nil {
		return err
	}
	a.mu.Lock()
	a.requests = append(a.requests, req)
	a.mu.Unlock()
	ctx, stop := agentapi.WithPeer(ctx, c)
	defer stop()
	e := a.answer(ctx, peer, req)
	if e == killed || ctx.Err() != nil {
		return nil
	}
	return agentapi.WriteResponse(c, e)
}

// stop leaves the socket behind, as an agent does that dies.
func (a *agent) stop() {
	a.stopped()
	if err := a.listener.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		a.t.Error(err)
	}
	a.all.Wait()
}

// asked takes the requests that have come since it was last called.
func (a *agent) asked() []agentapi.Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	requests := a.requests
	a.requests = nil
	return requests
}

// askedOnce takes the one request there has been.
func (a *agent) askedOnce(t *testing.T) agentapi.Request {
	t.Helper()
	requests := a.asked()
	if len(requests) != 1 {
		t.Fatalf("the agent was asked %d times, want once: %s", len(requests), fmt.Sprint(requests))
	}
	return requests[0]
}
