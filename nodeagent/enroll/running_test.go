package enroll

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/sockets"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// running is a world with an unlabelled pod that runs for a minute.
func running(t *testing.T, story func(w *world, s *space)) {
	inWorld(t, func(w *world) {
		w.object("web", false)
		if err := w.add("web", "c1"); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Minute)
		w.done()
		w.space("c1").older = 1 // nothing redirects yet
		story(w, w.space("c1"))
	})
}

// captured is a world with a pod that was labelled when it was created.
func captured(t *testing.T, story func(w *world, s *space)) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		if err := w.add("web", "c1"); err != nil {
			t.Fatal(err)
		}
		w.pass(time.Minute)
		w.done()
		story(w, w.space("c1"))
	})
}

const announced = "announce uid-web as shop/web of sa"

func TestLabelOnARunningPod(t *testing.T) {
	running(t, func(w *world, _ *space) {
		w.object("web", true)
		// Nothing is redirected before the proxy has the pod.
		w.wantDone("apply marks+dns", announced, "apply syn+dns", "expel")
		w.wantState("web Captured OldConnections", "/run/netns/c1 has syn+dns", "proxy has uid-web acked")
		if got := w.r.Report()[0].OldConnections; got != (status.OldConnections{Known: true, Count: 1}) {
			t.Errorf("old connections are shown as %+v", got)
		}
	})
}

// When the last older connection has ended, nothing leaks past the redirects any more.
func TestFormSYNBecomesFull(t *testing.T) {
	running(t, func(w *world, s *space) {
		w.object("web", true)
		w.done()
		s.set(func() { s.older = 0 })
		w.pass(10 * time.Second)
		w.wantDone("apply full+dns", "expel")
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

func TestExistingConnections(t *testing.T) {
	for _, test := range []struct {
		name     string
		start    func(*testing.T, func(*world, *space))
		existing intent.Existing
		fail     error
		want     string
	}{
		{"labelled while running", running, intent.ByCause, nil, "web Captured OldConnections"},
		{"labelled while running, reset", running, intent.Reset, nil, "web Captured OK"},
		{"labelled while running, reset, not possible", running, intent.Reset, fmt.Errorf("no: %w", sockets.ErrCannotDestroy), "web Captured OldConnections"},
		{"labelled while running, reset, refused", running, intent.Reset, errors.New("not now"), "web Bypassing OldConnections"},
		{"opened in a gap", captured, intent.ByCause, nil, "web Captured OK"},
		{"opened in a gap, keep", captured, intent.Keep, nil, "web Captured OldConnections"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.start(t, func(w *world, s *space) {
				w.stop() // the policy is read when the agent starts
				w.existing = test.existing
				w.restart()
				w.done()
				s.set(func() {
					s.older, s.rules = 1, ""
					if test.fail != nil {
						s.fail["destroy"] = test.fail
					}
				})
				w.object("web", true)
				w.pass(30 * time.Second)
				if got, _, _ := strings.Cut(w.state(), "\n"); got != test.want {
					t.Errorf("got %s, want %s", got, test.want)
				}
			})
		})
	}
}

// The kernel tells of a change at once; the log says who made it.
func TestDriftIsToldOf(t *testing.T) {
	captured(t, func(w *world, s *space) {
		s.set(func() { s.rules = "" })
		s.changed("nft (pid 42)")
		w.wantDone("apply full+dns", "expel")
		if got := w.logged.Lines("redirection put right"); len(got) != 1 || !strings.Contains(got[0], `rulesetChangedBy="nft (pid 42)"`) {
			t.Errorf("logged: %q", got)
		}
	})
}

func TestLabelOnARunningPodWithoutAProxy(t *testing.T) {
	running(t, func(w *world, _ *space) {
		w.proxySays(proxylink.NoProxy, "")
		w.object("web", true)
		w.wantDone("apply marks+dns", announced)
		w.wantState("web Pending NoProxy", "/run/netns/c1 has marks+dns", "proxy has uid-web noProxy")
		w.pass(alarmAfter)
		w.wantState("web Bypassing NoProxy", "/run/netns/c1 has marks+dns", "proxy has uid-web noProxy")
		w.proxySays(proxylink.Acked, "")
		w.wantDone("apply syn+dns", "expel")
	})
}

// What proxied connections need is put right while they are drained.
func TestMarksGoMissingWhileDraining(t *testing.T) {
	captured(t, func(w *world, s *space) {
		s.set(func() { s.proxied = 1 })
		w.object("web", false)
		w.done()
		s.set(func() { s.rules = "" })
		w.pass(drainPoll)
		w.wantDone("apply marks+dns")
		w.wantState("web NotCaptured Draining", "/run/netns/c1 has marks+dns", "proxy has uid-web acked")
	})
}

// And so are they while a proxy is waited for.
func TestMarksGoMissingWithoutAProxy(t *testing.T) {
	running(t, func(w *world, s *space) {
		w.proxySays(proxylink.NoProxy, "")
		w.object("web", true)
		w.done()
		s.set(func() { s.rules = "" })
		w.pass(10 * time.Second)
		w.wantDone("apply marks+dns")
		// The next agent says what is there, too.
		w.restart()
		if got := w.r.Report()[0].Rules.State; got != "marks" {
			t.Errorf("the report says %q", got)
		}
	})
}

func TestAnnotationOnARunningPod(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.object("web", true, func(p *intent.Pod) {
			p.Annotations = map[string]string{intent.AnnotationDNS: "false", intent.AnnotationIngress: "true"}
		})
		w.wantDone("apply full+ingress", "expel, DNS too")
		w.wantState("web Captured OK", "/run/netns/c1 has full+ingress", "proxy has uid-web acked")
		if got := w.r.Report()[0].Rules.Repaired; got != 0 {
			t.Errorf("our own change counts as a repair: %d", got)
		}
	})
}

func TestDriftIsPutRight(t *testing.T) {
	captured(t, func(w *world, s *space) {
		s.set(func() { s.rules = "" })
		w.pass(10 * time.Second)
		w.wantDone("apply full+dns", "expel")
		if got := w.r.Report()[0].Rules.Repaired; got != 1 {
			t.Errorf("repaired %d times, want 1", got)
		}
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

// What cannot be looked at does not hide what can be seen.
func TestDriftBesideAnError(t *testing.T) {
	captured(t, func(w *world, s *space) {
		s.set(func() { s.rules, s.fail["look"] = "", errors.New("IPv6 is off for lo") })
		w.pass(10 * time.Second)
		w.wantDone("apply full+dns", "expel")
		w.wantState("web Pending KernelRefused", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

// Drift that cannot be put right is the alarm, whatever we once put in place.
func TestDriftThatCannotBePutRight(t *testing.T) {
	captured(t, func(w *world, s *space) {
		s.set(func() { s.rules, s.fail["apply"] = "", errors.New("not now") })
		w.pass(10 * time.Second)
		w.wantState("web Bypassing KernelRefused", "proxy has uid-web acked")
		if got := w.r.Report()[0].Rules.State; got != status.Unknown {
			t.Errorf("rules are shown as %s", got)
		}
		s.set(func() { delete(s.fail, "apply") })
		w.pass(time.Minute)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

// A kernel that does not let us at its conntrack entries: the redirects stand, and
// are flushed before a release goes on.
func TestExpelFails(t *testing.T) {
	running(t, func(w *world, s *space) {
		s.set(func() { s.fail["expel"] = errors.New("no nf_conntrack_netlink") })
		w.object("web", true)
		w.pass(time.Minute)
		w.wantDone("apply marks+dns", announced, "apply syn+dns")
		w.wantState("web Pending KernelRefused", "/run/netns/c1 has syn+dns", "proxy has uid-web acked")
		w.object("web", false)
		w.wantDone("apply marks+dns")
		w.pass(time.Minute)
		w.wantState("web NotCaptured NotLabelled")
	})
}

func TestTheNamespaceGoesAway(t *testing.T) {
	captured(t, func(w *world, s *space) {
		s.set(func() { s.fail["gone"] = errors.New("gone") })
		w.pass(10 * time.Second)
		w.wantDone("withdraw uid-web")
		if len(w.r.pods) != 0 || s.open != 0 {
			t.Errorf("%d pods are left, the namespace is held %d times", len(w.r.pods), s.open)
		}
	})
}

// A pod that is over is withdrawn at once, and its namespace let go, whatever can
// still be cleaned there.
func TestTerminated(t *testing.T) {
	for name, failure := range map[string]error{"clean": nil, "not clean": errors.New("not now")} {
		t.Run(name, func(t *testing.T) {
			captured(t, func(w *world, s *space) {
				s.set(func() {
					s.proxied = 1
					if failure != nil {
						s.fail["remove"] = failure
					}
				})
				w.object("web", true, func(p *intent.Pod) { p.Phase = "Succeeded" })
				if got := w.done(); !strings.HasPrefix(got, "withdraw uid-web") {
					t.Errorf("was done:\n%s", got)
				}
				if got := w.r.Report()[0]; got.State != status.NotCaptured || got.Reason != "Terminated" {
					t.Errorf("got %s (%s)", got.State, got.Reason)
				}
				if s.open != 0 {
					t.Error("the namespace is still held")
				}
			})
		})
	}
}

// Most pods of a node may not be in the mesh: nothing is held for them.
func TestNothingIsHeldOfAnUnlabelledPod(t *testing.T) {
	running(t, func(w *world, s *space) {
		if s.open != 0 {
			t.Errorf("the namespace is held %d times", s.open)
		}
		w.object("web", true)
		w.object("web", false)
		w.pass(time.Minute)
		if s.open != 0 {
			t.Errorf("after a release it is held %d times", s.open)
		}
	})
}

// A running pod whose redirects cannot be put in place is the alarm.
func TestKernelRefusesARunningPod(t *testing.T) {
	running(t, func(w *world, s *space) {
		s.set(func() { s.fail["apply"] = errors.New("no such file or directory: nft_redir") })
		w.object("web", true)
		w.wantState("web Bypassing KernelRefused")
		s.set(func() { delete(s.fail, "apply") })
		w.pass(time.Minute)
		w.wantDone("apply marks+dns", announced, "apply syn+dns", "expel")
	})
}
