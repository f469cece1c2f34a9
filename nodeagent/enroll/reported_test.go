package enroll

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
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

// The kubelet tries to start a pod every 12 s or so. That is one wait, whatever is in the
// way each time and whenever it is asked for, and for over a minute it calls for attention.
func TestAPodThatDoesNotStartCallsForAttention(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		w.r.Report()
		began, tried := time.Now(), time.Time{}
		web := func(want string) {
			t.Helper()
			synctest.Wait()
			pods := w.r.Report()
			p := pods[0]
			got := fmt.Sprintf("%s %s, since %s, tried %s", p.State, p.Reason, p.Since.Sub(began), p.Tried.Sub(tried))
			code := status.ExitOK
			if time.Since(began) > time.Minute {
				code = status.ExitAttention
			}
			want += ", since 0s, tried 0s"
			if exit := status.ExitCode(pods, time.Now()); got != want || exit != code {
				t.Errorf("after %s: %s, exit code %d; want %s, exit code %d", time.Since(began), got, exit, want, code)
			}
		}
		for try := range 10 { // in two minutes
			w.proxySays([]proxylink.State{proxylink.NoProxy, proxylink.Waiting}[try%2], "")
			reason := []status.Reason{status.NoProxy, status.NoAnswer}[try%2]
			tried = time.Now()
			answer := w.addLater(w.t.Context(), "web", fmt.Sprint("c", try))
			web(fmt.Sprintf("Pending %s", reason))
			wantFailure(t, <-answer, reason, "")
			w.del("web", fmt.Sprint("c", try))
			w.pass(7 * time.Second)
			web(fmt.Sprintf("Pending %s", reason))
		}
		// One that succeeds ends the wait, and so does the pod's end.
		w.proxySays(proxylink.Acked, "")
		if err := w.add("web", "c"); err != nil {
			t.Fatal(err)
		}
		if p := w.r.Report()[0]; p.State != status.Captured || !p.Since.Equal(time.Now()) || !p.Tried.IsZero() || len(w.r.early) != 0 {
			t.Errorf("started: %s since %s, tried %s; of %d pods it is known that they wait", p.State, p.Since, p.Tried, len(w.r.early))
		}
		w.del("web", "c")
		w.proxySays(proxylink.NoProxy, "")
		tried = time.Now()
		wantFailure(t, w.add("web", "d"), status.NoProxy, "")
		began = tried
		web("Pending NoProxy")
		w.forget("web")
		if pods := w.r.Report(); len(pods) != 0 || len(w.r.early) != 0 {
			t.Errorf("of a pod that is gone is left: %v, %v", pods, w.r.early)
		}
	})
}

// A pod that takes the name of another has a wait of its own.
func TestAnotherPodOfTheNameWaitsAnew(t *testing.T) {
	inWorld(t, func(w *world) {
		is := func(uid string) {
			w.object("web", true, func(p *intent.Pod) { p.UID = uid })
		}
		is("uid-web")
		w.proxySays(proxylink.NoProxy, "")
		wantFailure(t, w.add("web", "c1"), status.NoProxy, "")
		w.pass(time.Hour)
		is("uid-other")
		if p := w.r.Report()[0]; p.Reason != status.NetnsUnknown || !p.Since.Equal(time.Now()) || !p.Tried.IsZero() {
			t.Errorf("%s, since %s, tried %s", p.Reason, p.Since, p.Tried)
		}
	})
}

// So it is for a pod that the source cannot know, which is reported only while it is tried.
func TestFailedStartsOfAnUnknownPodAreOneWait(t *testing.T) {
	inWorld(t, func(w *world) {
		w.breaks(status.APIUnavailable)
		began := time.Now()
		for try := range 4 {
			answer := w.addLater(w.t.Context(), "web", fmt.Sprint("c", try))
			pods := w.r.Report()
			if len(pods) != 1 || !pods[0].Since.Equal(began) {
				t.Errorf("try %d after %s: %+v", try, time.Since(began), pods)
			}
			if <-answer == nil {
				t.Error("it started")
			}
			for range 3 {
				w.pass(5 * time.Second)
				w.r.Report()
			}
		}
		w.pass(10 * time.Minute)
		w.r.Report()
		if len(w.r.early) > 0 {
			t.Errorf("remembered for ever: %v", w.r.early)
		}
	})
}
