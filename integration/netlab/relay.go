package netlab

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
)

// A Relay is the least that is a proxy: what it accepts it dials on to where that was
// going.
type Relay struct {
	// Mark is of the sockets that it dials with.
	Mark int
	// Inbound relays dial from the client's address.
	Inbound bool
	// Direct is the port to dial for clients that were not redirected: a real proxy is
	// told in the protocol.
	Direct uint16

	n        *NS
	listener net.Listener
	accepted atomic.Int32
}

// Serve has the relay listen in a namespace until the end of the test.
func (r *Relay) Serve(t testing.TB, n *NS, addr string, options ...Option) {
	t.Helper()
	l, err := n.Listen(addr, options...)
	if err != nil {
		t.Fatal(err)
	}
	r.n, r.listener = n, l
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	work.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			r.accepted.Add(1)
			work.Go(func() { r.serve(ctx, conn.(*net.TCPConn)) })
		}
	})
	t.Cleanup(func() {
		cancel()
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		work.Wait()
	})
}

// Accepted is how many connections the relay has accepted.
func (r *Relay) Accepted() int { return int(r.accepted.Load()) }

func (r *Relay) serve(ctx context.Context, client *net.TCPConn) {
	defer func() { _ = client.Close() }() // all of it was said
	to, err := OriginalDst(client)
	if err != nil {
		return // the client sees the end
	}
	if to.Port() == addrPort(r.listener.Addr()).Port() {
		to = netip.AddrPortFrom(to.Addr(), r.Direct)
	}
	options := []Option{Mark(r.Mark)}
	if r.Inbound {
		from := addrPort(client.RemoteAddr()).Addr().Unmap()
		options = append(options, From(netip.AddrPortFrom(from, 0).String()))
	}
	server, err := r.n.Dial(ctx, "tcp", to.String(), options...)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	stop := context.AfterFunc(ctx, func() {
		_ = client.Close() // the test is over, and the other half may have been quicker
		_ = server.Close()
	})
	defer stop()
	var work sync.WaitGroup
	work.Go(func() { forward(server.(*net.TCPConn), client) })
	work.Go(func() { forward(client, server.(*net.TCPConn)) })
	work.Wait()
}

// forward copies until the end, and passes the end on.
func forward(to, from *net.TCPConn) {
	_, _ = io.Copy(to, from) // an error is the end as well
	_ = to.CloseWrite()
}
