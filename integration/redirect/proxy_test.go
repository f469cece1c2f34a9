package redirect_test

import (
	"context"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// relay is the least that is a proxy: what it accepts it dials on to the original destination, with the mark, and for
// inbound connections from the client's address.
type relay struct {
	t        *testing.T
	pod      *netlab.NS
	inbound  bool
	accepted atomic.Int32
}

// serveRelay starts a relay on a port of the pod.
func (s *stage) serveRelay(addr string, inbound bool) *relay {
	s.t.Helper()
	l, err := s.pod.Listen(addr, proxySocket()...)
	s.must(err)
	r := &relay{t: s.t, pod: s.pod, inbound: inbound}
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
	s.t.Cleanup(func() {
		cancel()
		s.must(l.Close())
		work.Wait()
	})
	return r
}

func (r *relay) serve(ctx context.Context, client *net.TCPConn) {
	defer client.Close()
	to, err := netlab.OriginalDst(client)
	if err != nil {
		r.t.Errorf("cannot tell where %s wanted to go: %v", client.RemoteAddr(), err)
		return
	}
	if to.Port() == ruleset.HBONEPort { // not redirected: a real proxy is told the port in the protocol
		to = netip.AddrPortFrom(to.Addr(), 80)
	}
	options := []netlab.Option{netlab.Mark(int(ruleset.ProxyMark))}
	if r.inbound {
		from := netip.MustParseAddrPort(client.RemoteAddr().String()).Addr().Unmap()
		options = append(options, netlab.From(netip.AddrPortFrom(from, 0).String()))
	}
	server, err := r.pod.Dial(ctx, "tcp", to.String(), options...)
	if err != nil {
		return // the client sees the end
	}
	defer server.Close()
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

// Captured connections go through the proxy once, and arrive: outbound ones from the pod's address, inbound ones from
// the client's, as if there were no proxy.
func TestThroughTheProxy(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	netlab.ServeEcho(t, s.peer, "peer", "tcp", "[::]:80")
	netlab.ServeEcho(t, s.pod, "app", "tcp", "[::]:80")
	outbound := s.serveRelay("[::]:15001", false)
	plain := s.serveRelay("[::]:15006", true)
	hbone := s.serveRelay("[::]:15008", true)
	for _, mode := range []struct {
		name                   string
		config                 ruleset.Config
		outbound, plain, hbone int32 // how often each relay is asked
	}{
		{"plain", ruleset.Config{CaptureDNS: true}, 1, 1, 1},
		// Without the marks of this mode the app's answers would leave the pod, past the proxy that dialled.
		{"ingress", ruleset.Config{Ingress: true}, 1, 0, 1},
	} {
		for _, form := range []ruleset.Form{ruleset.FormSYN, ruleset.FormFull} {
			for _, f := range families {
				t.Run(mode.name+"/"+form.String()+"/"+f.String(), func(t *testing.T) {
					s.capture(mode.config, form)
					before := [3]int32{outbound.accepted.Load(), plain.accepted.Load(), hbone.accepted.Load()}
					for _, ask := range []struct {
						from     *netlab.NS
						to, want string
					}{
						{s.pod, "peer:80", "peer, from pod"},
						{s.peer, "pod:80", "app, from peer"},
						{s.peer, "pod:15008", "app, from peer"},
					} {
						if got := s.ask(ask.from, "tcp", f.endpoint(ask.to)); got != ask.want {
							t.Errorf("to %s: got %s, want %s", ask.to, got, ask.want)
						}
					}
					got := [3]int32{outbound.accepted.Load() - before[0], plain.accepted.Load() - before[1], hbone.accepted.Load() - before[2]}
					if want := [3]int32{mode.outbound, mode.plain, mode.hbone}; got != want {
						t.Errorf("15001, 15006 and 15008 accepted %v connections, want %v", got, want)
					}
				})
			}
		}
	}
}

// Open connections through the proxy outlive the release of their pod, until they end by themselves.
func TestReleaseLeavesProxiedConnections(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	netlab.ServeEcho(t, s.peer, "peer", "tcp", "[::]:80")
	netlab.ServeEcho(t, s.pod, "app", "tcp", "[::]:80")
	s.serveRelay("[::]:15001", false)
	s.serveRelay("[::]:15006", true)
	s.capture(ruleset.Config{CaptureDNS: true}, ruleset.FormFull)
	var lines []*line
	for _, f := range families {
		lines = append(lines, s.open(s.pod, f.endpoint("peer:80")), s.open(s.peer, f.endpoint("pod:80")))
	}
	clear := s.watch(s.peer, lines[0].port(), lines[2].port())
	s.capture(ruleset.Config{CaptureDNS: true}, ruleset.FormMarks)
	for _, l := range lines {
		l.speak(t)
	}
	if n := clear.count(t); n != 0 {
		t.Errorf("%d packets of captured connections left in the clear", n)
	}
	if got, want := s.ask(s.pod, "tcp", families[0].endpoint("peer:80")), "peer, from pod"; got != want {
		t.Errorf("a new connection: got %s, want %s", got, want)
	}
}

// Nobody listens on the proxy's ports: connections are refused, and do not go out.
func TestWithoutAProxyNothingLeaves(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	netlab.ServeEcho(t, s.peer, "peer", "tcp", "[::]:80")
	netlab.ServeEcho(t, s.pod, "app", "tcp", "[::]:80")
	s.capture(ruleset.Config{CaptureDNS: true}, ruleset.FormFull)
	for _, f := range families {
		for _, ask := range []struct {
			from *netlab.NS
			to   string
		}{{s.pod, "peer:80"}, {s.pod, "peer:53"}, {s.peer, "pod:80"}} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			_, err := ask.from.Dial(ctx, "tcp", f.endpoint(ask.to))
			cancel()
			if !isRefused(err) {
				t.Errorf("%s, %s: %v, want a refused connection", f, ask.to, err)
			}
		}
	}
}
