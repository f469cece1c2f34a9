package enroll

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// An agent that is killed between a transaction and the deletion of the conntrack entries
// which would defeat it leaves that to the next one, in whatever it had begun.
func TestKilledBeforeConntrackEntriesAreDeleted(t *testing.T) {
	for n := 1; ; n++ {
		left, killed := "", false
		running(t, func(w *world, _ *space) {
			w.mu.Lock()
			w.steps, w.killAfter = 0, n
			w.mu.Unlock()
			w.object("web", true)
			w.mu.Lock()
			killed = w.dead
			left = strings.Join(w.log, "\n")
			w.mu.Unlock()
			w.restart()
			w.pass(time.Minute)
			next := strings.Split(w.done(), "\n")
			if strings.HasSuffix(left, "apply full+dns") || strings.HasSuffix(left, "apply syn+dns") {
				if !slices.Contains(next, "expel") {
					t.Errorf("after\n%s\nthe next agent does\n%s", left, strings.Join(next, "\n"))
				}
			}
		})
		if !killed {
			return
		}
	}
}
