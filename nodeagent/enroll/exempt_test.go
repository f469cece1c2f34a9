package enroll

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// probes is the world's host, which survives agents.
type probes struct{ *world }

func (w probes) Exempt(_ context.Context, uid string, _ *netns.Handle, addrs []netip.Addr) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.noProbes != nil {
		return w.noProbes
	}
	if err := w.step(); err != nil {
		return err
	}
	w.note("exempt %s at %s", uid, addrs)
	w.exempt[uid] = fmt.Sprint(addrs)
	return nil
}

func (w probes) Delete(_ context.Context, uid string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, there := w.exempt[uid]; there && w.step() == nil {
		w.note("do not exempt %s", uid)
		delete(w.exempt, uid)
	}
	return nil
}

func (w probes) KeepOnly(_ context.Context, uids []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.dead {
		return errDead
	}
	maps.DeleteFunc(w.exempt, func(uid string, _ string) bool { return !slices.Contains(uids, uid) })
	return nil
}

// addressed is an attachment that has an address.
func addressed(name, container, addr string) agentapi.Attachment {
	a := sandboxOf(name, container)
	a.IPs = []netip.Addr{netip.MustParseAddr(addr)}
	return a
}

func (w *world) refuseProbes(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noProbes = err
}

func (w *world) wantExempt(want map[string]string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !maps.Equal(w.exempt, want) {
		w.t.Errorf("exempt are %v, want %v", w.exempt, want)
	}
}

func TestProbesOfAPodsLife(t *testing.T) {
	inWorld(t, func(w *world) {
		w.space("c1")
		w.object("web", true)
		if err := w.r.Add(w.t.Context(), addressed("web", "c1", "10.0.0.2")); err != nil {
			t.Fatal(err)
		}
		w.wantDone(
			"apply full+dns",
			"announce uid-web as shop/web of sa",
			"exempt uid-web at [10.0.0.2]",
		)
		w.pass(time.Minute)
		w.wantDone() // once

		w.restart()
		w.wantExempt(map[string]string{"uid-web": "[10.0.0.2]"})
		w.done()

		w.object("web", false)
		w.wantExempt(map[string]string{"uid-web": "[10.0.0.2]"}) // while its connections go on
		w.pass(10 * time.Second)
		w.wantExempt(map[string]string{})

		w.object("web", true)
		w.pass(time.Second)
		w.wantExempt(map[string]string{"uid-web": "[10.0.0.2]"})
		w.del("web", "c1")
		w.wantExempt(map[string]string{})
	})
}

// An ADD whose pod's probes would meet the mesh's policy does not succeed, and leaves
// nothing behind.
func TestProbesNotExempt(t *testing.T) {
	inWorld(t, func(w *world) {
		w.space("c1")
		w.object("web", true)
		w.refuseProbes(errors.New("cannot exempt health probes: no such file"))
		err := w.r.Add(w.t.Context(), addressed("web", "c1", "10.0.0.2"))
		wantFailure(t, err, status.KernelRefused, "not captured: cannot exempt health probes: no such file")
		w.wantState("web Pending KernelRefused")
		w.wantExempt(map[string]string{})
	})
}

// A running pod whose probes cannot be exempted is captured and says so, for as long as
// that lasts. Its addresses are its object's where the runtime has not told them.
func TestProbesOfARunningPod(t *testing.T) {
	inWorld(t, func(w *world) {
		w.space("c1")
		has := func(addr string) func(*intent.Pod) {
			return func(p *intent.Pod) { p.IPs = []netip.Addr{netip.MustParseAddr(addr)} }
		}
		w.object("web", false, has("10.0.0.2"))
		if err := w.add("web", "c1"); err != nil {
			t.Fatal(err)
		}
		w.refuseProbes(errors.New("no such file"))
		w.object("web", true, has("10.0.0.2"))
		w.pass(time.Second)
		w.wantState("web Pending KernelRefused", "/run/netns/c1 has full+dns", "proxy has uid-web "+string(proxylink.Acked))
		w.refuseProbes(nil)
		w.pass(time.Minute)
		w.wantExempt(map[string]string{"uid-web": "[10.0.0.2]"})
		w.object("web", true, has("10.0.0.3"))
		w.wantExempt(map[string]string{"uid-web": "[10.0.0.3]"})
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web "+string(proxylink.Acked))
	})
}

// What nobody has ended, as of a pod that went while no agent ran, is ended once all pods
// are known, and not before.
func TestProbesOfPodsThatAreNoMore(t *testing.T) {
	inWorld(t, func(w *world) {
		w.space("c1")
		w.object("web", true)
		if err := w.r.Add(w.t.Context(), addressed("web", "c1", "10.0.0.2")); err != nil {
			t.Fatal(err)
		}
		w.object("untold", true, func(p *intent.Pod) { p.UID = "uid-untold" })
		w.stop()
		both := map[string]string{"uid-web": "[10.0.0.2]", "uid-untold": "[10.0.0.4]"}
		w.mu.Lock()
		w.exempt["uid-untold"], w.exempt["uid-gone"] = "[10.0.0.4]", "[10.0.0.3]"
		w.unsynced = true
		w.mu.Unlock()
		w.start()
		w.pass(time.Minute)
		w.mu.Lock()
		if len(w.exempt) != 3 {
			t.Errorf("before all pods are known are left: %v", w.exempt)
		}
		w.unsynced = false
		w.mu.Unlock()
		w.pass(time.Minute)
		w.wantExempt(both)
	})
}

// noProbes is for a node that nobody probes.
type noProbes struct{}

func (noProbes) Exempt(context.Context, string, *netns.Handle, []netip.Addr) error { return nil }
func (noProbes) Delete(context.Context, string) error                              { return nil }
func (noProbes) KeepOnly(context.Context, []string) error                          { return nil }
