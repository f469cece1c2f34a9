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

var nc = []sockets.Squatter{{Port: 15001, Protocol: ruleset.TCP, PID: 42, Command: "nc"}}

// An app that binds a port of the proxy's while that is away would get what is
// redirected. The proxy that comes back could not listen there, and is not told of the pod.
func TestSquatters(t *testing.T) {
	captured(t, func(w *world, s *space) {
		w.proxySays(proxylink.NoProxy, "")
		s.set(func() { s.squatters = nc })
		w.pass(10 * time.Second)
		// The proxy still listens beside it: it may have lost its connection alone.
		w.wantDone()
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

		w.proxySays(proxylink.NoProxy, "")
		s.set(func() { s.squatters, s.missing = nc, "tcp" })
		w.pass(10 * time.Second)
		w.wantDone("withdraw uid-web")
		w.proxySays(proxylink.Acked, "")
		w.pass(time.Minute)
		w.wantState("web Bypassing ProxyPortTaken", "/run/netns/c1 has full+dns")
		s.set(func() { s.squatters, s.missing = nil, "" })
		w.pass(10 * time.Second)
		w.wantDone(announced)
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

// So it is where nothing is redirected yet, and a proxy was waited for.
func TestSquattersBeforeTheProxyComes(t *testing.T) {
	running(t, func(w *world, s *space) {
		w.proxySays(proxylink.NoProxy, "")
		s.set(func() { s.missing = "tcp" })
		w.object("web", true)
		w.wantDone("apply marks+dns", announced)
		s.set(func() { s.squatters = nc })
		w.pass(15 * time.Second)
		w.wantDone("withdraw uid-web")
		w.proxySays(proxylink.Acked, "")
		w.wantState("web Bypassing ProxyPortTaken", "/run/netns/c1 has marks+dns")
		s.set(func() { s.squatters, s.missing = nil, "" })
		w.pass(listenerWatch)
		w.wantDone(announced, "apply syn+dns", "expel")
	})
	inWorld(t, func(w *world) {
		w.proxySays(proxylink.NoProxy, "")
		w.object("web", true)
		answer := w.addLater(w.t.Context(), "web", "c1")
		s := w.space("c1")
		s.set(func() {
			s.squatters, s.missing = nc, "tcp"
			if s.looks != 1 { // nothing of the pod runs, and a pod's start is not to take longer
				w.t.Errorf("looked %d times", s.looks)
			}
		})
		w.pass(time.Second)
		w.proxySays(proxylink.Acked, "")
		wantFailure(t, <-answer, status.PortTaken, "nc (pid 42)")
		w.wantDone("apply full+dns", announced, "withdraw uid-web", "remove")
	})
}

// A proxy that has the pod keeps what is left of it: for DNS alone, or while the newest of
// two has not answered, its connections are not cut.
func TestSquattersBesideAProxy(t *testing.T) {
	captured(t, func(w *world, s *space) {
		s.set(func() {
			s.squatters = []sockets.Squatter{{Port: 15053, Protocol: ruleset.UDP, PID: 53, Command: "dnsmasq"}}
		})
		for _, says := range []proxylink.State{proxylink.Acked, proxylink.NoProxy, proxylink.Queued, proxylink.Waiting, proxylink.Acked} {
			w.proxySays(says, "")
			w.pass(10 * time.Second)
			w.wantDone()
			w.wantState("web Bypassing ProxyPortTaken", "/run/netns/c1 has full+dns", "proxy has uid-web "+string(says))
		}
	})
	captured(t, func(w *world, s *space) {
		w.r.config.Proxies = &twoProxies{world: w}
		s.set(func() { s.squatters, s.missing = nc, "tcp" })
		w.proxySays(proxylink.Waiting, "")
		w.pass(10 * time.Second)
		w.wantDone()
		w.wantState("web Bypassing ProxyPortTaken", "/run/netns/c1 has full+dns", "proxy has uid-web waiting")
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
