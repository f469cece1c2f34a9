package enroll

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Of a pod's sweeps one in about sixty looks at everything, the first after its ADD too.
func TestHowOftenEverythingIsLookedAt(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		if err := w.add("web", "c1"); err != nil {
			t.Fatal(err)
		}
		s := w.space("c1")
		s.set(func() { s.turns, s.closely = 0, map[string][]int{} })
		const sweeps = 6 * 60
		w.pass(sweeps*10*time.Second + time.Second)
		s.set(func() {
			if s.turns != sweeps {
				t.Errorf("an hour has %d turns, want %d", s.turns, sweeps)
			}
			last := 0
			for i, turn := range s.closely["check"] {
				if gap := turn - last; i == 0 && gap != 1 || i > 0 && (gap < 45 || gap > 75) {
					t.Errorf("everything was looked at in the turns %v, want the first, and then one in 45 to 75", s.closely["check"])
					break
				}
				last = turn
			}
			if sweeps-last > 75 {
				t.Errorf("after turn %d everything was not looked at again", last)
			}
			want := map[string][]int{"check": s.closely["check"], "foreign": s.closely["check"], "squatters": s.closely["check"]}
			if diff := cmp.Diff(want, s.closely); diff != "" {
				t.Errorf("not all is looked at in the same turns (-want +got):\n%s", diff)
			}
		})
	})
}
