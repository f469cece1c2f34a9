package redirect_test

import (
	"context"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// serveRelay starts what stands in for the proxy on one of its ports.
func (s *stage) serveRelay(addr string, inbound bool) *netlab.Relay {
	s.t.Helper()
	r := &netlab.Relay{Mark: int(ruleset.ProxyMark), Inbound: inbound, Direct: 80}
	r.Serve(s.t, s.pod, addr, proxySocket()...)
	return r
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
		outbound, plain, hbone int // how often each relay is asked
	}{
		{"plain", ruleset.Config{CaptureDNS: true}, 1, 1, 1},
		// Without the marks of this mode the app's answers would leave the pod, past the proxy that dialled.
		{"ingress", ruleset.Config{Ingress: true}, 1, 0, 1},
	} {
		for _, form := range []ruleset.Form{ruleset.FormSYN, ruleset.FormFull} {
			for _, f := range families {
				t.Run(mode.name+"/"+form.String()+"/"+f.String(), func(t *testing.T) {
					s.capture(mode.config, form)
					before := [3]int{outbound.Accepted(), plain.Accepted(), hbone.Accepted()}
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
					got := [3]int{outbound.Accepted() - before[0], plain.Accepted() - before[1], hbone.Accepted() - before[2]}
					if want := [3]int{mode.outbound, mode.plain, mode.hbone}; got != want {
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
