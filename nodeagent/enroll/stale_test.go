package enroll

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
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

// A disk that is full by the end of an ADD does not make an orphan of a pod that was told
// to start: the next agent finds it, and proxies keep it.
func TestNoRecordOfTheEndOfAnADD(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true, withUID)
		w.proxySays(proxylink.Waiting, "")
		answer := w.addLater(w.t.Context(), "web", "c1")
		w.mu.Lock()
		w.full = errors.New("no space left on device")
		w.findable = map[string]string{"uid-web": "c1"}
		w.mu.Unlock()
		w.proxySays(proxylink.Acked, "")
		if err := <-answer; err != nil {
			t.Error(err)
		}
		w.restart()
		w.r.Seek(t.Context()) // as the agent does before it is ready
		w.pass(time.Minute)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}
