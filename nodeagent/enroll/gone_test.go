package enroll

import (
	"testing"
	"time"
)

func TestObjectGone(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.forget("web")
		w.pass(time.Hour)
		w.wantDone()
		w.wantState("web Captured ObjectGone", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

// A manifest that cannot be read says nothing of pods that were decided on.
func TestManifestThatCannotBeRead(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.breaks("dep.yaml")
		w.pass(time.Hour)
		w.wantDone()
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		w.restart()
		w.pass(time.Minute)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		w.breaks()
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		w.forget("web")
		w.wantState("web Captured ObjectGone", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}
