package enroll

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

func TestTheNamespaceGoesAwayDuringAdd(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		w.proxySays(proxylink.Waiting, "")
		answer := w.addLater(w.t.Context(), "web", "c1")
		s := w.space("c1")
		s.set(func() { s.fail["gone"] = errors.New("gone") })
		w.r.Wake("uid-web")
		wantFailure(t, <-answer, status.NetnsRefused, "is gone")
		w.wantDone("apply full+dns", "announce uid-web as shop/web of sa", "withdraw uid-web")
	})
}

func TestThePluginGoesAwayDuringAdd(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		w.proxySays(proxylink.Waiting, "")
		ctx, cancel := context.WithCancel(w.t.Context())
		answer := w.addLater(ctx, "web", "c1")
		w.wantState("web Pending ProxyDoesNotAnswer", "/run/netns/c1 has full+dns", "proxy has uid-web waiting")
		cancel()
		wantFailure(t, <-answer, status.Cancelled, "given up")
		w.wantDone("apply full+dns", "announce uid-web as shop/web of sa", "withdraw uid-web", "remove")
		w.forget("web")
		w.wantState()
	})
}

func TestTheSameAddAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		w.proxySays(proxylink.Waiting, "")
		ctx, cancel := context.WithCancel(w.t.Context())
		first := w.addLater(ctx, "web", "c1")
		second := w.addLater(w.t.Context(), "web", "c1")
		wantFailure(t, <-first, status.Cancelled, "asked for again")
		cancel() // the first one's connection ends only now: the second is not touched
		w.proxySays(proxylink.Acked, "")
		if err := <-second; err != nil {
			t.Error(err)
		}
		w.wantDone("apply full+dns", "announce uid-web as shop/web of sa")
		// And once more, after it has succeeded.
		if err := w.add("web", "c1"); err != nil {
			t.Error(err)
		}
		w.wantDone()
	})
}

func TestDelDuringAdd(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		w.proxySays(proxylink.Waiting, "")
		answer := w.addLater(w.t.Context(), "web", "c1")
		w.del("web", "c1")
		wantFailure(t, <-answer, status.Deleted, "deleted")
		w.wantDone("apply full+dns", "announce uid-web as shop/web of sa", "withdraw uid-web")
	})
}

func TestDelOfAnOldSandboxTouchesNothing(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		if err := w.add("web", "old"); err != nil {
			t.Fatal(err)
		}
		if err := w.add("web", "new"); err != nil {
			t.Fatal(err)
		}
		w.wantDone("apply full+dns", "announce uid-web as shop/web of sa",
			"withdraw uid-web", "apply full+dns", "announce uid-web as shop/web of sa")
		w.del("web", "old")
		w.del("web", "older still")
		w.wantDone()
		if got := w.r.Report()[0]; got.State != status.Captured || got.Netns.ContainerID != "new" {
			t.Errorf("after the late DEL: %+v", got)
		}
	})
}

func TestDelOfAPodThatNobodyKnows(t *testing.T) {
	inWorld(t, func(w *world) {
		w.del("ghost", "c1")
		w.wantDone()
		w.wantState()
		if len(w.r.pods) != 0 {
			t.Errorf("a pod is left: %v", w.r.pods)
		}
	})
}

// Whatever is asked about one pod at once, every call is answered.
func TestManyCallsForOnePod(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		w.proxySays(proxylink.Nacked, "busy") // each ADD fails and is undone
		var calls sync.WaitGroup
		for i := range 8 {
			calls.Go(func() {
				for range 50 {
					container := sandboxOf("web", fmt.Sprint("c", i%4))
					_ = w.r.Add(w.t.Context(), container)
					_ = w.r.Check(w.t.Context(), container)
					if err := w.r.Del(w.t.Context(), container); err != nil {
						t.Error(err)
					}
				}
			})
		}
		calls.Wait()
		w.forget("web")
		w.wantState()
	})
}

func TestDelByTheContainersIDAlone(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		if err := w.add("web", "c1"); err != nil {
			t.Fatal(err)
		}
		w.done()
		for _, container := range []string{"c0", "c1"} {
			if err := w.r.Del(w.t.Context(), agentapi.Attachment{ContainerID: container}); err != nil {
				t.Error(err)
			}
		}
		w.wantDone("withdraw uid-web")
	})
}

// The id of a container that comes with another namespace is another sandbox's.
func TestSameContainerAnotherNamespace(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		if err := w.add("web", "c1"); err != nil {
			t.Fatal(err)
		}
		w.done()
		other := sandboxOf("web", "c1")
		other.Netns = "/run/netns/c2"
		if err := w.r.Add(w.t.Context(), other); err != nil {
			t.Fatal(err)
		}
		w.wantDone("withdraw uid-web", "apply full+dns", "announce uid-web as shop/web of sa")
	})
}

func TestAnotherUIDInTheManifest(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true, func(p *intent.Pod) { p.UID = "older" })
		wantFailure(t, w.add("web", "c1"), status.PodUnknown, "has UID older, the runtime speaks of uid-web")
	})
}

// A pod of the same name and another UID is another pod.
func TestSameNameNewUID(t *testing.T) {
	inWorld(t, func(w *world) {
		uid := func(u string) func(*intent.Pod) { return func(p *intent.Pod) { p.UID = u } }
		w.object("web", true, uid("uid-web"))
		if err := w.add("web", "c1"); err != nil {
			t.Fatal(err)
		}
		w.object("web", false, uid("uid-new"))
		w.wantState("web NotCaptured NotLabelled", "web Captured ObjectGone", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		next := sandboxOf("web", "c2")
		next.UID = "uid-new"
		if err := w.r.Add(w.t.Context(), next); err != nil {
			t.Fatal(err)
		}
		w.wantState("web NotCaptured NotLabelled", "web Captured ObjectGone", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

func TestCheck(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		check := func(container string) error { return w.r.Check(w.t.Context(), sandboxOf("web", container)) }
		wantFailure(t, check("c1"), status.SandboxUnknown, "has not been told of container c1")
		if err := w.add("web", "c1"); err != nil {
			t.Fatal(err)
		}
		if err := check("c1"); err != nil {
			t.Error(err)
		}
		s := w.space("c1")
		s.set(func() { s.missing = "tcp" })
		w.proxySays(proxylink.NoProxy, "")
		wantFailure(t, check("c1"), status.NoProxy, "no node proxy")
	})
}
