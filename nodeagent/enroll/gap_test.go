package enroll

import (
	"errors"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
)

// What was opened while the redirects were away is reset, also if others are wanted by
// the time that it is seen.
func TestAGapThatAChangeOfTheConfigurationHides(t *testing.T) {
	withoutDNS := func(p *intent.Pod) { p.Annotations = map[string]string{intent.AnnotationDNS: "false"} }
	for name, act := range map[string]func(*world, *space){
		"while the agent runs": func(w *world, s *space) {
			s.set(func() { s.rules, s.older = "", 1 })
			w.object("web", true, withoutDNS)
		},
		"while no agent runs": func(w *world, s *space) {
			w.stop()
			s.set(func() { s.rules, s.older = "", 1 })
			w.object("web", true, withoutDNS)
			w.restart()
		},
	} {
		t.Run(name, func(t *testing.T) {
			captured(t, func(w *world, s *space) {
				act(w, s)
				w.pass(time.Minute)
				if s.older != 0 {
					t.Errorf("%d connections are still in the clear, was done:\n%s", s.older, w.done())
				}
				w.wantState("web Captured OK", "/run/netns/c1 has full", "proxy has uid-web acked")
			})
		})
	}
}

// Who takes the redirects away again and again, and puts them back before the agent
// does, gains nothing by it.
func TestAGapThatSomebodyElseCloses(t *testing.T) {
	captured(t, func(w *world, s *space) {
		var whole string
		s.set(func() { whole = s.rules })
		for range fightRepairs {
			s.set(func() { s.rules = "" })
			w.r.Wake("uid-web")
			w.pass(time.Millisecond)
		}
		s.set(func() { s.rules, s.older = "", 1 })
		w.r.Wake("uid-web")
		w.pass(time.Millisecond)
		w.wantState("web Bypassing RulesFought", "proxy has uid-web acked")
		s.set(func() { s.rules = whole })
		w.pass(time.Minute)
		if s.older != 0 {
			t.Errorf("%d connections are still in the clear, was done:\n%s", s.older, w.done())
		}
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

// Connections that are due, and that cannot be looked for, are a bypass; those that are
// kept are not.
func TestWhatIsDueCannotBeLookedFor(t *testing.T) {
	blind := func(w *world) { w.space("c1").fail["pair"] = errors.New("too many to look at") }
	before(t, true, blind, func(w *world, s *space) {
		w.pass(time.Minute)
		w.wantState("web Bypassing OldConnections", "/run/netns/c1 has syn+dns", "proxy has uid-web acked")
		s.set(func() { delete(s.fail, "pair") })
		w.pass(10 * time.Second)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
	before(t, false, blind, func(w *world, _ *space) {
		w.object("web", true, withUID)
		w.pass(time.Minute)
		w.wantState("web Captured OldConnections", "/run/netns/c1 has syn+dns", "proxy has uid-web acked")
	})
}
