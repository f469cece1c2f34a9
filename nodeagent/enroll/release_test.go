package enroll

import (
	"errors"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

func TestRelease(t *testing.T) {
	captured(t, func(w *world, s *space) {
		s.set(func() { s.proxied = 2 })
		start := time.Now()
		w.object("web", false)
		// Label seen to no new connection redirected: at once.
		w.wantDone("apply marks+dns")
		w.wantState("web NotCaptured Draining", "/run/netns/c1 has marks+dns", "proxy has uid-web acked")
		w.pass(12 * time.Second)
		w.wantDone()
		s.set(func() { s.proxied = 0 })
		w.pass(drainPoll)
		w.wantDone("withdraw uid-web", "remove")
		w.wantState("web NotCaptured NotLabelled")
		if took := time.Since(start); took != 12*time.Second+drainPoll {
			t.Errorf("took %s", took)
		}
	})
}

func TestReleaseWaitsTheGrace(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.object("web", false)
		w.pass(5*time.Second - time.Millisecond)
		w.wantDone("apply marks+dns")
		w.pass(time.Millisecond)
		w.wantDone("withdraw uid-web", "remove")
	})
}

// While the API shows the pod as captured, others send it what only the proxy understands.
func TestReleaseWaitsForTheAPI(t *testing.T) {
	for name, shows := range map[string]bool{"until it shows it": true, "not for ever": false} {
		t.Run(name, func(t *testing.T) {
			captured(t, func(w *world, _ *space) {
				w.set(func() { w.advertised = true })
				w.object("web", false)
				w.pass(20 * time.Second)
				w.wantDone("apply marks+dns")
				w.wantState("web NotCaptured Draining", "/run/netns/c1 has marks+dns", "proxy has uid-web acked")
				if shows {
					w.set(func() { w.advertised = false })
					w.pass(advertisedPoll)
				} else {
					w.pass(10 * time.Second)
				}
				w.wantDone("withdraw uid-web", "remove")
				w.wantState("web NotCaptured NotLabelled")
			})
		})
	}
}

func TestReleaseDoesNotWaitForEver(t *testing.T) {
	captured(t, func(w *world, s *space) {
		s.set(func() { s.proxied = 1 })
		w.object("web", false)
		w.pass(30*time.Second - time.Millisecond)
		w.wantDone("apply marks+dns")
		w.pass(time.Millisecond)
		w.wantDone("withdraw uid-web", "remove")
	})
}

func TestReleaseStopsWhereTheKernelRefuses(t *testing.T) {
	for _, verb := range []string{"apply", "proxied", "remove"} {
		t.Run(verb, func(t *testing.T) {
			captured(t, func(w *world, s *space) {
				s.set(func() { s.fail[verb] = errors.New("not now") })
				w.object("web", false)
				w.pass(20 * time.Second)
				if got := w.r.Report()[0]; got.Reason != status.KernelRefused || got.Message != "not now" {
					t.Errorf("got %s (%s): %s", got.State, got.Reason, got.Message)
				}
				// The pod is never cut off: before its redirects are gone the proxy has it.
				if _, told := w.held["uid-web"]; !told && verb != "remove" {
					t.Error("withdrawn although the redirects may still stand")
				}
				s.set(func() { delete(s.fail, verb) })
				w.pass(time.Minute)
				w.wantState("web NotCaptured NotLabelled")
			})
		})
	}
}

func TestLabelPutBackDuringRelease(t *testing.T) {
	captured(t, func(w *world, s *space) {
		s.set(func() { s.proxied = 1 })
		w.object("web", false)
		w.pass(10 * time.Second)
		// What was opened meanwhile lives on in the clear.
		s.set(func() { s.older = 1 })
		w.object("web", true)
		w.wantDone("apply marks+dns", "apply syn+dns", "expel")
		w.wantState("web Captured OldConnections", "/run/netns/c1 has syn+dns", "proxy has uid-web acked")
		// The next release has its whole grace again.
		s.set(func() { s.proxied = 0 })
		w.object("web", false)
		w.pass(4 * time.Second)
		w.wantDone("apply marks+dns")
	})
}

func TestDelDuringRelease(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.object("web", false)
		w.del("web", "c1")
		w.wantDone("apply marks+dns", "withdraw uid-web")
	})
}
