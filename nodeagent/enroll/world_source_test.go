package enroll

import (
	"maps"
	"slices"
	"testing/synctest"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// The world as a Source.

func (w *world) Synced() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.unsynced
}

func (w *world) Lookup(namespace, name string) (intent.Pod, intent.Namespace, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.objects[namespace+"/"+name]
	return p, intent.Namespace{Name: namespace}, ok && !w.hidden
}

func (w *world) advertises(string, string, string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.advertised
}

func (w *world) cannotRead(string, string) (status.Reason, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.unread == "" {
		return "", ""
	}
	return w.unread, "so it is"
}

// breaks keeps the source from knowing its pods' namespaces for a reason; without one it
// is mended.
func (w *world) breaks(reason status.Reason) {
	w.mu.Lock()
	w.unread, w.hidden = reason, reason != ""
	w.mu.Unlock()
	w.r.Wake("")
	synctest.Wait()
}

func (w *world) Pods() []intent.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Values(w.objects))
}
