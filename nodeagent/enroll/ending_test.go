package enroll

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
)

// The runtime takes lo down before it has us told that the sandbox is over. In a pod that
// is to end that is put right, since what runs in it may take its time, and is not called a
// repair; in any other, and whatever else is wrong, it is one.
func TestLoopbackOfAPodThatEnds(t *testing.T) {
	ending := func(p *intent.Pod) { p.Deleting = true }
	loDown := func(s *space) { s.down = true }
	for name, test := range map[string]struct {
		object  func(*intent.Pod)
		wrong   func(*space)
		repairs int
	}{
		"lo, ending":    {ending, loDown, 0},
		"lo":            {func(*intent.Pod) {}, loDown, 1},
		"rules, ending": {ending, func(s *space) { s.rules = "" }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			captured(t, func(w *world, s *space) {
				w.object("web", true, test.object)
				s.set(func() { test.wrong(s) })
				w.pass(10 * time.Second)
				w.wantDone("apply full+dns", "expel")
				w.pass(10 * time.Second)
				w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
				said, counted := len(w.logged.Lines("redirection put right")), testutil.ToFloat64(w.r.config.Metrics.repairs)
				if shown := w.r.Report()[0].Rules.Repaired; said != test.repairs || shown != test.repairs || counted != float64(test.repairs) {
					t.Errorf("a repair was logged %d times, is shown %d times, counted %v times; want %d", said, shown, counted, test.repairs)
				}
			})
		})
	}
	captured(t, func(w *world, s *space) { // a Job's pod ends without being deleted
		s.set(func() { loDown(s); s.changed("") })
		w.wantDone("apply full+dns", "expel")
		w.del("web", "c1")
		w.pass(time.Minute)
		if lines := w.logged.Lines("redirection put right"); len(lines) > 0 {
			t.Errorf("the end of a pod was logged as drift: %s", lines)
		}
	})
}
