package sockets

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/nft"
	"github.com/fairlead-mesh/fairlead/iptables/route"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// stage is a pod, with an app at port 80, and two peers.
type stage struct {
	t                testing.TB
	pod, peer, other *netlab.NS
	diag             *Conn
}

const (
	pod4, pod6     = "10.0.0.5", "[fd00::5]"
	peer4, peer6   = "10.0.0.9", "[fd00::9]"
	other4, other6 = "10.0.0.10", "[fd00::10]"
	mapped         = "[::ffff:10.0.0.9]" // peer4, of a socket of IPv6
)

func newStage(t testing.TB) *stage {
	t.Helper()
	s := &stage{t: t, pod: netlab.NewNS(t, "pod"), peer: netlab.NewNS(t, "peer"), other: netlab.NewNS(t, "other")}
	netlab.NewSwitch(t, "switch",
		netlab.Port{NS: s.pod, Addrs: netlab.Prefixes("10.0.0.5/24", "10.0.0.6/24", "fd00::5/64")},
		netlab.Port{NS: s.peer, Addrs: netlab.Prefixes("10.0.0.9/24", "fd00::9/64")},
		netlab.Port{NS: s.other, Addrs: netlab.Prefixes("10.0.0.10/24", "fd00::10/64")})
	for _, n := range []*netlab.NS{s.peer, s.other} {
		netlab.ServeEcho(t, n, n.Name, "tcp", "[::]:80")
		netlab.ServeEcho(t, n, n.Name, "tcp", "[::]:53")
	}
	netlab.ServeEcho(t, s.pod, "app", "tcp", "[::]:80")    // IPv4 comes to sockets of IPv6
	netlab.ServeEcho(t, s.pod, "app", "tcp", "0.0.0.0:81") // and here to ones of IPv4
	s.diag = open(t, s.pod)
	return s
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// redirect puts the rules in place.
func (s *stage) redirect(form ruleset.Form) {
	s.t.Helper()
	rules, err := ruleset.Build(ruleset.Config{IPv4: true, IPv6: true, CaptureDNS: true, Form: form})
	s.must(err)
	router, err := route.Open(s.pod.Handle)
	s.must(err)
	table, err := nft.Open(s.pod.Handle)
	s.must(err)
	ctx := context.Background()
	s.must(errors.Join(router.Apply(ctx, route.Config{IPv4: true, IPv6: true}), table.Apply(ctx, rules), router.Close(), table.Close()))
}

func proxySocket() []netlab.Option {
	return []netlab.Option{netlab.Mark(int(ruleset.ProxyMark)), netlab.Transparent, netlab.ReusePort}
}

// proxy starts the least that is a proxy, on all its ports.
func (s *stage) proxy() {
	s.t.Helper()
	for _, addr := range []string{"[::]:15001", "[::]:15006", "[::]:15008", "127.0.0.1:15053", "[::1]:15053"} {
		inbound := strings.HasSuffix(addr, "6") || strings.HasSuffix(addr, "8")
		r := &netlab.Relay{Mark: int(ruleset.ProxyMark), Inbound: inbound, Direct: 80}
		r.Serve(s.t, s.pod, addr, proxySocket()...)
	}
}

// line is an open connection to an echo server.
type line struct {
	net.Conn
	reader *bufio.Reader
}

func (s *stage) dial(from *netlab.NS, addr string, options ...netlab.Option) *line {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", addr, options...)
	s.must(err)
	s.t.Cleanup(func() { _ = conn.Close() }) // of a test that is over
	s.must(conn.SetDeadline(time.Now().Add(20 * time.Second)))
	l := &line{Conn: conn, reader: bufio.NewReader(conn)}
	_, err = netlab.ReadReply(l.reader)
	s.must(err)
	return l
}

// between dials a listener and returns both ends.
func (s *stage) between(from *netlab.NS, l net.Listener, to string) (client, server *net.TCPConn) {
	s.t.Helper()
	conn, err := from.Dial(s.t.Context(), "tcp", to)
	s.must(err)
	peer, err := l.Accept()
	s.must(err)
	s.t.Cleanup(func() { // they fail only if the test has closed them
		_ = conn.Close()
		_ = peer.Close()
	})
	return conn.(*net.TCPConn), peer.(*net.TCPConn)
}

// reset ends a connection by a reset.
func reset(l *line) error {
	if err := l.Conn.(*net.TCPConn).SetLinger(0); err != nil {
		return err
	}
	return l.Close()
}

// speak sends something and reads it back.
func (l *line) speak() error {
	if _, err := fmt.Fprintln(l, "hello"); err != nil {
		return err
	}
	_, err := io.ReadFull(l.reader, make([]byte, len("hello\n")))
	return err
}

func (s *stage) wantAlive(l *line) {
	s.t.Helper()
	if err := l.speak(); err != nil {
		s.t.Errorf("the connection of %s with %s has ended: %v", l.LocalAddr(), l.RemoteAddr(), err)
	}
}

func (s *stage) wantReset(l *line) {
	s.t.Helper()
	err := l.speak()
	for _, want := range []error{unix.ECONNRESET, unix.ECONNABORTED, unix.EPIPE} {
		if errors.Is(err, want) {
			return
		}
	}
	s.t.Errorf("the connection of %s with %s was not reset: %v", l.LocalAddr(), l.RemoteAddr(), err)
}

// ends names a connection as the pod sees it.
func ends(l *line) string { return tcpAddr(l.LocalAddr()) + " with " + tcpAddr(l.RemoteAddr()) }

// dialled names a connection to the pod as the pod sees it.
func dialled(l *line) string { return tcpAddr(l.RemoteAddr()) + " with " + tcpAddr(l.LocalAddr()) }

func tcpAddr(a net.Addr) string {
	ap := a.(*net.TCPAddr).AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()).String()
}

func (s *stage) bypassing(exempt func(Connection) bool) []Connection {
	s.t.Helper()
	found, err := s.diag.Bypassing(s.t.Context(), exempt)
	s.must(err)
	return found
}

// wantBypassing compares what bypasses with what should, in any order.
func (s *stage) wantBypassing(want ...string) []Connection {
	s.t.Helper()
	found := s.bypassing(nil)
	got := texts(found)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		s.t.Errorf("what bypasses:\n got %q\nwant %q", got, want)
	}
	return found
}

func texts(connections []Connection) []string {
	var all []string
	for _, c := range connections {
		all = append(all, c.String())
	}
	slices.Sort(all)
	return all
}
