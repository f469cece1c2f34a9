package enroll

import (
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// unheard is a captured pod, and one that is not to be captured, after an agent was started
// that has heard nothing from its source yet.
func unheard(t *testing.T, story func(w *world)) {
	captured(t, func(w *world, _ *space) {
		w.object("plain", false)
		if err := w.add("plain", "p1"); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.objects, w.unsynced, w.unread = map[string]intent.Pod{}, true, status.APIUnavailable
		w.mu.Unlock()
		w.restart()
		w.wantDone(announced)
		story(w)
	})
}

// again gives both pods new sandboxes, as the kubelet does.
func (w *world) again(t *testing.T) {
	t.Helper()
	w.space("c2")
	w.space("p2")
	for pod, container := range map[string]string{"web": "c2", "plain": "p2"} {
		if err := w.add(pod, container); err != nil {
			t.Errorf("%s: %v", pod, err)
		}
	}
	w.wantState("plain NotCaptured NotLabelled", "web Captured OK",
		"/run/netns/c1 has full+dns", // which dies
		"/run/netns/c2 has full+dns", "proxy has uid-web acked")
}

// Until the source has told of the node's pods, what was decided of one holds for its next
// sandbox, too.
func TestSandboxMadeAnewBeforeTheSourceIsSynced(t *testing.T) {
	dels := func(w *world) {
		w.del("web", "c1")
		w.del("plain", "p1")
	}
	over := func(w *world) {
		w.set(func() {
			for _, container := range []string{"c1", "p1"} {
				w.spaceOf(container).fail["gone"], w.spaceOf(container).fail["find"] = errAnother, sandbox.ErrNotAPods
			}
		})
	}
	for name, ends := range map[string]func(*world){
		"at once":                  func(*world) {},
		"after their DELs":         dels,
		"and the agent, too":       func(w *world) { dels(w); w.restart() },
		"and twice":                func(w *world) { dels(w); w.restart(); w.restart() },
		"ended between two agents": func(w *world) { over(w); w.restart() },
		"ended by the kernel":      func(w *world) { over(w); w.pass(time.Minute) },
		"ADDs that failed": func(w *world) {
			dels(w)
			w.set(func() { w.spaceOf("c3").fail["apply"] = errAnother })
			if err := w.add("web", "c3"); err == nil {
				t.Error("the ADD succeeded")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			unheard(t, func(w *world) {
				ends(w)
				w.again(t)
			})
		})
	}
}

// It holds for that pod alone, and until the source has its say.
func TestNothingOutlivesTheSource(t *testing.T) {
	unheard(t, func(w *world) {
		w.del("web", "c1")
		w.space("c2")
		wantFailure(t, w.add("other", "c2"), status.APIUnavailable, "so it is")
		w.set(func() { w.unsynced, w.unread = false, "" })
		w.object("web", false)
		if err := w.add("web", "c3"); err != nil {
			t.Error(err)
		}
		w.wantState("plain NotCaptured ObjectGone", "web NotCaptured NotLabelled", "/run/netns/c1 has full+dns")
		w.del("web", "c3")
		w.forget("web")
		w.del("plain", "p1")
		w.pass(time.Minute)
		if len(w.records) > 0 || len(w.r.bygone) > 0 {
			t.Errorf("left on record: %v, %v", w.records, w.r.bygone)
		}
	})
}

// A pod that has ended while the source said nothing, and is known to have when it does, is
// not on record any more.
func TestBygonePodIsForgotten(t *testing.T) {
	unheard(t, func(w *world) {
		w.del("web", "c1")
		w.del("plain", "p1")
		if len(w.records) != 2 {
			t.Errorf("on record: %v", w.records)
		}
		w.set(func() { w.unsynced, w.unread = false, "" })
		w.pass(time.Minute)
		if len(w.records) > 0 || len(w.r.bygone) > 0 {
			t.Errorf("left on record: %v, %v", w.records, w.r.bygone)
		}
	})
}

// A source that is slow, and not silent, has its say before what was decided once.
func TestSlowSourceIsWaitedFor(t *testing.T) {
	unheard(t, func(w *world) {
		w.del("plain", "p1")
		w.set(func() { w.unread = "" }) // nothing is known to keep it from knowing
		w.space("p2")
		answer := w.addLater(w.t.Context(), "plain", "p2")
		w.pass(200 * time.Millisecond)
		select {
		case err := <-answer:
			t.Fatalf("answered by what was decided once: %v", err)
		default:
		}
		w.object("web", true)
		w.set(func() { w.unsynced = false })
		w.object("plain", true) // labelled while no agent ran
		if err := <-answer; err != nil {
			t.Error(err)
		}
		w.pass(time.Second)
		w.wantState("plain Captured OK", "web Captured OK", "/run/netns/c1 has full+dns", "/run/netns/p2 has full+dns",
			"proxy has uid-plain acked", "proxy has uid-web acked")
	})
}

// That a pod had ended is not what was decided of its next sandbox: it may ask for capture.
func TestTerminatedPodThatHasANewSandbox(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.object("web", true, func(p *intent.Pod) { p.Phase = "Succeeded" })
		w.pass(time.Minute)
		w.mu.Lock()
		w.objects, w.unsynced, w.unread = map[string]intent.Pod{}, true, status.APIUnavailable
		w.mu.Unlock()
		w.restart()
		w.del("web", "c1")
		w.space("c2")
		wantFailure(t, w.add("web", "c2"), status.APIUnavailable, "so it is")
	})
}
