package enroll

import (
	"testing"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A pod is over when the runtime does not have its sandbox and the source not its object:
// one of them alone does not end it.
func TestGC(t *testing.T) {
	for name, test := range map[string]struct {
		happen func(*world)
		valid  []string
		ends   bool
	}{
		"neither knows it":      {func(w *world) { w.forget("web") }, []string{"c2"}, true},
		"there is none at all":  {func(w *world) { w.forget("web") }, nil, true},
		"the runtime has it":    {func(w *world) { w.forget("web") }, []string{"c1"}, false},
		"its object is there":   {func(*world) {}, nil, false},
		"who knows what object": {func(w *world) { w.forget("web"); w.breaks(status.APIUnavailable) }, nil, false},
		"the source has just begun": {func(w *world) {
			w.forget("web")
			w.set(func() { w.unsynced = true })
		}, nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			captured(t, func(w *world, _ *space) {
				test.happen(w)
				w.done()
				if err := w.r.GC(w.t.Context(), test.valid); err != nil {
					t.Error(err)
				}
				if test.ends {
					w.wantDone("withdraw uid-web")
				} else {
					w.wantDone()
				}
			})
		})
	}
}

// The runtime has listed its sandboxes before this one was there.
func TestGCDuringAnADD(t *testing.T) {
	inWorld(t, func(w *world) {
		w.space("c1")
		answer := w.addLater(w.t.Context(), "web", "c1")
		if err := w.r.GC(w.t.Context(), nil); err != nil {
			t.Error(err)
		}
		w.object("web", true)
		if err := <-answer; err != nil {
			t.Error(err)
		}
	})
}
