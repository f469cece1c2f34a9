package enroll

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// Whoever shows a pod's state to others is told of each as it comes; of a release while
// the pod is still drained.
func TestReported(t *testing.T) {
	inWorld(t, func(w *world) {
		var mu sync.Mutex
		var told []string
		w.stop()
		w.reported = func(p status.Pod) {
			mu.Lock()
			defer mu.Unlock()
			told = append(told, fmt.Sprintf("%s/%s %s %s %s", p.Namespace, p.Name, p.UID, p.State, p.Reason))
		}
		w.start()
		wantTold := func(want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if got := slices.Compact(told); !slices.Equal(got, want) {
				t.Errorf("told:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			told = nil
		}
		w.object("web", true)
		if err := w.add("web", "c1"); err != nil {
			t.Fatal(err)
		}
		wantTold("shop/web uid-web Captured OK")
		w.object("web", false)
		w.wantDone("apply full+dns", "announce uid-web as shop/web of sa", "apply marks+dns")
		wantTold("shop/web uid-web NotCaptured Draining")
		w.pass(time.Minute)
		wantTold("shop/web uid-web NotCaptured NotLabelled")
		w.del("web", "c1")
		wantTold()
	})
}
