package enroll_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A world is a node: its pods, an agent, a proxy, and the runtime, which is the
// test's to play. What it does to them stands in story. Its methods that find the
// node other than it should be panic with a failure, which ends the sequence.
type world struct {
	rng   *rand.Rand
	story []string

	dir     nodeDir
	outside *netlab.NS
	probing *netlab.NS // where the kubelet is
	echo    *netlab.Echo
	self    *netns.Handle // the node's own namespace
	host    string        // what observe should find there
	sweep   time.Duration
	spaces  int // made so far
	uids    int
	steps   int
	way     way // in which the present event happens

	slots  []*slot
	source *source
	agent  *agent  // nil while it is away
	proxy  *proxy  // nil while it is away
	charge *charge // for the next agent
	// meanwhile happens before the next agent takes the place of one that was killed.
	meanwhile func()
	logs      []*buffer
}

// A failure is what a sequence ends with.
type failure struct{ error }

func fail(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// must fails the sequence if err is not nil.
func must(what string, err error) {
	if err != nil {
		fail("%s: %w", what, err)
	}
}

func (w *world) say(format string, args ...any) {
	w.story = append(w.story, fmt.Sprintf(format, args...))
}

// begin starts an agent and a proxy.
func (w *world) begin() {
	var err error
	w.outside, err = netlab.Create("outside")
	must("make the world outside", err)
	w.probing, err = netlab.Create("host")
	must("make the kubelet's namespace", err)
	w.echo, err = netlab.StartEcho(w.outside, "outside", "tcp", fmt.Sprintf("0.0.0.0:%d", echoPort))
	must("serve outside", err)
	w.source, w.slots = &source{objects: map[string]intent.Pod{}}, nil
	for _, name := range []string{"a", "b", "c"} {
		w.slots = append(w.slots, &slot{name: name})
	}
	w.startAgent()
	w.startProxy()
	w.settle()
}

func (w *world) startAgent() {
	a, err := startAgent(w.dir, w.probing.Handle, w.source, w.sweep, w.charge)
	must("start an agent", err)
	w.charge = nil
	w.agent = a
	w.logs = append(w.logs, a.log)
	w.until("the agent is ready", func() error {
		select {
		case <-w.agent.ready:
			return nil
		default:
			return errNotYet
		}
	})
}

// stopAgent ends the agent, killed or not.
func (w *world) stopAgent() {
	if w.agent != nil {
		must("end an agent", w.agent.end())
		w.agent = nil
	}
}

// bury replaces the agent if it has been killed.
func (w *world) bury() {
	if w.agent == nil || !w.agent.isDead() {
		return
	}
	w.say("  killed after: %s", w.agent.calls())
	w.stopAgent()
	if happens := w.meanwhile; happens != nil {
		w.meanwhile = nil
		happens()
	}
	w.startAgent()
}

func (w *world) startProxy() {
	p, err := startProxy(w.dir, w.rng.IntN(2) == 0)
	must("start a proxy", err)
	w.proxy = p
}

// stopProxy ends a proxy. What it carried is cut.
func (w *world) stopProxy(p *proxy) {
	if p == nil {
		return
	}
	w.say("  the proxy drains: %t", p.drains)
	must("end a proxy", p.end())
	if p == w.proxy {
		w.proxy = nil
	}
	for _, s := range w.slots {
		if b := s.box; b != nil && b.conn != nil && b.conn.proxied {
			w.cut(b.conn)
			b.conn = nil
		}
	}
}

// cut sees that a connection has been reset or has ended.
func (w *world) cut(h *held) {
	w.until("a connection is cut", func() error {
		if err := h.ping(time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			return errNotYet
		}
		return nil
	})
	_ = h.conn.Close() // it is broken
}

var errNotYet = errors.New("not yet")

// until waits until check finds nothing amiss. Agents that are killed meanwhile are
// replaced.
func (w *world) until(what string, check func() error) {
	tick := time.NewTicker(3 * time.Millisecond)
	defer tick.Stop()
	var last error
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-tick.C {
		w.bury()
		if last = check(); last == nil {
			return
		}
	}
	fail("not within %s: %s: %w", patience, what, last)
}

// ask has the runtime ask the agent until one has answered. An answer that a dead
// agent gives has not been heard. It returns false if the runtime gives up then.
func (w *world) ask(call func(*enroll.Reconciler) error) (answered bool, err error) {
	for {
		a := w.agent
		answer := make(chan error, 1)
		go func() { answer <- call(a.reconciler) }()
		select {
		case err := <-answer:
			if !a.isDead() {
				return true, err
			}
		case <-a.died:
			w.say("  the dead agent's answer, which nobody hears: %v", <-answer)
		case <-time.After(patience):
			fail("the agent does not answer the runtime within %s", patience)
		}
		w.bury()
		if w.rng.IntN(3) == 0 {
			return false, nil
		}
	}
}

// newBox makes a sandbox for a slot's object, or for a UID of which nothing is known.
func (w *world) newBox(uid string) *box {
	w.spaces++
	space, err := newSpace(w.outside, w.spaces, uid, fmt.Sprintf("c%d", w.spaces))
	must("make a sandbox", err)
	return &box{space: space}
}

// launch has the runtime start a sandbox of the slot.
func (w *world) launch(s *slot, b *box) {
	w.start(s, b, func() (bool, error) { return w.add(s, b) }, w.addOutcome(s), false)
}

// start is launch with an ADD that comes to want, unless it waits for too long, which
// is not wrong if it may: then it is tried again. The sandbox takes the place of what
// was there, which the runtime ends afterwards. If the ADD fails it is ended, too.
func (w *world) start(s *slot, b *box, add func() (bool, error), want status.Reason, may bool) {
	old := s.box
	s.box = b
	answered, err := add()
	if old != nil {
		w.endBox(s, old)
	}
	var f *enroll.Failure
	late := may && errors.As(err, &f) && (f.Reason == status.NoProxy || f.Reason == status.PodUnknown)
	switch {
	case answered && err == nil && want == status.OK:
		return
	case !answered:
		w.say("  the runtime gives up")
	case errors.As(err, &f) && f.Reason == want, late:
		w.undone(b)
	default:
		fail("ADD of %s: %w; want %s", b.container, err, want)
	}
	s.box = nil
	w.endBox(s, b)
	if late && want == status.OK {
		w.say("  the ADD waited too long (%s), and is tried again", f.Reason)
		w.launch(s, w.newBox(b.uid))
	}
}

// undone sees that nothing of an ADD that has failed is left, unless the kernel was made
// to fail, or the sandbox was over already.
func (w *world) undone(b *box) {
	if w.way == failing || b.over {
		return
	}
	want := fmt.Sprintf("%s: rules none, routing none, lo up, listeners none", b.container)
	w.until("the ADD is undone", func() error {
		got, err := b.look("none")
		if err == nil && got != want {
			err = errors.New(got)
		}
		return err
	})
}

// addOutcome is what the ADD of a new sandbox should come to.
func (w *world) addOutcome(s *slot) status.Reason {
	switch {
	case s.object == nil:
		return status.PodUnknown
	case s.object.labelled && w.proxy == nil:
		return status.NoProxy
	}
	return status.OK
}

// endBox has the runtime end a sandbox: DEL, and then the namespace goes.
func (w *world) endBox(s *slot, b *box) {
	w.del(b.attachment(s.name))
	must("destroy a sandbox", b.destroy())
}

// del asks for the end of a sandbox. DELs may come late, without all that the ADD had.
func (w *world) del(a agentapi.Attachment) {
	if w.rng.IntN(3) == 0 {
		a.Netns = ""
	}
	for {
		answered, err := w.ask(func(r *enroll.Reconciler) error { return r.Del(context.Background(), a) })
		if answered {
			must("DEL of "+a.ContainerID, err)
			return
		}
		if w.rng.IntN(2) == 0 {
			w.say("  the runtime does not repeat the DEL of %s", a.ContainerID)
			return
		}
	}
}

// settle waits until the node is as the model says.
func (w *world) settle() {
	w.until("the node settles", func() error {
		w.follow()
		got, err := w.observe()
		if err != nil {
			return err
		}
		if diff := differ(w.expect(), got); diff != "" {
			return errors.New("it does not come to what it should be:\n" + diff)
		}
		return nil
	})
}

// set changes a slot's object and tells the agent.
func (w *world) set(s *slot, o *object) {
	s.object = o
	if o == nil {
		w.source.set(s.name, nil)
	} else {
		w.source.set(s.name, podOf(s.name, o.uid, o.labelled))
	}
	if w.agent != nil {
		w.agent.reconciler.Wake("")
	}
}

// end empties the node and stops all that runs.
func (w *world) end() {
	for _, s := range w.slots {
		w.set(s, nil)
		if b := s.box; b != nil {
			s.box = nil
			w.endBox(s, b)
		}
	}
	w.settle()
	w.stopAgent()
	w.stopProxy(w.proxy)
	w.untilGone()
	must("end the world outside", errors.Join(w.echo.Close(), w.outside.Close(), w.probing.Close()))
	w.outside = nil
}

// untilGone waits until all pods' namespaces are gone, and their ends of the cables
// with them.
func (w *world) untilGone() {
	w.until("no pod's namespace is left", func() error {
		left, err := links(w.outside.Handle)
		if err == nil && len(left) > 1 {
			err = fmt.Errorf("there are still %s", left)
		}
		return err
	})
}

// abandon ends what a story that has failed has left.
func (w *world) abandon() {
	if w.agent != nil {
		w.agent.kill()
		_ = w.agent.end()
	}
	if w.proxy != nil {
		_ = w.proxy.end()
	}
	for _, s := range w.slots {
		if s.box != nil {
			_ = s.box.destroy()
		}
	}
	if w.outside != nil {
		_ = errors.Join(w.echo.Close(), w.outside.Close(), w.probing.Close())
	}
}
