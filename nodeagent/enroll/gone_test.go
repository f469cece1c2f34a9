package enroll

import (
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

func TestObjectGone(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.forget("web")
		w.pass(time.Hour)
		w.wantDone()
		w.wantState("web Captured ObjectGone", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

// What keeps the source from knowing later on does not bring back what it knew to be gone.
func TestObjectGoneStaysGone(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.forget("web")
		w.breaks(status.APIUnavailable)
		w.wantState("web Captured ObjectGone", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		w.breaks("")
		w.object("web", true)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

// A namespace that somebody has unmounted looks as if it were over. A pod that lives on in it
// is found again by its processes, and so it is by the next agent.
func TestNamespaceIsUnmountedUnderItsPod(t *testing.T) {
	for name, restarts := range map[string]bool{"while the agent runs": false, "between agents": true} {
		t.Run(name, func(t *testing.T) {
			captured(t, func(w *world, s *space) {
				w.object("web", true, withUID)
				w.mu.Lock()
				s.fail["gone"], s.fail["find"] = errAnother, sandbox.ErrNotAPods
				w.processes, w.byProcess = map[int]string{7: "c1"}, map[string]int{"uid-web": 7}
				w.mu.Unlock()
				if restarts {
					w.restart()
				}
				w.pass(time.Minute)
				w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
			})
		})
	}
}

// The runtime may go on with a pod whose ADD was given up, where that is allowed.
func TestPodOfAnADDThatWasGivenUpRuns(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true, withUID)
		w.mu.Lock()
		w.spaceOf("c1").fail["apply"] = errAnother
		w.mu.Unlock()
		if err := w.add("web", "c1"); err == nil {
			t.Fatal("the ADD succeeded")
		}
		w.mu.Lock()
		delete(w.spaceOf("c1").fail, "apply")
		w.findable = map[string]string{"uid-web": "c1"}
		w.mu.Unlock()
		w.pass(time.Minute)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

// A pod that has not started yet says which file is to be mended.
func TestManifestThatMayHoldAPodsNamespace(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		w.breaks(status.ManifestBroken)
		w.wantState("web Pending ManifestBroken")
		got := w.r.Report()[0]
		if got.Message != "so it is" || got.Remedy != got.Reason.Remedy() {
			t.Errorf("message %q, remedy %q", got.Message, got.Remedy)
		}
		w.breaks("")
		w.wantState("web Pending NetworkNamespaceUnknown")
	})
}

// A manifest that cannot be read says nothing of pods that were decided on.
func TestManifestThatCannotBeRead(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.breaks(status.ManifestBroken)
		w.pass(time.Hour)
		w.wantDone()
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		w.restart()
		w.pass(time.Minute)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		w.breaks("")
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		w.forget("web")
		w.wantState("web Captured ObjectGone", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}
