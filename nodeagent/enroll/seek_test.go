package enroll

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

func withUID(p *intent.Pod) { p.UID = "uid-" + p.Name }

// A pod that ran before the agent did is found, and captured like one that is
// labelled while it runs.
func TestFindsAPodThatWasThereBefore(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true, withUID)
		w.object("plain", false, withUID)
		w.object("nameless", true) // its UID is known from its ADD alone
		w.pass(10 * time.Second)
		w.wantDone("keep uid-web")
		w.wantState("nameless Pending NetworkNamespaceUnknown", "plain NotCaptured NotLabelled", "web Pending NetworkNamespaceUnknown", "proxy has uid-web kept")
		w.space("c1").older = 1
		w.mu.Lock()
		w.findable = map[string]string{"uid-web": "c1", "uid-plain": "c2"}
		w.mu.Unlock()
		w.pass(10 * time.Second)
		w.wantDone("apply marks+dns", announced, "apply syn+dns", "expel")
		got := w.r.Report()[2]
		if got.Reason != "OldConnections" || got.Netns.Source != sandbox.SourceCache || got.Netns.ContainerID != "c1" {
			t.Errorf("got %+v", got)
		}
		w.pass(time.Hour)
		w.wantDone()
		w.del("web", "c1")
		w.wantDone("withdraw uid-web")
	})
}

// One that runs, and gets its label then, is looked for at once; one that has no address
// yet is only just starting, and the runtime is going to tell of it.
func TestFindsAtOnceAPodThatRuns(t *testing.T) {
	inWorld(t, func(w *world) {
		runs := func(p *intent.Pod) { withUID(p); p.IPs = []netip.Addr{netip.MustParseAddr("10.0.0.2")} }
		w.object("web", false, runs)
		w.mu.Lock()
		w.findable = map[string]string{"uid-web": "c1"}
		w.mu.Unlock()
		w.object("starting", true, withUID)
		w.wantDone()
		w.object("web", true, runs)
		w.wantState("starting Pending NetworkNamespaceUnknown", "web Captured OK",
			"/run/netns/c1 has full+dns", "proxy has uid-starting kept", "proxy has uid-web acked")

		before := w.searches
		w.object("lost", true, func(p *intent.Pod) { runs(p); p.UID = "uid-lost" })
		for range 10 {
			w.object("lost", true, func(p *intent.Pod) { runs(p); p.UID = "uid-lost" })
		}
		w.pass(2 * time.Second)
		if n := w.searches - before; n != 1 {
			t.Errorf("what is not found was searched for %d times in 2 seconds, want once", n)
		}
	})
}

// A sandbox that the runtime has ended is not found again while it is cleared away, and the
// API goes on speaking of its pod; the next one is.
func TestDoesNotFindASandboxThatIsOver(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		runs := func(p *intent.Pod) { withUID(p); p.IPs = []netip.Addr{netip.MustParseAddr("10.0.0.2")} }
		w.mu.Lock()
		w.findable = map[string]string{"uid-web": "c1"}
		w.mu.Unlock()
		w.object("web", true, runs)
		w.done()
		w.del("web", "c1")
		w.object("web", true, runs)
		w.pass(time.Minute)
		w.wantDone("withdraw uid-web", "do not exempt uid-web")
		w.mu.Lock()
		w.findable = map[string]string{"uid-web": "c2"}
		w.mu.Unlock()
		w.object("web", true, runs)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "/run/netns/c2 has full+dns", "proxy has uid-web acked")
	})
}

// What an earlier agent has left standing, without a record of it, is not taken down: a
// pod that is blocked stays so.
func TestRedirectsThatStandAreTakenOver(t *testing.T) {
	for _, rules := range []string{"full+dns", "syn+dns", "full", "syn"} {
		inWorld(t, func(w *world) {
			w.proxySays(proxylink.NoProxy, "")
			s := w.space("c1")
			s.set(func() { s.rules, s.missing = rules, "tcp" })
			w.object("web", true, withUID)
			w.mu.Lock()
			w.findable = map[string]string{"uid-web": "c1"}
			w.mu.Unlock()
			w.pass(time.Minute)
			expel := "expel" // whoever put them there may not have come to it
			if !strings.Contains(rules, "dns") {
				expel += ", DNS too"
			}
			w.wantDone("keep uid-web", announced, expel)
			w.wantState("web Blocked NoProxy", "/run/netns/c1 has "+rules, "proxy has uid-web noProxy")
		})
	}
}

func TestTheRuntimeIsFasterThanTheSearch(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true, withUID)
		w.pass(10 * time.Second)
		w.done()
		if err := w.add("web", "c2"); err != nil {
			t.Fatal(err)
		}
		w.mu.Lock()
		w.findable = map[string]string{"uid-web": "c1"}
		w.mu.Unlock()
		w.pass(time.Minute)
		if got := w.r.Report()[0]; got.Netns.ContainerID != "c2" {
			t.Errorf("got %+v", got)
		}
	})
}

// What a proxy was asked to keep is withdrawn when neither source nor kernel knows
// the pod any more.
func TestKeepEnds(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true, withUID)
		w.pass(time.Minute)
		w.wantDone("keep uid-web")
		if got := w.logged.Lines("is not found"); len(got) != 1 || !strings.Contains(got[0], "nothing leads to it") {
			t.Errorf("logged: %q", got)
		}
		w.forget("web")
		w.pass(10 * time.Second)
		w.wantDone("withdraw uid-web")
		w.pass(time.Minute)
		w.wantDone()
	})
}

// A pod whose namespace the source does not know yet is named in snapshots: a proxy may
// have it. When more is known it is looked for like others, and otherwise left alone.
func TestUndecidedPodsAreKept(t *testing.T) {
	for _, labelled := range []bool{true, false} {
		inWorld(t, func(w *world) {
			w.breaks(status.APIUnavailable)
			w.object("web", labelled, withUID)
			w.mu.Lock()
			w.findable = map[string]string{"uid-web": "c1"}
			w.mu.Unlock()
			w.r.Seek(w.ctx)
			w.wantDone("keep uid-web")
			w.wantState("web Pending APIUnavailable", "proxy has uid-web kept")
			w.breaks("")
			w.pass(10 * time.Second)
			if labelled {
				w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
			} else {
				w.wantState("web NotCaptured NotLabelled", "proxy has uid-web kept")
			}
			w.forget("web")
			w.mu.Lock()
			w.findable = nil
			w.mu.Unlock()
			w.pass(20 * time.Second)
			if !labelled {
				w.wantState()
			}
		})
	}
}

// What a proxy may have of a sandbox that has ended is not kept, though the pod is
// looked for: it has an object, and the runtime may have started it without us.
func TestASandboxThatHasEndedIsNotKept(t *testing.T) {
	for name, end := range map[string]func(*world, *space){
		"by DEL":             func(w *world, _ *space) { w.del("web", "c1") },
		"with its namespace": func(_ *world, s *space) { s.set(func() { s.fail["gone"] = sandbox.ErrNotAPods }) },
		"after a restart":    func(w *world, _ *space) { w.restart(); w.done(); w.del("web", "c1") },
	} {
		t.Run(name, func(t *testing.T) {
			captured(t, func(w *world, s *space) {
				w.object("web", true, withUID)
				end(w, s)
				w.pass(time.Minute)
				w.wantDone("withdraw uid-web")
			})
		})
	}
}
