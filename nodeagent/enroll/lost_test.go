package enroll

import (
	"errors"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// set changes the world while the reconciler may look at it.
func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// byProcess is a world with a captured pod that was found by process 20, and whose
// namespace is mounted nowhere.
func byProcess(t *testing.T, story func(w *world, s *space)) {
	t.Helper()
	inWorld(t, func(w *world) {
		w.set(func() { w.processes, w.byProcess = map[int]string{20: "c1"}, map[string]int{"uid-web": 20} })
		w.object("web", true, withUID)
		w.pass(10 * time.Second)
		w.wantDone("keep uid-web", "apply marks+dns", announced, "apply syn+dns", "expel", "apply full+dns", "expel")
		w.pass(time.Minute)
		if w.searches != 1 {
			t.Errorf("%d searches, though the pod is there", w.searches)
		}
		story(w, w.space("c1"))
	})
}

// moves ends process 20; another one leads to a container, or none if it is empty.
func (w *world) moves(container string) {
	w.set(func() {
		delete(w.processes, 20)
		if container != "" {
			w.processes[21], w.byProcess["uid-web"] = container, 21
		}
	})
}

func (w *world) wantNetns(path string) {
	w.t.Helper()
	if got := w.r.Report()[0].Netns.Path; got != path {
		w.t.Errorf("the namespace is known by %s, want %s", got, path)
	}
}

var stillCaptured = []string{"web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked"}

// The process ends, the pod goes on: so does its capture.
func TestAProcessEndsAndAnotherIsThere(t *testing.T) {
	byProcess(t, func(w *world, s *space) {
		w.moves("c1")
		w.pass(20 * time.Second)
		w.wantDone()
		w.wantState(stillCaptured...)
		w.wantNetns("/proc/21/ns/net")
		before := w.searches
		w.pass(time.Hour)
		if w.searches != before {
			t.Errorf("it is searched for %d times more", w.searches-before)
		}
		// And when the kernel leads to it by a mount, the kernel's word is enough.
		w.set(func() { w.findable = map[string]string{"uid-web": "c1"}; delete(w.processes, 21) })
		w.pass(20 * time.Second)
		w.wantNetns("/run/netns/c1")
		w.forget("web") // or it would be searched for
		s.set(func() { s.fail["gone"] = errors.New("gone") })
		w.pass(10 * time.Second)
		w.wantDone("withdraw uid-web")
	})
}

// Our own hold on the namespace does not keep a pod that is over.
func TestAProcessEndsAndNothingIsLeft(t *testing.T) {
	byProcess(t, func(w *world, s *space) {
		w.moves("")
		w.set(func() { w.undecided = errors.New("no descriptors are left") })
		w.pass(time.Minute)
		w.wantDone()
		w.wantState(stillCaptured...)
		if n := len(w.logged.Lines("no descriptors are left")); n != 1 {
			t.Errorf("said %d times", n)
		}
		w.set(func() { w.undecided = nil })
		w.forget("web")
		w.pass(20 * time.Second)
		w.wantDone("withdraw uid-web")
		if len(w.r.pods) != 0 || s.open != 0 || len(w.records) != 0 {
			t.Errorf("%d pods are left, %d records, the namespace is held %d times", len(w.r.pods), len(w.records), s.open)
		}
	})
}

func TestAProcessEndsAndAnotherSandboxIsThere(t *testing.T) {
	byProcess(t, func(w *world, s *space) {
		w.moves("c2")
		w.pass(30 * time.Second)
		w.wantDone("withdraw uid-web", "apply marks+dns", announced, "apply syn+dns", "expel", "apply full+dns", "expel")
		w.wantNetns("/proc/21/ns/net")
		if s.open != 0 {
			t.Errorf("the old namespace is held %d times", s.open)
		}
		s.set(func() { s.rules = "" })
	})
}

// While it is searched for, the pod is released, and the ADD of a new sandbox taken,
// as ever.
func TestThingsHappenToALostPod(t *testing.T) {
	for name, test := range map[string]struct {
		happen func(*world)
		want   []string
	}{
		"its label is taken away": {
			func(w *world) { w.object("web", false, withUID); w.pass(20 * time.Second) },
			[]string{"web NotCaptured NotLabelled", "proxy has uid-other acked"},
		},
		"its sandbox is replaced": {
			func(w *world) {
				if err := w.add("web", "c2"); err != nil {
					w.t.Error(err)
				}
				w.space("c1").set(func() { w.spaces["/run/netns/c1"].rules = "" })
				w.set(func() { w.undecided = nil })
				w.pass(time.Minute)
			},
			[]string{"web Captured OK", "/run/netns/c2 has full+dns", "proxy has uid-other acked", "proxy has uid-web acked"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			byProcess(t, func(w *world, _ *space) {
				w.set(func() { w.undecided, w.held["uid-other"] = errors.New("not now"), "acked" })
				w.moves("")
				w.pass(30 * time.Second)
				test.happen(w)
				w.wantState(test.want...)
			})
		})
	}
}

// The agent is away while the process ends.
func TestRestartOfALostPod(t *testing.T) {
	for name, test := range map[string]struct {
		meanwhile func(*world)
		done      []string
		want      []string
	}{
		"nothing happens": {func(*world) {}, []string{announced}, stillCaptured},
		"another process is there": {
			func(w *world) { w.moves("c1") },
			[]string{"keep uid-web", announced}, stillCaptured,
		},
		"its number is another's": {
			func(w *world) { w.moves("c1"); w.processes[20] = "c3" },
			[]string{"keep uid-web", announced}, stillCaptured,
		},
		"nothing is left": {
			func(w *world) { w.moves(""); delete(w.objects, "shop/web"); w.spaceOf("c1").rules = "" },
			[]string{"keep uid-web", "withdraw uid-web"}, nil,
		},
		"another sandbox is there": {
			func(w *world) { w.moves("c2"); w.spaceOf("c1").rules = "" },
			[]string{"keep uid-web", "withdraw uid-web", "apply marks+dns", announced, "apply syn+dns", "expel", "apply full+dns", "expel"},
			[]string{"web Captured OK", "/run/netns/c2 has full+dns", "proxy has uid-web acked"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			byProcess(t, func(w *world, _ *space) {
				w.stop()
				test.meanwhile(w)
				w.restart()
				w.r.Seek(t.Context())
				w.pass(30 * time.Second)
				w.wantDone(test.done...)
				w.wantState(test.want...)
			})
		})
	}
}

func TestAnAdoptedPodThatCannotBeFound(t *testing.T) {
	byProcess(t, func(w *world, _ *space) {
		w.stop()
		w.moves("")
		w.undecided = errors.New("it may be any of two")
		w.restart()
		w.pass(time.Minute)
		w.wantDone("keep uid-web")
		got := w.r.Report()[0]
		if got.State != status.Pending || got.Reason != status.NetnsUnknown || got.Message != "it may be any of two" {
			t.Errorf("got %s (%s): %s", got.State, got.Reason, got.Message)
		}
		w.set(func() { w.undecided, w.findable = nil, map[string]string{"uid-web": "c1"} })
		w.pass(20 * time.Second)
		w.wantDone(announced)
		w.wantState(stillCaptured...)
	})
}
