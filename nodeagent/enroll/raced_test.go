package enroll

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
)

// before is a world with a pod that runs, with one connection, and that the agent has
// not been told of. The change is made before the agent starts.
func before(t *testing.T, labelled bool, change func(*world), story func(w *world, s *space)) {
	inWorld(t, func(w *world) {
		w.stop()
		w.installed = time.Now()
		w.born = w.installed.Add(time.Minute)
		w.findable = map[string]string{"uid-web": "c1"}
		w.object("web", labelled, withUID)
		w.space("c1").older = 1
		if change != nil {
			change(w)
		}
		w.pass(time.Hour)
		w.restart()
		w.r.Seek(t.Context()) // as the agent does before it is ready
		story(w, w.space("c1"))
	})
}

var captureAndReset = []string{"keep uid-web", "apply marks+dns", announced, "apply syn+dns", "expel", "reset 1", "apply full+dns", "expel"}

// What a pod opened because it was quicker than the agent is owed to nobody.
func TestAPodThatWasQuickerThanTheAgent(t *testing.T) {
	before(t, true, nil, func(w *world, _ *space) {
		w.pass(time.Second)
		w.wantDone(captureAndReset...)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		if w.records["uid-web"].Raced {
			t.Error("it is still on record as due")
		}
	})
}

// Unless it is known that the pod was promised capture all the time, its connections
// live.
func TestConnectionsThatWerePromisedNothing(t *testing.T) {
	for name, test := range map[string]struct {
		labelled bool
		change   func(*world)
	}{
		"older than the installation":  {true, func(w *world) { w.born = w.installed.Add(-time.Second) }},
		"as old as the installation":   {true, func(w *world) { w.born = w.installed }},
		"born nobody knows when":       {true, func(w *world) { w.born = time.Time{} }},
		"installed nobody knows when":  {true, func(w *world) { w.installed = time.Time{} }},
		"labelled later":               {false, nil},
		"the configuration keeps them": {true, func(w *world) { w.existing = intent.Keep }},
	} {
		t.Run(name, func(t *testing.T) {
			before(t, test.labelled, test.change, func(w *world, _ *space) {
				w.object("web", true, withUID)
				w.pass(time.Minute)
				w.wantDone("keep uid-web", "apply marks+dns", announced, "apply syn+dns", "expel")
				w.wantState("web Captured OldConnections", "/run/netns/c1 has syn+dns", "proxy has uid-web acked")
			})
		})
	}
}

// A pod whose namespace nobody knows yet has no intent that could change.
func TestAPodWhoseNamespaceComesLater(t *testing.T) {
	before(t, true, func(w *world) { w.hidden = true }, func(w *world, _ *space) {
		w.pass(time.Minute)
		w.wantDone(captureAndReset[0])
		w.mu.Lock()
		w.hidden = false
		w.mu.Unlock()
		w.pass(11 * time.Second)
		w.wantDone(captureAndReset[1:]...)
	})
}

// That it is due is not forgotten, whatever happens until it can be done.
func TestRacedConnectionsAfterARestart(t *testing.T) {
	before(t, true, func(w *world) { w.space("c1").fail["destroy"] = errors.New("not now") }, func(w *world, s *space) {
		w.pass(time.Minute)
		w.wantState("web Bypassing OldConnections", "/run/netns/c1 has syn+dns", "proxy has uid-web acked")
		w.restart()
		w.pass(time.Second)
		w.wantDone(announced)
		w.wantState("web Bypassing OldConnections", "/run/netns/c1 has syn+dns", "proxy has uid-web acked")
		s.set(func() { delete(s.fail, "destroy") })
		w.pass(10 * time.Second)
		w.wantDone("reset 1", "apply full+dns", "expel")
	})
}

// A label that was taken away and put back was seen to change.
func TestALabelThatComesBackIsNoRace(t *testing.T) {
	before(t, true, func(w *world) { w.space("c1").fail["destroy"] = errors.New("not now") }, func(w *world, s *space) {
		w.pass(time.Minute)
		w.object("web", false, withUID)
		s.set(func() { delete(s.fail, "destroy") })
		w.object("web", true, withUID)
		w.pass(time.Minute)
		if got := w.done(); strings.Contains(got, "reset") {
			t.Errorf("was done:\n%s", got)
		}
		w.wantState("web Captured OldConnections", "/run/netns/c1 has syn+dns", "proxy has uid-web acked")
	})
}

// What was reset once is no reason to reset what comes later.
func TestTheRaceIsOver(t *testing.T) {
	before(t, true, nil, func(w *world, s *space) {
		w.pass(time.Second)
		w.done()
		w.object("web", false, withUID)
		w.pass(time.Minute)
		s.set(func() { s.older = 1 })
		w.object("web", true, withUID)
		w.pass(time.Minute)
		w.wantState("web Captured OldConnections", "/run/netns/c1 has syn+dns", "proxy has uid-web acked")
	})
}
