package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// Connections from before the redirects bypass, later ones are proxied; in both
// directions, of IPv4, IPv6 and IPv4 over sockets of IPv6.
func TestOlderThanTheCapture(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	s.wantBypassing()
	var old, captured []*line
	var want []string
	connect := func() (all []*line, names []string) {
		for _, to := range []string{peer4 + ":80", peer6 + ":80", mapped + ":80", peer4 + ":53"} {
			l := s.dial(s.pod, to)
			all, names = append(all, l), append(names, ends(l))
		}
		for _, to := range []string{pod4 + ":80", pod6 + ":80", pod4 + ":81"} {
			l := s.dial(s.peer, to)
			all, names = append(all, l), append(names, dialled(l))
		}
		return all, names
	}
	old, want = connect()
	within := []*line{s.dial(s.pod, "127.0.0.1:80"), s.dial(s.pod, "[::1]:80"), s.dial(s.pod, "[::ffff:127.0.0.1]:81"),
		s.dial(s.pod, pod4+":80"), s.dial(s.pod, pod6+":80"), s.dial(s.pod, "10.0.0.6:81")}
	s.wantBypassing(want...)
	s.proxy()
	s.redirect(ruleset.FormSYN)
	captured, _ = connect()
	captured = append(captured, s.dial(s.peer, pod4+":15008"), s.dial(s.peer, pod6+":15008"))
	found := s.wantBypassing(want...)
	for _, c := range found {
		if port := c.Local.Port(); c.Listened != (port == 80 || port == 81) {
			t.Errorf("%s: listened on %d is %t", c, port, c.Listened)
		}
	}
	for _, form := range []ruleset.Form{ruleset.FormSYN, ruleset.FormFull} {
		s.redirect(form)
		n, err := s.diag.Destroy(t.Context(), found)
		if err != nil || (n > 0) != (form == ruleset.FormSYN) {
			t.Errorf("%d of %d destroyed, %v", n, len(found), err)
		}
		for _, l := range old {
			s.wantReset(l)
		}
		for _, l := range append(captured, within...) {
			s.wantAlive(l)
		}
		s.wantBypassing()
	}
	connect() // the listeners live
	s.wantBypassing()
}

// The proxy sees only one of several connections from one port with that port.
func TestConnectionsFromOnePort(t *testing.T) {
	netlab.Kernel(t)
	for name, c := range map[string]struct{ from, peer, other string }{
		"IPv4":   {pod4, peer4, other4},
		"IPv6":   {pod6, peer6, other6},
		"mapped": {"[::ffff:10.0.0.5]", mapped, "[::ffff:10.0.0.10]"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.proxy()
			from := netlab.From(c.from + ":4000")
			old := s.dial(s.pod, c.peer+":53", from)
			s.redirect(ruleset.FormSYN)
			lines := []*line{s.dial(s.pod, c.peer+":80", from), s.dial(s.pod, c.other+":80", from), s.dial(s.pod, c.other+":53", from)}
			found := s.wantBypassing(ends(old))
			if _, err := s.diag.Destroy(t.Context(), found); err != nil {
				t.Error(err)
			}
			s.wantReset(old)
			s.redirect(ruleset.FormFull)
			for _, l := range lines {
				s.wantAlive(l)
			}
			s.wantBypassing()
		})
	}
}

// A connection that a proxy has not accepted is its all the same.
func TestNotYetAcceptedDoesNotBypass(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	s.redirect(ruleset.FormFull)
	l := listen(t, s.pod, "[::]:15001", proxySocket()...)
	raw, err := l.(*net.TCPListener).SyscallConn()
	s.must(err)
	s.must(raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), 1) })) // from now on, two wait at most
	s.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	var results []chan error
	for i, to := range []string{peer4, peer6, peer4, mapped} { // the last are not even taken up
		done := make(chan error, 1)
		results = append(results, done)
		go func() {
			conn, err := s.pod.Dial(ctx, "tcp", to+":80")
			if err == nil {
				<-ctx.Done()
				_ = conn.Close()
			}
			done <- err
		}()
		netlab.Eventually(t, func() error {
			if n := s.apps(func(socket) bool { return true }); n != i+1 {
				return fmt.Errorf("%d of %d connections begun", n, i+1)
			}
			return nil
		})
	}
	if waiting := s.apps(func(c socket) bool { return c.state == stateSynSent }); waiting != 2 {
		t.Errorf("%d connections wait to be taken up, want 2", waiting)
	}
	s.wantBypassing()
	cancel()
	for _, done := range results {
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// apps counts the open sockets of the app's that have a peer outside of the pod.
func (s *stage) apps(which func(socket) bool) int {
	s.t.Helper()
	all, err := s.diag.list(s.t.Context())
	s.must(err)
	n := 0
	for _, c := range all {
		if openStates&(1<<c.state) != 0 && !c.isProxy() && which(c) {
			n++
		}
	}
	return n
}

// The proxy's half-open socket has its listener's mark.
func TestHalfOpenAtTheProxyDoesNotBypass(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	s.redirect(ruleset.FormFull)
	listen(t, s.pod, "[::]:15001", proxySocket()...)
	netlab.MustRun(t, s.pod, "nft", `add table inet t
		add chain inet t in { type filter hook input priority 0; }
		add rule inet t in tcp flags & (syn | ack) == syn | ack drop`)
	for i, to := range []string{peer4, peer6} {
		s.begin(s.pod, to+":80")
		netlab.Eventually(t, func() error {
			all, err := s.diag.list(t.Context())
			if n := countOf(all, func(c socket) bool { return c.state == stateSynRecv && c.isProxy() }); err != nil || n != i+1 {
				return fmt.Errorf("%d half-open connections at the proxy, %w", n, err)
			}
			return nil
		})
	}
	if n := s.apps(func(c socket) bool { return c.state == stateSynSent }); n != 2 {
		t.Errorf("%d half-open connections of the app's", n)
	}
	s.wantBypassing()
}

func countOf(all []socket, which func(socket) bool) (n int) {
	for _, c := range all {
		if which(c) {
			n++
		}
	}
	return n
}

// begin begins a connection, of which it tells how it ended.
func (s *stage) begin(from *netlab.NS, to string) <-chan error {
	ctx, cancel := context.WithCancel(s.t.Context())
	done, over := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(over)
		conn, err := from.Dial(ctx, "tcp", to)
		if err == nil {
			_ = conn.Close() // it was not to be made
		}
		done <- err
	}()
	s.t.Cleanup(func() { cancel(); <-over })
	return done
}

// Through the ends of connections, one proxied and one not.
func TestClosingConnections(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	server := listen(t, s.peer, "[::]:90")
	app, remote := s.between(s.pod, server, peer4+":90")
	old := app.LocalAddr().String() + " with " + app.RemoteAddr().String()
	s.redirect(ruleset.FormSYN)
	l := listen(t, s.pod, "[::]:15001", proxySocket()...)
	proxied, proxy := s.between(s.pod, l, peer4+":90")
	s.wantBypassing(old)
	s.must(proxy.CloseWrite())
	s.wantBypassing(old)
	if _, err := proxied.Read(make([]byte, 1)); err == nil {
		t.Error("the app read something")
	}
	s.wantBypassing(old)
	s.must(proxy.Close())
	s.wantBypassing(old)
	s.must(remote.CloseWrite()) // and the other: what the app sends now is no open connection's
	if _, err := app.Read(make([]byte, 1)); err == nil {
		t.Error("the app read something")
	}
	s.wantBypassing()
}

func TestExempt(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	netlab.MustRun(t, s.pod, "ip", "route", "add", "local", "10.7.0.0/16", "dev", "lo") // addresses without an interface
	s.dial(s.pod, "10.7.1.2:80")
	out := s.dial(s.pod, other4+":80")
	s.dial(s.other, pod6+":80")
	s.dial(s.peer, pod4+":80")
	if got := texts(s.bypassing(func(c Connection) bool { return c.Remote.Addr() == netip.MustParseAddr("10.0.0.9") })); len(got) != 2 {
		t.Errorf("peer exempt: %q", got)
	}
	if got := texts(s.bypassing(func(c Connection) bool { return c.Listened })); len(got) != 1 || got[0] != ends(out) {
		t.Errorf("inbound exempt: %q", got)
	}
	if got := s.bypassing(func(Connection) bool { return true }); len(got) != 0 {
		t.Errorf("all exempt: %q", texts(got))
	}
}

func TestBypassingInAnEmptyNamespace(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	c := open(t, netlab.NewNS(t, "pod"))
	if found, err := c.Bypassing(t.Context(), nil); len(found) != 0 || err != nil {
		t.Errorf("%v, %v", found, err)
	}
	if own, err := ownAddresses(t.Context(), c.namespace); err != nil || !own.contain(netip.MustParseAddr("127.4.5.6")) || own.contain(netip.MustParseAddr("10.0.0.1")) {
		t.Errorf("own addresses %v, %v", own, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Bypassing(ctx, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
	if _, err := c.Destroy(ctx, []Connection{{}}); !errors.Is(err, context.Canceled) {
		t.Errorf("Destroy with an ended context: %v", err)
	}
}

// A pod with thousands of sockets costs no more than the limit.
func TestTooManySockets(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	s := newStage(t)
	const many = 2000
	crowd(t, s, many)
	s.diag.max = many
	for range 3 {
		if _, err := s.diag.Bypassing(t.Context(), nil); !errors.Is(err, errTooMany) || !strings.Contains(err.Error(), strconv.Itoa(many)) {
			t.Fatalf("got %v, want too many", err)
		}
	}
	s.diag.max = 3 * many
	if n := len(s.bypassing(nil)); n != many {
		t.Errorf("%d connections bypass, want %d", n, many)
	}
}

// crowd opens connections from the pod to a peer.
func crowd(t testing.TB, s *stage, many int) {
	t.Helper()
	server := listen(t, s.peer, "[::]:90")
	for i := range many {
		s.between(s.pod, server, []string{peer4, peer6}[i%2]+":90")
	}
}

// While connections come and go through the proxy, from few ports, none passes for one
// that bypasses.
func TestUnderTraffic(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	s.proxy()
	old := s.dial(s.pod, peer4+":80")
	s.redirect(ruleset.FormSYN)
	s.must(s.pod.Sysctl("net/ipv4/ip_local_port_range", "40000 42000")) // some are shared
	var work sync.WaitGroup
	for i := range 4 {
		work.Go(func() {
			for j := range 100 {
				from, to := s.pod, []string{peer4, other4, peer6, mapped}[(i+j)%4]
				if i == 3 {
					from, to = s.peer, []string{pod4, pod6}[j%2]
				}
				if _, err := netlab.AskEcho(t.Context(), from, "tcp", to+":80"); err != nil {
					t.Errorf("to %s: %v", to, err)
					return
				}
			}
		})
	}
	over := make(chan struct{})
	go func() { work.Wait(); close(over) }()
	looks := 0
	for ended := false; !ended; looks++ {
		select {
		case <-over:
			ended = true
		default:
		}
		s.wantBypassing(ends(old))
	}
	t.Logf("looked %d times", looks)
}
