package enroll

import (
	"strings"
	"testing"
	"time"
)

// One pod in which the kernel does not answer holds up neither the agent's readiness nor
// what it tells proxies of the others; and they go on with it.
func TestAdoptionOfASlowPodIsBounded(t *testing.T) {
	captured(t, func(w *world, s *space) {
		w.object("other", true)
		if err := w.add("other", "c2"); err != nil {
			t.Fatal(err)
		}
		w.stop()
		answer := make(chan struct{})
		s.set(func() { s.gate = answer })
		before := time.Now()
		w.restart()
		if took := time.Since(before); took != adoptionLimit {
			t.Errorf("adopted after %s", took)
		}
		if done := w.done(); !strings.Contains(done, "keep uid-web") {
			t.Errorf("done by then:\n%s", done)
		}
		close(answer)
		w.pass(time.Minute)
		w.wantState("other Captured OK", "web Captured OK", "/run/netns/c1 has full+dns", "/run/netns/c2 has full+dns",
			"proxy has uid-other acked", "proxy has uid-web acked")
	})
}
