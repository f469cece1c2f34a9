package enroll

import (
	"testing"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
)

// A pod whose runtime has a network stack of its own starts, is not touched, and is not
// passed over in silence.
func TestOwnNetworkStack(t *testing.T) {
	inWorld(t, func(w *world) {
		sandboxed := func(p *intent.Pod) { p.RuntimeClass = "gvisor" }
		w.object("web", true, sandboxed)
		w.wantState("web Unsupported OwnNetworkStack")
		if err := w.add("web", "c1"); err != nil {
			t.Error(err)
		}
		w.wantDone()
		if err := w.r.Check(w.t.Context(), sandboxOf("web", "c1")); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		w.wantState("web Unsupported OwnNetworkStack")
		if pod := w.r.Report()[0]; pod.Intent.Capture || pod.Remedy == "" || pod.Message == "" {
			t.Errorf("%+v", pod)
		}
	})
}
