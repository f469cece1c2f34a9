package enroll_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// An event is something that happens to a pod, or to its node.
type event struct {
	name string
	// never says why it cannot be in a phase.
	never func(traits) string
	// proxy is what it needs: "there", "away".
	proxy string
	node  bool // it happens to all pods
	do    func(*world, *slot)
	after func(*world, *slot) // once an agent is back

	// In what ways it may happen, too: the agent is killed, or the kernel fails it, in
	// the middle of what it does about it; or the agent is away.
	killed, failing, away, awayOnly bool
	// back takes it back while a killed agent is away, if not nil.
	back func(*world, *slot)
	// weight is how often chance chooses it: 2 if it is 0.
	weight int
}

var events = []event{
	{name: "plain object", never: noObjectYet, away: true, weight: often,
		do: func(w *world, s *slot) { w.set(s, &object{w.uidFor(s), false}) }},
	{name: "labelled object", never: noObjectYet, away: true, weight: often,
		do: func(w *world, s *slot) { w.set(s, &object{w.uidFor(s), true}) }},
	{name: "label", killed: true, failing: true, away: true, do: label, back: unlabel, weight: often,
		never: func(t traits) string { return first(withObject(t), when(t.object == "labelled", hasLabel)) }},
	{name: "unlabel", killed: true, failing: true, away: true, do: unlabel, back: label,
		never: func(t traits) string { return first(withObject(t), when(t.object == "plain", hasNoLabel)) }},
	{name: "label changed, and back", do: changeAndBack,
		never: func(t traits) string { return first(withObject(t), withSandbox(t)) }},
	{name: "object gone", never: withObject, away: true, weight: seldom,
		do: func(w *world, s *slot) { w.set(s, nil) }},

	{name: "ADD", never: withoutSandbox, killed: true, failing: true, weight: often,
		do: func(w *world, s *slot) { w.launch(s, w.newBox(w.uidFor(s))) }},
	{name: "ADD before the object", do: addBeforeObject,
		never: func(t traits) string { return first(withoutSandbox(t), noObjectYet(t)) }},
	{name: "ADD again", never: withSandbox, do: addAgain},
	{name: "ADD cancelled", never: anywhere, weight: seldom, do: addCancelled},
	{name: "new sandbox", never: withSandbox, killed: true, failing: true,
		do: func(w *world, s *slot) { w.launch(s, w.newBox(s.box.uid)) }},
	{name: "new pod", never: withSandbox, weight: seldom, killed: true, do: newPod},
	{name: "DEL", never: withSandbox, weight: seldom, killed: true, failing: true, do: func(w *world, s *slot) {
		b := s.box
		s.box = nil
		w.endBox(s, b)
	}},
	{name: "DEL of another", never: anywhere, do: delOfAnother},
	{name: "DEL unheard", never: withSandbox, weight: seldom, awayOnly: true, do: destroyed},
	{name: "deleted", weight: seldom, do: deleted,
		never: func(t traits) string { return first(withObject(t), withSandbox(t)) }},
	{name: "namespace destroyed", never: withSandbox, weight: seldom, away: true, do: destroyed},

	{name: "connect", away: true, weight: often, do: connect, never: func(t traits) string {
		return first(withSandbox(t), when(t.gone(), objectIsGone), when(t.conn, hasConn))
	}},
	{name: "disconnect", killed: true, failing: true, away: true, do: disconnect, never: func(t traits) string {
		return first(withSandbox(t), when(t.gone() && !t.conn, objectIsGone), when(!t.conn, hasNone))
	}},

	{name: "rules flushed", never: withSandbox, killed: true, failing: true, away: true,
		do: func(w *world, s *slot) { w.damage(s.box, "flush rules", s.box.flushRules) }},
	{name: "ip rules deleted", never: withSandbox, failing: true, away: true,
		do: func(w *world, s *slot) { w.damage(s.box, "delete ip rules", s.box.deleteRules) }},
	{name: "routes deleted", never: withSandbox, killed: true, away: true,
		do: func(w *world, s *slot) { w.damage(s.box, "delete routes", s.box.deleteRoutes) }},
	{name: "lo down", never: withSandbox, failing: true, away: true, do: func(w *world, s *slot) {
		s.box.loDown = !s.box.draining() // it is brought up before the connection is looked for
		w.damage(s.box, "take lo down", func() error { return s.box.setLink("lo", false) })
	}},
	{name: "eth0 down and up", never: withSandbox, do: func(_ *world, s *slot) {
		must("take eth0 down", s.box.setLink("eth0", false))
		must("bring eth0 up", s.box.setLink("eth0", true))
	}},
	{name: "flushed, and connected", awayOnly: true, proxy: "there", do: connectInGap, after: cutInGap,
		never: func(t traits) string {
			return when(t.object != "labelled" || !t.box || t.proxy != "there" || (t.conn && !t.old), notCaptured)
		}},

	{name: "agent restarted", never: anywhere, node: true, killed: true, failing: true,
		do: func(w *world, _ *slot) { w.stopAgent(); w.startAgent() }},
	{name: "agent killed", never: anywhere, node: true,
		do: func(w *world, _ *slot) { w.agent.kill() }},
	{name: "proxy away", never: withProxy, proxy: "there", node: true, away: true,
		do: func(w *world, _ *slot) { w.stopProxy(w.proxy) }},
	{name: "proxy back", never: withoutProxy, weight: often, proxy: "away", node: true, killed: true, failing: true, away: true,
		do: func(w *world, _ *slot) { w.startProxy() }},
	{name: "proxy restarted", never: withProxy, proxy: "there", node: true, killed: true, failing: true, away: true,
		do: func(w *world, _ *slot) { w.stopProxy(w.proxy); w.startProxy() }},
	{name: "proxy replaced", never: withProxy, proxy: "there", node: true, killed: true, do: replaceProxy},

	{name: "ADD waits, cancelled", never: unserved, proxy: "away", do: func(w *world, s *slot) {
		w.addWaits(s, status.Cancelled, func(_ *box, cancel func()) { cancel() })
	}},
	{name: "ADD waits, DEL", never: unserved, proxy: "away", do: func(w *world, s *slot) {
		w.addWaits(s, status.Deleted, func(b *box, _ func()) {
			b.over = true
			w.del(b.attachment(s.name))
		})
	}},
	{name: "ADD waits, again", never: unserved, proxy: "away", do: func(w *world, s *slot) {
		w.addWaits(s, status.Cancelled, func(b *box, _ func()) {
			err := <-w.addLater(context.Background(), s, b)
			if f := (*enroll.Failure)(nil); !errors.As(err, &f) || f.Reason != status.NoProxy {
				fail("the second ADD: %w", err)
			}
		})
	}},
	{name: "ADD waits, new sandbox", never: unserved, proxy: "away", do: func(w *world, s *slot) {
		w.addWaits(s, status.Cancelled, func(b *box, _ func()) {
			b.over = true
			w.launch(s, w.newBox(s.object.uid))
		})
	}},
	{name: "ADD waits, unlabel", never: unserved, proxy: "away", do: func(w *world, s *slot) {
		w.addWaits(s, status.OK, func(*box, func()) { w.set(s, &object{s.object.uid, false}) })
	}},
	{name: "ADD waits, object gone", never: unserved, proxy: "away", do: func(w *world, s *slot) {
		w.addWaits(s, status.NoProxy, func(*box, func()) { w.set(s, nil) })
	}},
	{name: "ADD waits, proxy back", never: unserved, proxy: "away", do: func(w *world, s *slot) {
		w.addWaits(s, status.OK, func(*box, func()) { w.startProxy() })
	}},
	{name: "ADD waits, agent restarted", never: unserved, proxy: "away", do: func(w *world, s *slot) {
		w.addWaits(s, status.NoProxy, func(*box, func()) { w.stopAgent(); w.startAgent() })
	}},
	{name: "ADD waits, agent killed", never: unserved, proxy: "away", do: func(w *world, s *slot) {
		w.addWaits(s, status.NoProxy, func(*box, func()) { w.agent.kill() })
	}},
}

// How often chance chooses an event, so that pods come to live and to be connected.
const (
	seldom = 1
	often  = 8
)

func label(w *world, s *slot)   { w.set(s, &object{s.object.uid, true}) }
func unlabel(w *world, s *slot) { w.set(s, &object{s.object.uid, false}) }

func changeAndBack(w *world, s *slot) {
	was := *s.object
	w.set(s, &object{was.uid, !was.labelled})
	w.settle()
	w.set(s, &was)
}

// uidFor is the UID of the slot's pod, a new one if there is none.
func (w *world) uidFor(s *slot) string {
	switch {
	case s.box != nil:
		return s.box.uid
	case s.object != nil:
		return s.object.uid
	}
	return w.newUID(s)
}

func (w *world) newUID(s *slot) string {
	w.uids++
	return fmt.Sprintf("uid-%s-%d", s.name, w.uids)
}

// add asks for the ADD of a sandbox.
func (w *world) add(s *slot, b *box) (answered bool, err error) {
	return w.ask(func(r *enroll.Reconciler) error { return r.Add(context.Background(), b.attachment(s.name)) })
}

// addBeforeObject starts a sandbox of a pod that the source learns of only then.
func addBeforeObject(w *world, s *slot) {
	b := w.newBox(w.newUID(s))
	answer := w.addLater(context.Background(), s, b)
	w.untilWaits(b, status.PodUnknown, answer)
	w.set(s, &object{b.uid, w.rng.IntN(2) == 0})
	w.start(s, b, func() (bool, error) { return true, <-answer }, w.addOutcome(s), true)
}

// addAgain repeats the ADD of a sandbox. If it fails the runtime ends that.
func addAgain(w *world, s *slot) {
	b := s.box
	_, err := w.add(s, b)
	var f *enroll.Failure
	switch {
	case b.capture && w.proxy == nil && errors.As(err, &f) && f.Reason == status.NoProxy:
		s.box = nil
		w.endBox(s, b)
	case b.capture && w.proxy == nil:
		fail("ADD again, without a proxy: %w", err)
	default:
		must("ADD again", err)
	}
}

// addCancelled starts a sandbox, at some step of which the plugin's connection closes.
// The runtime ends it, whatever came of it.
func addCancelled(w *world, s *slot) {
	old, b := s.box, w.newBox(w.uidFor(s))
	s.box = nil
	ctx, cancel := context.WithCancel(context.Background())
	w.agent.arm(&charge{calls: 1 + w.rng.IntN(10), do: cancel})
	_, err := w.ask(func(r *enroll.Reconciler) error { return r.Add(ctx, b.attachment(s.name)) })
	w.agent.arm(nil)
	cancel()
	var f *enroll.Failure
	switch {
	case err != nil && !errors.As(err, &f):
		fail("a cancelled ADD: %w", err)
	case err != nil && f.Reason == status.Cancelled:
		w.undone(b)
	}
	w.endBox(s, b)
	if old != nil {
		w.endBox(s, old)
	}
}

// newPod makes the pod anew, under the same name.
func newPod(w *world, s *slot) {
	old, fresh := s.box, &object{w.newUID(s), w.rng.IntN(2) == 0}
	switch w.rng.IntN(3) {
	case 0: // the old sandbox ends late
		w.set(s, fresh)
	case 1:
		w.set(s, nil)
		s.box = nil
		w.endBox(s, old)
		w.set(s, fresh)
	case 2: // and is not heard of any more
		w.set(s, fresh)
		destroyed(w, s)
	}
	w.launch(s, w.newBox(fresh.uid))
}

// delOfAnother is about a sandbox that is not the pod's.
func delOfAnother(w *world, s *slot) {
	a := agentapi.Attachment{Namespace: "shop", Name: s.name, UID: w.uidFor(s), ContainerID: "c0", Netns: "/run/netns/c0"}
	switch w.rng.IntN(3) {
	case 0:
		a.UID = ""
	case 1:
		a.UID = "uid-of-nobody"
	}
	w.del(a)
}

func destroyed(_ *world, s *slot) {
	must("destroy a sandbox", s.box.destroy())
	s.box = nil
}

func deleted(w *world, s *slot) {
	b := s.box
	s.box = nil
	if w.rng.IntN(2) == 0 {
		w.set(s, nil)
		w.endBox(s, b)
		return
	}
	w.endBox(s, b)
	w.set(s, nil)
}

// connect connects the app to the outside: through the proxy, directly, or not at all.
func connect(w *world, s *slot) {
	b := s.box
	inbound := w.rng.IntN(2) == 0
	conn, err := b.connect(inbound, b.capture && w.proxy != nil)
	if b.capture && b.redirected && w.proxy == nil {
		if !errors.Is(err, unix.ECONNREFUSED) {
			fail("a blocked pod connects: %w", err)
		}
		return
	}
	must("connect", err)
	b.conn = conn
}

func disconnect(_ *world, s *slot) {
	must("disconnect", s.box.conn.conn.Close())
	s.box.conn = nil
}

// damage has somebody change what redirects the pod's traffic. A connection through
// the proxy is cut if one packet goes astray, as one is now sent to, before all is back.
func (w *world) damage(b *box, what string, do func() error) {
	must(what, do())
	if b.conn == nil || !b.conn.proxied {
		return
	}
	if err := b.conn.ping(time.Second); err != nil {
		w.say("  the connection is given up: %v", err)
		_ = b.conn.conn.Close() // it is broken
		b.conn = nil
	}
}

// connectInGap connects directly while the rules are away.
func connectInGap(w *world, s *slot) {
	must("flush rules", s.box.flushRules())
	conn, err := s.box.connect(w.rng.IntN(2) == 0, false)
	must("connect", err)
	s.box.gap = conn
}

// cutInGap sees that what was opened then is reset, and what was kept before is not.
func cutInGap(w *world, s *slot) {
	w.cut(s.box.gap)
	s.box.gap = nil
}

// replaceProxy ends a proxy once another one serves all pods beside it.
func replaceProxy(w *world, _ *slot) {
	old := w.proxy
	w.startProxy()
	w.until("the new proxy is ready", w.proxy.Ready)
	w.stopProxy(old)
}

// addLater begins an ADD and returns where its answer will be.
func (w *world) addLater(ctx context.Context, s *slot, b *box) <-chan error {
	answer, r, a := make(chan error, 1), w.agent.reconciler, b.attachment(s.name)
	go func() { answer <- r.Add(ctx, a) }()
	return answer
}

// untilWaits waits until an ADD waits, or has waited long enough.
func (w *world) untilWaits(b *box, why status.Reason, answer <-chan error) {
	w.until("the ADD waits", func() error {
		for _, p := range w.agent.reconciler.Report() {
			if p.Netns.ContainerID == b.container && p.Reason == why {
				return nil
			}
		}
		if len(answer) > 0 {
			return nil
		}
		return errNotYet
	})
}

// addWaits starts a sandbox while there is no proxy, and has something happen while
// the ADD waits.
func (w *world) addWaits(s *slot, want status.Reason, happens func(b *box, cancel func())) {
	b := w.newBox(s.object.uid)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	answer := w.addLater(ctx, s, b)
	w.untilWaits(b, status.NoProxy, answer)
	before := w.agent
	happens(b, cancel)
	add := func() (bool, error) {
		err := <-answer
		if f := (*enroll.Failure)(nil); before.isDead() || (err != nil && !errors.As(err, &f)) {
			w.bury()
			return w.add(s, b)
		}
		return true, err
	}
	w.start(s, b, add, want, true)
}
