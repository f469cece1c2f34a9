package enroll

import (
	"errors"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A drained node releases its pods in the order of any release, and captures them again
// when that is over.
func TestDrain(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.r.Drain(w.t.Context(), true)
		w.wantState("web NotCaptured Draining", "/run/netns/c1 has marks+dns", "proxy has uid-web acked")
		w.pass(10 * time.Second)
		w.wantState("web NotCaptured NodeDrained")
		if got := w.r.Report()[0]; got.Remedy == "" || got.Rules.State != "none" {
			t.Errorf("reported as %+v", got)
		}
		w.r.Drain(w.t.Context(), false)
		w.pass(time.Second)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

// What asks for capture does not start on a drained node; what does not ask starts.
func TestADDOnADrainedNode(t *testing.T) {
	inWorld(t, func(w *world) {
		w.r.Drain(w.t.Context(), true)
		w.space("c1")
		w.space("c2")
		w.object("web", true)
		w.object("plain", false)
		var f *Failure
		if err := w.add("web", "c1"); !errors.As(err, &f) || f.Reason != status.NodeDrained {
			t.Errorf("the ADD of a pod that asks for capture: %v", err)
		}
		if err := w.add("plain", "c2"); err != nil {
			t.Errorf("the ADD of one that does not: %v", err)
		}
		w.wantState("plain NotCaptured NotLabelled", "web Pending NodeDrained")
	})
}

// An ADD that is under way when the node is drained fails, and what it did is undone.
func TestDrainDuringAnADD(t *testing.T) {
	inWorld(t, func(w *world) {
		w.space("c1")
		w.object("web", true)
		w.proxySays(proxylink.Waiting, "")
		answer := w.addLater(w.t.Context(), "web", "c1")
		w.r.Drain(w.t.Context(), true)
		var f *Failure
		if err := <-answer; !errors.As(err, &f) || f.Reason != status.NodeDrained {
			t.Errorf("the ADD: %v", err)
		}
		w.wantState("web Pending NodeDrained")
	})
}

// A pod whose object is gone, or cannot be asked for, is captured, and is released too.
func TestDrainWithoutAnObject(t *testing.T) {
	for name, lose := range map[string]func(*world){
		"gone":          func(w *world) { w.forget("web") },
		"not to be had": func(w *world) { w.breaks(status.APIUnavailable) },
	} {
		t.Run(name, func(t *testing.T) {
			captured(t, func(w *world, s *space) {
				lose(w)
				w.r.Drain(w.t.Context(), true)
				w.pass(20 * time.Second)
				if got := w.r.Report()[0]; got.State != status.NotCaptured || got.Rules.State != "none" {
					t.Errorf("reported as %s %s, rules %s", got.State, got.Reason, got.Rules.State)
				}
			})
		})
	}
}

// The record says what was decided by labels, too: the next agent may be one that is not
// drained.
func TestDrainThatTheNextAgentDoesNotKnow(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.breaks(status.APIUnavailable)
		w.r.Drain(w.t.Context(), true)
		w.restart()
		w.pass(10 * time.Second)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

// A pod that is captured and on nobody's record is looked for, and released.
func TestDrainOfAPodThatIsNotOnRecord(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.object("web", true, func(p *intent.Pod) { p.UID = "uid-web" })
		w.set(func() { w.records = map[string]Record{}; w.findable = map[string]string{"uid-web": "c1"} })
		w.restart()
		w.r.Drain(w.t.Context(), true)
		w.pass(20 * time.Second)
		w.wantState("web NotCaptured NodeDrained")
	})
}
