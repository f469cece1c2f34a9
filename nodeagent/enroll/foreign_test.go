package enroll

import (
	"strings"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/sockets"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// What stands before our rules is named, once in the log, for as long as it is there.
func TestForeignRules(t *testing.T) {
	captured(t, func(w *world, s *space) {
		s.set(func() { s.foreign = []string{"chain ip evil/out: before ours"} })
		w.pass(30 * time.Second)
		w.wantState("web Captured ForeignRules", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		if got := w.r.Report()[0]; !strings.Contains(got.Message, "chain ip evil/out: before ours") || got.Remedy == "" {
			t.Errorf("%s; %s", got.Message, got.Remedy)
		}
		if got := w.logged.Lines("may be taken before it is redirected"); len(got) != 1 {
			t.Errorf("logged: %q", got)
		}
		s.set(func() { s.foreign = nil })
		w.pass(10 * time.Second)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

// An app that binds a port of the proxy's while that is away would get what is
// redirected. The proxy that comes back cannot listen there.
func TestSquatters(t *testing.T) {
	nc := []sockets.Squatter{{Port: 15001, Protocol: ruleset.TCP, PID: 42, Command: "nc"}}
	captured(t, func(w *world, s *space) {
		w.proxySays(proxylink.NoProxy, "")
		s.set(func() { s.squatters = nc })
		w.pass(10 * time.Second)
		w.wantState("web Bypassing ProxyPortTaken", "/run/netns/c1 has full+dns", "proxy has uid-web noProxy")
		if got := w.r.Report()[0]; !strings.Contains(got.Message, "port 15001/tcp: nc (pid 42)") || got.Remedy == "" || got.Listeners.String() != "15006,15008,15053" {
			t.Errorf("%s; %s; listeners %s", got.Message, got.Remedy, got.Listeners)
		}
		w.proxySays(proxylink.Acked, "")
		w.pass(10 * time.Second)
		w.wantState("web Bypassing ProxyPortTaken", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		s.set(func() { s.squatters = nil })
		w.pass(10 * time.Second)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
	running(t, func(w *world, s *space) {
		s.set(func() { s.squatters = nc })
		w.object("web", true)
		w.pass(10 * time.Second)
		w.wantState("web Bypassing ProxyPortTaken", "/run/netns/c1 has marks+dns")
	})
	inWorld(t, func(w *world) {
		w.object("web", true)
		s := w.space("c1")
		s.set(func() { s.squatters = nc })
		wantFailure(t, w.add("web", "c1"), status.PortTaken, "nc (pid 42)")
		w.wantState("web Pending ProxyPortTaken")
	})
}

// Somebody who changes the rules again and again is named, and costs little.
func TestAFightForTheRules(t *testing.T) {
	captured(t, func(w *world, s *space) {
		for range 200 { // ten times a second
			s.set(func() { s.rules = "" })
			s.changed("evil (pid 42)")
			w.pass(100 * time.Millisecond)
		}
		if n := strings.Count(w.done(), "apply full+dns"); n < fightRepairs || n > 15 {
			t.Errorf("put right %d times in 20 s", n)
		}
		got := w.r.Report()[0]
		if got.State != status.Bypassing || got.Reason != status.RulesFought || !strings.Contains(got.Message, "by evil (pid 42)") {
			t.Errorf("got %s (%s): %s", got.State, got.Reason, got.Message)
		}
		w.pass(time.Minute)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}
