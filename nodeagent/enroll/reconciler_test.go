package enroll

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A proxy that dials again is away for a moment: nothing is said of it. One that
// stays away is said once.
func TestLogOfAPodThatIsNotAsItShouldBe(t *testing.T) {
	captured(t, func(w *world, s *space) {
		s.set(func() { s.missing = "tcp" })
		w.proxySays(proxylink.NoProxy, "")
		w.pass(warnAfter / 2)
		s.set(func() { s.missing = "" })
		w.proxySays(proxylink.Acked, "")
		w.pass(time.Minute)
		if got := w.logged.Lines("WARN"); len(got) != 0 {
			t.Errorf("for a moment's absence: %q", got)
		}
		s.set(func() { s.missing = "tcp" })
		w.proxySays(proxylink.NoProxy, "")
		w.pass(warnAfter)
		w.pass(time.Hour)
		if got := w.logged.Lines("WARN"); len(got) != 1 || !strings.Contains(got[0], "state=Blocked reason=NoProxy") {
			t.Errorf("for an hour's absence: %q", got)
		}
		s.set(func() { s.missing = "" })
		w.proxySays(proxylink.Acked, "")
		if got := w.logged.Lines("as it should be again"); len(got) != 1 || !strings.Contains(got[0], "state=Captured") {
			t.Errorf("when it is over: %q", got)
		}
	})
}

// A life in which nothing goes wrong is two lines.
func TestLogOfAQuietLife(t *testing.T) {
	for name, live := range map[string]func(*testing.T, func(*world, *space)){"labelled": captured, "not labelled": running} {
		live(t, func(w *world, _ *space) {
			w.pass(time.Hour)
			w.restart()
			w.del("web", "c1")
			if got := w.logged.Lines("pod="); len(got) > 2 {
				t.Errorf("%s: more than two lines: %q", name, got)
			}
		})
	}
}

func TestTheRuntimeHasNotToldOfAPod(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("early", true)
		w.object("plain", false)
		for _, p := range w.r.Report() {
			if p.Netns.Known || p.Rules.State != status.Unknown || p.Listeners.Known {
				t.Errorf("more is known of %s than can be: %+v", p.Name, p)
			}
		}
		w.wantState("early Pending NetworkNamespaceUnknown", "plain NotCaptured NotLabelled")
		first := w.r.Report()[0].Since
		w.pass(time.Minute)
		if got := w.r.Report()[0].Since; first.IsZero() || !got.Equal(first) {
			t.Errorf("since %s, then since %s", first, got)
		}
	})
}

func TestPodsAreCountedByStateAndReason(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		w.object("early", true)
		if err := w.add("web", "c1"); err != nil {
			t.Fatal(err)
		}
		const want = `
# HELP fairlead_pods Pods of the node, by state and reason.
# TYPE fairlead_pods gauge
fairlead_pods{reason="NetworkNamespaceUnknown",state="Pending"} 1
fairlead_pods{reason="NoProxy",state="Blocked"} 0
fairlead_pods{reason="NoProxy",state="Bypassing"} 0
fairlead_pods{reason="OK",state="Captured"} 1
`
		if err := testutil.CollectAndCompare(w.r, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
	})
}

func TestManyAtOnce(t *testing.T) {
	inWorld(t, func(w *world) {
		var wg sync.WaitGroup
		const pods = 50
		for i := range pods {
			w.object(fmt.Sprint(i), true)
		}
		for i := range pods {
			wg.Go(func() {
				name := fmt.Sprint(i)
				for round := range 5 {
					container := fmt.Sprintf("c%d-%d", i, round)
					if err := w.add(name, container); err != nil {
						t.Error(err)
					}
					if round%2 == 1 {
						if err := w.r.Del(w.t.Context(), sandboxOf(name, container)); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		wg.Wait()
		count := map[status.State]int{}
		for _, p := range w.r.Report() {
			count[p.State]++
		}
		if count[status.Captured] != pods || len(count) != 1 {
			t.Errorf("states %v, want all %d captured", count, pods)
		}
	})
}

func TestHealthy(t *testing.T) {
	inWorld(t, func(w *world) {
		const pods = 150
		for i := range pods {
			name := fmt.Sprint(i)
			w.object(name, true)
			if err := w.add(name, name); err != nil {
				t.Fatal(err)
			}
		}
		// More work than the two workers and the sweep can do, each piece of it short.
		slow := func(d time.Duration) {
			for i := range pods {
				s := w.space(fmt.Sprint(i))
				s.set(func() { s.slow = d })
			}
		}
		slow(relief - 100*time.Millisecond)
		w.r.Wake("")
		w.pass(29 * time.Second)
		if err := w.r.Healthy(); err != nil {
			t.Errorf("after 29 s: %v", err)
		}
		w.pass(6 * time.Second)
		if err := w.r.Healthy(); err == nil {
			t.Error("no worker is free, yet all is well")
		}
		slow(0)
		w.pass(time.Minute)
		if err := w.r.Healthy(); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
}

func TestOnePodThatHoldsAWorker(t *testing.T) {
	running(t, func(w *world, s *space) {
		release := make(chan struct{})
		s.set(func() { s.block = release })
		w.object("web", true)
		w.pass(59 * time.Second)
		if err := w.r.Healthy(); err != nil {
			t.Errorf("after 59 s: %v", err)
		}
		w.pass(2 * time.Second)
		if err := w.r.Healthy(); err == nil {
			t.Error("a pod has held a worker for a minute, yet all is well")
		}
		close(release)
		synctest.Wait()
	})
}

// Pods whose namespaces do not answer hold more workers than there are.
func TestPodsThatHoldAllWorkersHoldUpNobody(t *testing.T) {
	inWorld(t, func(w *world) {
		held := []string{"a", "b", "c"}
		for _, name := range held {
			w.object(name, false)
			if err := w.add(name, name); err != nil {
				t.Fatal(err)
			}
		}
		answer := make(chan struct{})
		for _, name := range held {
			s := w.space(name)
			s.set(func() { s.block = answer })
			w.object(name, true)
		}
		w.object("web", true)
		started := w.addLater(w.t.Context(), "web", "c1")
		w.pass(2 * relief)
		select {
		case err := <-started:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("another pod's ADD waits for them")
		}
		w.object("web", false)
		w.pass(30 * time.Second) // the grace
		w.wantState("a NotCaptured NotLabelled", "b NotCaptured NotLabelled", "c NotCaptured NotLabelled", "web NotCaptured NotLabelled")
		if err := w.r.Healthy(); err != nil {
			t.Error(err)
		}
		close(answer)
		w.pass(time.Minute)
		w.wantState("a Captured OK", "b Captured OK", "c Captured OK", "web NotCaptured NotLabelled",
			"/run/netns/a has full+dns", "/run/netns/b has full+dns", "/run/netns/c has full+dns",
			"proxy has uid-a acked", "proxy has uid-b acked", "proxy has uid-c acked")
	})
}

// A pod that changes things without a pause, and is slow to look at, is looked at less
// often, by the sweep too; the runtime does not wait for that.
func TestAPodThatIsSlowToLookAtRests(t *testing.T) {
	for _, slow := range []time.Duration{time.Second, 2 * time.Second, 2900 * time.Millisecond, 4 * time.Second} {
		captured(t, func(w *world, s *space) {
			s.set(func() { s.slow, s.looks = slow, 0 })
			const long = 300 * time.Second
			for range long / (100 * time.Millisecond) {
				s.changed("evil (pid 42)")
				w.pass(100 * time.Millisecond)
			}
			var looks int
			s.set(func() { looks = s.looks })
			if most := int(long/(5*slow)) + 2; looks < most/2 || looks > most { // one turn looks twice: at everything
				t.Errorf("looked %d times in %s, each time for %s; at most %d", looks, long, slow, most)
			}
			began := time.Now()
			if err := w.r.Check(w.t.Context(), sandboxOf("web", "c1")); err != nil || time.Since(began) > 2*slow {
				t.Errorf("CHECK was answered after %s: %v", time.Since(began), err)
			}
		})
	}
}

// A pod that the sweep takes long to look at does not keep others from it.
func TestAPodThatHoldsUpTheSweep(t *testing.T) {
	captured(t, func(w *world, s *space) {
		const others = 10
		for i := range others {
			name := fmt.Sprint(i)
			w.object(name, true)
			if err := w.add(name, name); err != nil {
				t.Fatal(err)
			}
		}
		s.set(func() { s.slow = time.Hour })
		w.pass(20 * time.Second)
		for range 5 {
			for i := range others {
				other := w.space(fmt.Sprint(i))
				other.set(func() { other.looks = 0 })
			}
			w.pass(15 * time.Second)
			for i := range others {
				if looks := w.space(fmt.Sprint(i)).looks; looks < 1 || looks > 3 {
					t.Errorf("pod %d is looked at %d times in 15 s", i, looks)
				}
			}
		}
		s.set(func() { s.slow = 0 })
		w.pass(time.Hour) // it is held until then
	})
}

// Who asks for a pod that the sweep looks at has its answer right after that.
func TestACallDuringTheSweep(t *testing.T) {
	captured(t, func(w *world, s *space) {
		const slow = 3 * time.Second
		s.set(func() { s.slow, s.looks = slow, 0 })
		for looks := 0; looks == 0; s.set(func() { looks = s.looks }) {
			w.pass(100 * time.Millisecond)
		}
		began := time.Now()
		if err := w.r.Check(w.t.Context(), sandboxOf("web", "c1")); err != nil || time.Since(began) >= 3*slow {
			t.Errorf("CHECK was answered after %s: %v", time.Since(began), err)
		}
	})
}

func TestNewRefusesWhatIsMissing(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("an empty configuration is accepted")
	}
	inWorld(t, func(w *world) {
		c := w.r.config
		c.Workers = 0
		if _, err := New(c); err == nil {
			t.Error("no workers are accepted")
		}
	})
}
