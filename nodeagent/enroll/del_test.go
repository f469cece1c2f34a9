package enroll

import (
	"errors"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
)

// delFrom is a DEL of a container of pod web that names a namespace.
func delFrom(w *world, container, netns string) {
	w.t.Helper()
	a := agentapi.Attachment{Namespace: "shop", Name: "web", UID: "uid-web", ContainerID: container, Netns: netns}
	if err := w.r.Del(w.t.Context(), a); err != nil {
		w.t.Error(err)
	}
}

// Of a pod whose container's id nobody has told us, a DEL says by its namespace
// whether it is meant; and otherwise the kernel does.
func TestDelOfAPodThatWasFound(t *testing.T) {
	for name, test := range map[string]struct {
		happen func(*world)
		ends   bool
	}{
		"by the same path":                          {func(w *world) { delFrom(w, "c1", "/proc/20/ns/net") }, true},
		"by the same path, which leads nowhere now": {func(w *world) { w.moves(""); delFrom(w, "c1", "/proc/20/ns/net") }, true},
		"by another path":                           {func(w *world) { delFrom(w, "c1", "/run/netns/c1") }, true},
		"of another namespace":                      {func(w *world) { delFrom(w, "c0", "/run/netns/c0") }, false},
		"of one that is gone":                       {func(w *world) { delFrom(w, "c0", "/proc/19/ns/net") }, false},
		"without a namespace":                       {func(w *world) { delFrom(w, "c0", "") }, false},
		"of one that cannot be asked about": {func(w *world) {
			w.space("c0").set(func() { w.spaces["/run/netns/c0"].fail["find"] = sandbox.ErrNotAPods })
			delFrom(w, "c0", "/run/netns/c0")
		}, false},
		"without a namespace, and nothing is left": {func(w *world) {
			w.forget("web") // or it would be searched for
			w.moves("")
			delFrom(w, "c1", "")
			w.pass(20 * time.Second)
		}, true},
		"after an ADD, of the namespace": {func(w *world) {
			if err := w.add("web", "c1"); err != nil {
				w.t.Error(err)
			}
			w.done()
			delFrom(w, "c0", "/run/netns/c1")
		}, false},
		"after an ADD, of its container": {func(w *world) {
			if err := w.add("web", "c1"); err != nil {
				w.t.Error(err)
			}
			w.done()
			delFrom(w, "c1", "")
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			byProcess(t, func(w *world, _ *space) {
				test.happen(w)
				if test.ends {
					w.wantDone("withdraw uid-web")
				} else {
					w.wantDone()
				}
			})
		})
	}
}

// A mount that is gone ends the pod at once, whichever DEL it was that made us look.
func TestDelWithoutANamespaceAfterTheMount(t *testing.T) {
	byProcess(t, func(w *world, s *space) {
		w.set(func() { w.findable = map[string]string{"uid-web": "c1"}; delete(w.processes, 20) })
		w.pass(20 * time.Second)
		w.wantNetns("/run/netns/c1")
		s.set(func() { s.fail["gone"] = errors.New("gone") })
		delFrom(w, "c1", "")
		w.wantDone("withdraw uid-web")
	})
}
