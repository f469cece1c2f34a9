package nodeproxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/integration/nodeproxy"
)

func TestOutbound(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	for family, peer := range peerAddrs {
		netlab.ServeEcho(t, p.peer, family, "tcp", at(peer, 80))
		got := netlab.Ask(t, p.app, "tcp", at(peer, 80))
		want := netlab.Reply{
			Server: family,
			Peer:   netip.AddrPortFrom(netip.MustParseAddr(podAddrs[family]), got.Peer.Port()),
			Local:  netip.MustParseAddrPort(at(peer, 80)),
		}
		if got != want {
			t.Errorf("the server saw %+v, want %+v", got, want)
		}
	}
	p.wantRelayed(nodeproxy.Relayed{Outbound: 2})
}

func TestInboundComesFromTheClientsAddress(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	for family, addr := range podAddrs {
		netlab.ServeEcho(t, p.app, family, "tcp", at(addr, 80))
		got := netlab.Ask(t, p.peer, "tcp", at(addr, 80))
		want := netlab.Reply{
			Server: family,
			Peer:   netip.AddrPortFrom(netip.MustParseAddr(peerAddrs[family]), got.Peer.Port()),
			Local:  netip.MustParseAddrPort(at(addr, 80)),
		}
		if got != want {
			t.Errorf("the app saw %+v, want %+v", got, want)
		}
	}
	p.wantRelayed(nodeproxy.Relayed{Inbound: 2})
}

// The kernel gives odd ports of the pod's range first. The only one would be a trap:
// conntrack knows it as the client's.
func TestInboundAvoidsThePortsOfItsClient(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	netlab.MustRun(t, p.app, "sysctl", "-qw", "net.ipv4.ip_local_port_range=40000 40001")
	netlab.ServeEcho(t, p.app, "app", "tcp", "10.0.0.1:80")
	for _, way := range []struct{ from, want uint16 }{{40002, 40001}, {40001, 40000}} {
		c := p.dial(p.peer, "10.0.0.1:80", netlab.From(at("10.0.0.2", int(way.from))))
		reply, err := netlab.ReadReply(bufio.NewReader(c))
		if err != nil {
			t.Fatal(err)
		}
		if got := reply.Peer.Port(); got != way.want {
			t.Errorf("the relay of a client at port %d has port %d, want %d", way.from, got, way.want)
		}
		cut(t, c)
		p.wantIdle()
	}
}

func TestDiallingTheProxyItselfIsRefused(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	for _, port := range []int{15001, 15006} {
		for family, addr := range podAddrs {
			p.wantRefused(p.app, at(addr, port))
			p.wantRefused(p.peer, at(addr, port))
			p.wantRefused(p.app, at(map[string]string{"IPv4": "127.0.0.1", "IPv6": "::1"}[family], port))
		}
	}
	p.wantRelayed(nodeproxy.Relayed{})
	p.wantIdle()
}

// Another proxy's port is not ours.
func TestOutboundToTheSamePortElsewhere(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	netlab.ServeEcho(t, p.peer, "elsewhere", "tcp", "10.0.0.2:15001")
	if got := netlab.Ask(t, p.app, "tcp", "10.0.0.2:15001"); got.Server != "elsewhere" {
		t.Errorf("reached %+v", got)
	}
	p.wantRelayed(nodeproxy.Relayed{Outbound: 1})
}

func TestWhatRefusesConnectionsResetsThem(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	for family := range podAddrs {
		p.wantRefused(p.app, at(peerAddrs[family], 81))
		p.wantRefused(p.peer, at(podAddrs[family], 81))
	}
	p.wantRelayed(nodeproxy.Relayed{})
	p.wantIdle()
}

// Each side ends its direction in turn, and hears of the other's end, not more.
func TestHalfClose(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	for _, way := range []struct {
		name             string
		client, server   *netlab.NS
		addr, mayBeFirst string
	}{
		{"outbound, client first", p.app, p.peer, "10.0.0.2:80", "client"},
		{"outbound, server first", p.app, p.peer, "10.0.0.2:81", "server"},
		{"inbound, client first", p.peer, p.app, "10.0.0.1:82", "client"},
		{"inbound, server first", p.peer, p.app, "10.0.0.1:83", "server"},
	} {
		first, second := p.pair(way.client, way.server, way.addr)
		if way.mayBeFirst == "server" {
			first, second = second, first
		}
		if _, err := io.WriteString(first, "request"); err != nil {
			t.Fatal(err)
		}
		if err := first.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(second); string(got) != "request" || err != nil {
			t.Errorf("%s: the second read %q, %v", way.name, got, err)
		}
		// More than the sockets can hold: it is still being relayed.
		long := strings.Repeat("response ", 1<<20)
		go func() {
			_, _ = io.WriteString(second, long) // the reader looks at what has come
			_ = second.CloseWrite()
		}()
		if got, err := io.ReadAll(first); string(got) != long || err != nil {
			t.Errorf("%s: the first read %d bytes of %d, %v", way.name, len(got), len(long), err)
		}
	}
	p.wantIdle()
}

func TestResetsArePassedOn(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	for i, way := range []struct{ client, server *netlab.NS }{{p.app, p.peer}, {p.peer, p.app}} {
		addr := []string{"10.0.0.2", "10.0.0.1"}[i]
		client, server := p.pair(way.client, way.server, at(addr, 80))
		cut(t, client)
		wantReset(t, server)
		client, server = p.pair(way.client, way.server, at(addr, 81))
		cut(t, server)
		wantReset(t, client)
	}
	p.wantIdle()
}

func TestManyConnectionsAtOnce(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	netlab.ServeEcho(t, p.peer, "peer", "tcp", "10.0.0.2:80")
	netlab.ServeEcho(t, p.app, "app", "tcp", "10.0.0.1:80")
	const each = 300
	var work sync.WaitGroup
	for range each {
		for addr, from := range map[string]*netlab.NS{"10.0.0.2:80": p.app, "10.0.0.1:80": p.peer} {
			work.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				if _, err := netlab.AskEcho(ctx, from, "tcp", addr); err != nil {
					t.Error(err)
				}
			})
		}
	}
	work.Wait()
	p.wantIdle()
	p.wantRelayed(nodeproxy.Relayed{Outbound: each, Inbound: each})
}

func TestConfigDumpShowsOpenConnections(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	out, _ := p.pair(p.app, p.peer, "10.0.0.2:80")
	in, _ := p.pair(p.peer, p.app, "10.0.0.1:80")
	addr := func(c net.Conn) netip.AddrPort { return netip.MustParseAddrPort(c.LocalAddr().String()) }
	got := fmt.Sprint(p.workload("uid0").Connections)
	want := fmt.Sprint(nodeproxy.Connections{
		Outbound: []nodeproxy.Connection{{addr(out), netip.MustParseAddrPort("10.0.0.2:80"), "outbound"}},
		Inbound:  []nodeproxy.Connection{{addr(in), netip.MustParseAddrPort("10.0.0.1:80"), "inbound"}},
	})
	if got != want {
		t.Errorf("open are %s, want %s", got, want)
	}
}

// dial opens a connection that is closed at the end of the test.
func (n *node) dial(from *netlab.NS, addr string, options ...netlab.Option) *net.TCPConn {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", addr, options...)
	if err != nil {
		n.t.Fatal(err)
	}
	return n.bounded(c)
}

// wantRefused dials what must not answer.
func (n *node) wantRefused(from *netlab.NS, addr string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), patience)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", addr)
	switch {
	case err == nil:
		wantReset(n.t, n.bounded(c))
	case !errors.Is(err, unix.ECONNRESET): // it may be as quick as this
		n.t.Error(err)
	}
}

// bounded makes a test that waits for a connection fail, not hang.
func (n *node) bounded(c net.Conn) *net.TCPConn {
	n.t.Helper()
	n.t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		n.t.Fatal(err)
	}
	return c.(*net.TCPConn)
}

// pair returns both ends of a connection.
func (n *node) pair(from, to *netlab.NS, addr string) (client, server *net.TCPConn) {
	n.t.Helper()
	l, err := to.Listen(addr)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // one connection is enough
	defer time.AfterFunc(patience, func() { _ = l.Close() }).Stop()
	client = n.dial(from, addr)
	c, err := l.Accept()
	if err != nil {
		n.t.Fatal(err)
	}
	return client, n.bounded(c)
}

// cut resets a connection.
func cut(t *testing.T, c *net.TCPConn) {
	t.Helper()
	if err := errors.Join(c.SetLinger(0), c.Close()); err != nil {
		t.Fatal(err)
	}
}

// wantReset waits until the peer has reset a connection.
func wantReset(t *testing.T, c *net.TCPConn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("read %d bytes, %v from %s, want a reset", n, err, c.RemoteAddr())
	}
}
