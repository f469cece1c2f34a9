package enroll

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A Failure is why a request was not carried out.
type Failure struct {
	Reason  status.Reason
	Message string
}

func (f *Failure) Error() string { return f.Message }

// errStopping answers requests that the agent's end has overtaken. It is no
// Failure: the plugin is to ask the next agent.
var errStopping = errors.New("the agent is stopping")

type verb int

const (
	add verb = iota
	del
	check
)

// A call is one request of the runtime. The pod's worker answers it exactly once.
type call struct {
	ctx        context.Context
	came       time.Time
	verb       verb
	attachment agentapi.Attachment
	answer     chan error // has room for the answer
}

// An answer is given at the end of a turn, when the report says the same.
type answer struct {
	call *call
	err  error
}

func (p *pod) answer(c *call, err error) { p.answers = append(p.answers, answer{c, err}) }

// Add makes a the pod's attachment and returns when the pod is captured, or is not
// meant to be, or cannot be: then with a *Failure, and what was begun is undone.
// So it is when ctx ends. It may be repeated.
func (r *Reconciler) Add(ctx context.Context, a agentapi.Attachment) error {
	start := time.Now()
	err := r.ask(ctx, add, a)
	r.config.Metrics.added(err, time.Since(start))
	return err
}

// Del ends an attachment; one that is not the pod's present one is left alone. A
// runtime may have forgotten all but the container's id.
func (r *Reconciler) Del(ctx context.Context, a agentapi.Attachment) error {
	if a.UID == "" {
		if a.UID = r.uidOf(a.ContainerID); a.UID == "" {
			return nil
		}
	}
	return r.ask(ctx, del, a)
}

// GC ends the attachments of which the runtime has said, by leaving it out of valid, that
// it does not have the container, and of which the source has said that there is no such
// pod any more. One word alone is not enough: a runtime knows the pods of a list of plugins
// by the list's name, which may have been another one.
func (r *Reconciler) GC(ctx context.Context, valid []string) error {
	if !r.config.Source.Synced() {
		return nil
	}
	var errs []error
	for _, a := range r.attached() {
		object, _, ok := r.config.Source.Lookup(a.Namespace, a.Name)
		unread, _ := r.unread(a.Namespace, a.Name)
		known := ok && object.Is(a.UID) || unread != ""
		if !known && !slices.Contains(valid, a.ContainerID) {
			errs = append(errs, r.ask(ctx, del, a))
		}
	}
	return errors.Join(errs...)
}

// attached are the attachments whose containers are known, and whose ADD is over.
func (r *Reconciler) attached() []agentapi.Attachment {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []agentapi.Attachment
	for uid, p := range r.pods {
		if p.report.Netns.ContainerID != "" && p.report.State != status.Pending && len(p.calls) == 0 {
			all = append(all, agentapi.Attachment{
				Namespace: p.report.Namespace, Name: p.report.Name, UID: uid, ContainerID: p.report.Netns.ContainerID,
			})
		}
	}
	return all
}

// uidOf returns the UID of the pod whose present sandbox has the container's id.
func (r *Reconciler) uidOf(container string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, p := range r.pods {
		if p.report.Netns.ContainerID == container {
			return uid
		}
	}
	return ""
}

// Check returns a *Failure unless the attachment is as it should be.
func (r *Reconciler) Check(ctx context.Context, a agentapi.Attachment) error {
	return r.ask(ctx, check, a)
}

// ask hands a request to the pod's worker and waits for its answer.
func (r *Reconciler) ask(ctx context.Context, v verb, a agentapi.Attachment) error {
	c := &call{ctx: ctx, came: time.Now(), verb: v, attachment: a, answer: make(chan error, 1)}
	r.mu.Lock()
	queue := r.queue
	if queue == nil {
		r.mu.Unlock()
		return errStopping
	}
	p := r.pods[a.UID]
	if p == nil {
		p = newPod(r, a.UID)
		r.pods[a.UID] = p
	}
	p.calls = append(p.calls, c)
	r.mu.Unlock()

	queue.Add(a.UID)
	defer context.AfterFunc(ctx, func() { queue.Add(a.UID) })()
	select {
	case err := <-c.answer:
		return err
	case <-r.stopped:
		return errStopping
	}
}

// turn answers a pod's calls and reconciles it, and returns when the pod wants to be woken
// if nothing else wakes it. If it is having a turn, another follows that one.
func (r *Reconciler) turn(ctx context.Context, uid string) time.Duration {
	r.mu.Lock()
	p := r.pods[uid]
	if p == nil {
		r.mu.Unlock()
		return 0
	}
	if _, busy := r.busy[uid]; busy {
		p.awaited = true
		r.mu.Unlock()
		return 0
	}
	calls := p.calls
	p.calls = nil
	began := time.Now()
	r.busy[uid] = began
	r.mu.Unlock()

	var checks []*call
	for _, c := range calls {
		if c.verb == check {
			checks = append(checks, c)
		} else {
			p.take(c)
		}
	}
	out := p.reconcile(ctx)
	for _, c := range checks {
		p.check(c, out)
	}
	p.settle(ctx, &out)
	p.remember()
	answers := p.answers
	p.answers = nil

	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.busy, uid)
	delete(r.adopting, uid)
	r.looked()
	p.publish(out)
	for _, a := range answers {
		var f *Failure
		if a.call.verb == add && errors.As(a.err, &f) && f.Reason != status.Cancelled && f.Reason != status.Deleted {
			r.failed(a.call, f)
		}
		a.call.answer <- a.err
	}
	if p.attachment == nil && p.ended != nil {
		r.ended[uid] = *p.ended
	}
	if p.attachment == nil && len(p.calls) == 0 {
		delete(r.pods, uid)
		return 0
	}
	return p.next(sooner(out.again, p.warn()), began)
}

// next is when the pod has its next turn, after one that began then and wants another
// after again, if nothing else calls for one. Reconciler.mu is held.
func (p *pod) next(again time.Duration, began time.Time) time.Duration {
	now := time.Now()
	pause := rest(now.Sub(began))
	if p.changed {
		again = time.Nanosecond // at once: 0 is not at all
	}
	if again > 0 && p.adding == nil {
		again = max(again, pause)
	}
	if p.awaited {
		again = time.Nanosecond
	}
	p.sweepAt, p.restsUntil, p.changed, p.awaited = now.Add(max(p.r.config.SweepInterval, pause)), now.Add(pause), false, false
	return again
}

// rest is how long a pod is not looked at for what changes in its namespace, after a
// turn that took so long. Somebody in the pod may have made it long, and may change
// things without a pause: that is worth a fifth of a worker, and of a core, at most.
func rest(took time.Duration) time.Duration {
	const ordinary = 50 * time.Millisecond
	if took <= ordinary {
		return 0
	}
	return 4 * took
}

// current reports whether the call is about the pod's present sandbox.
func (p *pod) current(c *call) bool {
	return p.attachment != nil && p.attachment.ContainerID == c.attachment.ContainerID
}

// ends reports whether a DEL is about the pod's present sandbox. Of one that was found
// the container's id may not be known, until an ADD tells it: then the namespace that
// the DEL names decides. A DEL that names none may as well be an old sandbox's; the
// kernel knows whether ours is over.
func (p *pod) ends(c *call) bool {
	switch {
	case p.attachment == nil || p.attachment.ContainerID != "":
		return p.current(c)
	case c.attachment.Netns == "":
		return false
	case c.attachment.Netns == p.attachment.Netns:
		return true
	}
	place, err := p.r.config.Find(c.attachment.Netns)
	return err == nil && place.ID == p.place.ID
}

// repeats reports whether an ADD is for the pod's present sandbox in every respect.
// A container's id that comes with another namespace is another sandbox.
func (p *pod) repeats(c *call) bool {
	a, b := p.attachment, &c.attachment
	return p.current(c) && a.Netns == b.Netns && a.Namespace == b.Namespace && a.Name == b.Name
}

// take carries out an ADD or a DEL as far as that needs no waiting.
func (p *pod) take(c *call) {
	switch {
	case c.verb == del && p.ends(c):
		p.fail(&Failure{status.Deleted, "the runtime deleted the sandbox"})
		p.deleted()
		p.answer(c, nil)
	case c.verb == del:
		p.answer(c, nil)
	case p.repeats(c): // the plugin has lost its connection and asks again
		p.fail(&Failure{status.Cancelled, "the same ADD was asked for again"})
		p.begin(c)
	default: // a new sandbox
		if p.attachment != nil {
			p.fail(&Failure{status.Cancelled, "a newer sandbox of the pod took its place"})
			p.drop()
		}
		p.attachment = &c.attachment
		p.begin(c)
	}
}

// check answers a CHECK by what the turn came to.
func (p *pod) check(c *call, out outcome) {
	switch {
	case !p.current(c):
		p.answer(c, &Failure{status.SandboxUnknown, "the agent has not been told of container " + c.attachment.ContainerID})
	case out.state == status.Captured, out.state == status.NotCaptured, out.state == status.Unsupported:
		p.answer(c, nil)
	default:
		p.answer(c, &Failure{out.reason, "not captured: " + out.message})
	}
}

// begin makes c the ADD that waits for the outcome.
func (p *pod) begin(c *call) {
	p.adding, p.orphan = c, false
	p.waiting = waiting{}
}

// fail answers the ADD that waits, if one does.
func (p *pod) fail(f *Failure) {
	if p.adding != nil {
		p.answer(p.adding, f)
		p.adding = nil
	}
}

// waiting is since when an ADD has waited for what.
type waiting map[status.Reason]time.Time

// settle decides whether the turn's outcome is the answer to who waits.
func (p *pod) settle(ctx context.Context, out *outcome) {
	// When the agent ends, whoever waits asks the next one: nothing is undone.
	if p.adding == nil || ctx.Err() != nil {
		return
	}
	if p.adding.ctx.Err() != nil {
		p.fail(&Failure{status.Cancelled, fmt.Sprintf("the ADD was given up while the pod was %s (%s)", out.state, out.reason)})
		p.undo(ctx)
		return
	}
	switch out.state {
	case status.NotCaptured:
		if p.decision.Reason == intent.NodeDrained {
			p.fail(&Failure{status.NodeDrained, "not captured: this node is drained, and the pod asks to be captured; it starts on another node, or here when that is over"})
			p.undo(ctx)
			return
		}
		fallthrough
	case status.Captured, status.Unsupported:
		p.answer(p.adding, nil)
		p.adding = nil
		p.r.config.Logger.Info("pod started", "pod", p.name(), "state", out.state, "reason", out.reason)
		return
	}
	left, over := p.patience(out.reason)
	if !over {
		if out.again <= 0 || left < out.again {
			out.again = left
		}
		return
	}
	p.fail(&Failure{out.reason, "not captured: " + out.message})
	p.undo(ctx)
}

// patience says how much longer an ADD waits for what it waits for now, or that it
// has waited long enough.
func (p *pod) patience(reason status.Reason) (left time.Duration, over bool) {
	total := addLimit - time.Since(p.adding.came)
	if reason == status.ManifestBroken || reason == status.APIUnavailable {
		reason = status.PodUnknown // one wait, however much is known of its cause
	}
	limits := map[status.Reason]time.Duration{
		status.Capturing:     addLimit,
		status.PodUnknown:    p.r.config.PodWait,
		status.NoProxy:       p.r.config.ProxyWait,
		status.NoAnswer:      p.r.config.AckWait,
		status.NoListeners:   p.r.config.AckWait,
		status.KernelRefused: kernelPatience,
	}
	limit, patient := limits[reason]
	if !patient {
		return 0, true
	}
	since, known := p.waiting[reason]
	if !known {
		since = time.Now()
		p.waiting[reason] = since
	}
	left = min(limit-time.Since(since), total)
	return left, left <= 0
}

// addLimit is how long an ADD waits in all: the plugin gives up after ten seconds,
// and would then say less than we know.
const addLimit = 9 * time.Second

// kernelPatience is how long an ADD retries what the kernel refuses: some
// refusals pass, and the kubelet's own next try is 12 seconds away.
const kernelPatience = time.Second
