package redirect_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// forget deletes the conntrack entries of the pod's TCP connections, as time does: a half-closed connection's after 60 s.
func (s *stage) forget(f family) {
	s.t.Helper()
	netlab.MustRun(s.t, s.pod, "conntrack", "-D", "-f", map[family]string{0: "ipv4", 1: "ipv6"}[f], "-p", "tcp")
}

// A captured connection whose conntrack entry is lost: in full form what the app sends goes back to the proxy, in syn form
// it leaves the pod in the clear.
func TestCapturedConnectionThatLostItsEntry(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	s.serve()
	for _, tt := range []struct {
		form  ruleset.Form
		leaks bool
	}{{ruleset.FormFull, false}, {ruleset.FormSYN, true}} {
		for _, f := range families {
			t.Run(tt.form.String()+"/"+f.String(), func(t *testing.T) {
				s.capture(ruleset.Config{CaptureDNS: true}, tt.form)
				l := s.open(s.pod, f.endpoint("peer:80"))
				if l.server != "15001" {
					t.Fatalf("answered by %s", l.server)
				}
				clear := s.watch(s.peer, l.port())
				s.forget(f)
				err := l.exchange()
				if leaked := clear.count(t) > 0; leaked != tt.leaks {
					t.Errorf("packets in the clear: %t, want %t", leaked, tt.leaks)
				}
				if tt.leaks != isReset(err) { // by the peer, which does not know the connection
					t.Errorf("the app's connection: %v", err)
				}
			})
		}
	}
}

// If it is the proxy that sends first, the connection is reset: the app sees an answer from an address that it never called.
func TestCapturedConnectionThatLostItsEntryAndTheProxySends(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	l, err := s.pod.Listen("[::]:15001", proxySocket()...)
	s.must(err)
	defer l.Close()
	s.capture(ruleset.Config{}, ruleset.FormFull)
	for _, f := range families {
		app, err := s.pod.Dial(t.Context(), "tcp", f.endpoint("peer:80"))
		s.must(err)
		proxy, err := l.Accept()
		s.must(err)
		clear := s.count(s.peer, "prerouting", "-450", "meta l4proto tcp")
		s.forget(f)
		_, err = fmt.Fprintln(proxy, "late")
		s.must(err)
		if _, err := io.ReadAll(proxy); !isReset(err) {
			t.Errorf("%s: the proxy's connection: %v", f, err)
		}
		if n := clear.count(t); n != 0 {
			t.Errorf("%s: %d packets left the pod", f, n)
		}
		s.must(app.Close())
		s.must(proxy.Close())
	}
}

// Connections older than the rules, in a namespace where conntrack never ran: full form cuts them, syn form lets them live.
func TestConnectionsOlderThanTheRules(t *testing.T) {
	netlab.Kernel(t)
	for _, tt := range []struct {
		form  ruleset.Form
		lives bool
	}{{ruleset.FormFull, false}, {ruleset.FormSYN, true}} {
		for _, f := range families {
			t.Run(tt.form.String()+"/"+f.String(), func(t *testing.T) {
				s := newStage(t)
				s.serve()
				outbound, inbound := s.open(s.pod, f.endpoint("peer:80")), s.open(s.peer, f.endpoint("pod:80"))
				s.capture(ruleset.Config{CaptureDNS: true}, tt.form)
				clear := s.watch(s.peer, outbound.port())
				for what, l := range map[string]*line{"outbound": outbound, "inbound": inbound} {
					if err := l.exchange(); (err == nil) != tt.lives || (err != nil && !isReset(err)) {
						t.Errorf("%s: %v", what, err)
					}
				}
				if sent := clear.count(t) > 0; sent != tt.lives {
					t.Errorf("packets of the older connection in the clear: %t", sent)
				}
				s.rows(t, always, inboundCaptured)
			})
		}
	}
}

// From marks to syn to full, each in time, no connection is lost: the way a running pod is captured with its connections
// kept, and the way they are all captured in the end.
func TestCaptureOfARunningPod(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	s.serve()
	var older, captured []*line
	for _, f := range families {
		older = append(older, s.open(s.pod, f.endpoint("peer:80")), s.open(s.peer, f.endpoint("pod:80")))
	}
	speak := func(when string) {
		t.Helper()
		for _, l := range append(older, captured...) {
			if err := l.exchange(); err != nil {
				t.Errorf("%s: connection to %s: %v", when, l.conn.RemoteAddr(), err)
			}
		}
	}
	config := ruleset.Config{CaptureDNS: true}
	s.capture(config, ruleset.FormMarks)
	speak("marks")
	s.capture(config, ruleset.FormSYN)
	speak("syn")
	for _, f := range families {
		for _, l := range []*line{s.open(s.pod, f.endpoint("peer:80")), s.open(s.peer, f.endpoint("pod:80"))} {
			if l.server != "15001" && l.server != "15006" {
				t.Errorf("new connection to %s answered by %s", l.conn.RemoteAddr(), l.server)
			}
			captured = append(captured, l)
		}
	}
	speak("syn, with new ones")
	s.capture(config, ruleset.FormFull) // conntrack knows the older ones by now
	speak("full")
	s.capture(config, ruleset.FormMarks)
	speak("marks again")
}

// A SYN without an answer is sent again, on the way that its entry says, until the entry is deleted.
func TestConnectionBeingOpenedWhenRulesCome(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	s.serve()
	s.capture(ruleset.Config{}, ruleset.FormMarks) // conntrack runs
	netlab.MustRun(t, s.peer, "nft", "add table inet deaf; add chain inet deaf c { type filter hook input priority 0; }; add rule inet deaf c tcp dport 80 drop")
	arrived := s.count(s.peer, "input", "-10", "tcp dport 80")
	got := make(chan string, len(families))
	for _, f := range families {
		go func() { got <- s.ask(s.pod, "tcp", f.endpoint("peer:80")) }()
	}
	netlab.Eventually(t, func() error {
		if n := arrived.count(t); n < len(families) {
			return fmt.Errorf("%d SYNs have arrived", n)
		}
		return nil
	})
	s.capture(ruleset.Config{}, ruleset.FormFull)
	deleted, err := s.entries.DeleteUncaptured(t.Context())
	s.must(err)
	if deleted != len(families) {
		t.Errorf("%d entries deleted", deleted)
	}
	for range families {
		if got, want := <-got, "15001, from pod, for peer:80"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
