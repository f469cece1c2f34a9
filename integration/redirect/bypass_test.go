package redirect_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// The app's own rules, in whichever iptables, before or after ours, let nothing past the redirects: neither an ACCEPT nor a
// redirect of their own.
func TestAppsRulesDoNotShadowTheRedirects(t *testing.T) {
	netlab.Kernel(t)
	everywhere := func(s *stage, commands []string, tables []string, rule ...string) {
		for _, command := range commands {
			for _, table := range tables {
				for _, chain := range []string{"OUTPUT", "PREROUTING"} {
					netlab.MustRun(s.t, s.pod, command, append([]string{"-t", table, "-I", chain}, rule...)...)
				}
			}
		}
	}
	captured := slices.Concat(always, inboundCaptured, dnsCaptured)
	captured = slices.DeleteFunc(captured, func(r row) bool { // what we do not redirect the app may
		return !strings.HasPrefix(r.want, "15001") && !strings.HasPrefix(r.want, "15006") && !strings.HasPrefix(r.want, "15053")
	})
	for name, commands := range map[string][]string{
		"nf_tables": {"iptables-nft", "ip6tables-nft"},
		"legacy":    {"iptables-legacy", "ip6tables-legacy"},
	} {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/first=%t", name, first), func(t *testing.T) {
				s := newStage(t)
				s.serve()
				capture := func() { s.capture(ruleset.Config{CaptureDNS: true}, ruleset.FormFull) }
				if !first {
					capture()
				}
				everywhere(s, commands, []string{"raw", "mangle", "nat"}, "-j", "ACCEPT")
				if first {
					capture()
				}
				s.rows(t, always, inboundCaptured, dnsCaptured)
				for _, protocol := range []string{"tcp", "udp"} {
					everywhere(s, commands, []string{"nat"}, "-p", protocol, "-j", "REDIRECT", "--to-ports", "90")
				}
				if first {
					capture()
				}
				s.rows(t, captured)
			})
		}
	}
}

// notrack has the app take its TCP out of connection tracking, in both directions, before or after our raw chains.
func (s *stage) notrack(priority string) {
	s.t.Helper()
	for _, hook := range []string{"output", "prerouting"} {
		netlab.MustRun(s.t, s.pod, "nft", fmt.Sprintf("add table inet app; add chain inet app %[1]s { type filter hook %[1]s priority %[2]s; }; "+
			"add rule inet app %[1]s meta l4proto tcp notrack", hook, priority))
	}
}

// With a NOTRACK of the app's nothing is redirected; the guard drops it instead. Everything that is exempt stays so.
func TestNotrackDoesNotBypass(t *testing.T) {
	netlab.Kernel(t)
	exempt := []row{
		{"the proxy's own", "pod", "tcp", "peer:80", ruleset.ProxyMark, "", "peer, from pod"},
		{"the pod's own address", "pod", "tcp", "pod:80", 0, "", "app, from pod"},
		{"loopback", "pod", "tcp", "loopback:80", 0, "", "app, from loopback"},
		{"to the probe address", "pod", "tcp", "probe:80", 0, "", "node, from pod"},
		{"the kubelet's probe", "node", "tcp", "pod:80", 0, "probe:0", "app, from probe"},
		{"HBONE inbound", "peer", "tcp", "pod:15008", 0, "", "15008, from peer"},
	}
	bypassed := []row{
		{"without the guard: outbound", "pod", "tcp", "peer:80", 0, "", "peer, from pod"},
		{"without the guard: inbound", "peer", "tcp", "pod:80", 0, "", "app, from peer"},
	}
	for _, priority := range []string{"raw", "-350"} {
		t.Run("priority "+priority, func(t *testing.T) {
			s := newStage(t)
			s.serve()
			s.notrack(priority)
			s.capture(ruleset.Config{}, ruleset.FormMarks)
			s.rows(t, exempt, bypassed)
			for _, form := range []ruleset.Form{ruleset.FormSYN, ruleset.FormFull} {
				s.capture(ruleset.Config{CaptureDNS: true}, form)
				s.rows(t, exempt)
				for _, f := range families {
					s.dropped(t, s.pod, f.endpoint("peer:80"))
					s.dropped(t, s.peer, f.endpoint("pod:80"))
				}
			}
			s.capture(ruleset.Config{Ingress: true}, ruleset.FormFull)
			s.rows(t, exempt, bypassed[1:])
			for _, f := range families {
				s.dropped(t, s.pod, f.endpoint("peer:80"))
			}
		})
	}
}

// dropped has a SYN come to the pod's guard, and sees that it does not come past it.
func (s *stage) dropped(t *testing.T, from *netlab.NS, to string) {
	t.Helper()
	guarded, beyond := "output", "postrouting"
	if from != s.pod {
		guarded, beyond = "prerouting", "input"
	}
	const syn = "ct state untracked tcp dport 80 tcp flags & (syn | ack) == syn"
	before, after := s.count(s.pod, guarded, "-2", syn), s.count(s.pod, beyond, "-10", syn)
	ctx, cancel := context.WithCancel(t.Context())
	dialled := make(chan error, 1)
	go func() {
		conn, err := from.Dial(ctx, "tcp", to)
		if err == nil {
			err = fmt.Errorf("connected, and closed: %v", conn.Close())
		}
		dialled <- err
	}()
	netlab.Eventually(t, func() error {
		if before.count(t) == 0 {
			return fmt.Errorf("no SYN from %s to %s has come as far as the guard", from.Name, to)
		}
		return nil
	})
	if n := after.count(t); n != 0 {
		t.Errorf("%s to %s: %d SYNs came past the guard", from.Name, to, n)
	}
	cancel()
	if err := <-dialled; !errors.Is(err, context.Canceled) {
		t.Errorf("%s to %s: %v", from.Name, to, err)
	}
}

// What comes from behind a virtual interface is forwarded, and not local, when it is not redirected.
func TestNotrackBehindAVirtualInterface(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	s.serve()
	s.must(s.pod.Sysctl("net/ipv4/ip_forward", "1"))
	s.must(s.pod.Sysctl("net/ipv6/conf/all/forwarding", "1"))
	s.notrack("raw")
	for _, ingress := range []bool{false, true} {
		s.capture(ruleset.Config{Ingress: ingress, VirtualInterfaces: []string{"k6t-eth0"}}, ruleset.FormFull)
		for _, f := range families {
			s.forwardDropped(t, f.endpoint("peer:80"))
		}
	}
}

func (s *stage) forwardDropped(t *testing.T, to string) {
	t.Helper()
	before, after := s.count(s.pod, "prerouting", "-2", "tcp dport 80"), s.count(s.pod, "forward", "-10", "tcp dport 80")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if conn, err := s.vm.Dial(ctx, "tcp", to); err == nil {
			t.Errorf("connected to %s: %v", to, conn.Close())
		}
	}()
	netlab.Eventually(t, func() error {
		if before.count(t) == 0 {
			return fmt.Errorf("no SYN to %s has come to the pod", to)
		}
		return nil
	})
	if n := after.count(t); n != 0 {
		t.Errorf("%d SYNs to %s were forwarded", n, to)
	}
	cancel()
	<-done
}

// Untracked connections that are older than the rules live on in syn form, and are stopped in full form; their resets
// pass, so that the peer learns of it when the app's socket goes.
func TestOlderUntrackedConnections(t *testing.T) {
	netlab.Kernel(t)
	for _, f := range families {
		t.Run(f.String(), func(t *testing.T) {
			s := newStage(t)
			s.serve()
			s.notrack("raw")
			l := s.open(s.pod, f.endpoint("peer:80"))
			s.capture(ruleset.Config{}, ruleset.FormSYN)
			l.speak(t)
			s.capture(ruleset.Config{}, ruleset.FormFull)
			data := s.count(s.pod, "output", "-2", "tcp dport 80 tcp flags & rst == 0")
			past := s.count(s.pod, "postrouting", "-10", "tcp dport 80 tcp flags & rst == 0")
			resets := s.count(s.peer, "input", "-10", "tcp flags & rst == rst")
			s.must(l.send())
			netlab.Eventually(t, func() error {
				if data.count(t) == 0 {
					return fmt.Errorf("the app's data has not come as far as the guard")
				}
				return nil
			})
			if n := past.count(t); n != 0 {
				t.Errorf("%d packets with data came past the guard", n)
			}
			s.must(reset(l.conn))
			netlab.Eventually(t, func() error {
				if resets.count(t) == 0 {
					return fmt.Errorf("the peer has not seen a reset")
				}
				return nil
			})
		})
	}
}
