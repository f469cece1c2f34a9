package enroll

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A pod is one pod that the runtime has told us of, or that was found.
type pod struct {
	r   *Reconciler
	uid string

	// Guarded by Reconciler.mu.
	calls      []*call // not taken yet
	report     status.Pod
	search     *search   // nil: there is none
	changer    string    // who changed the namespace last
	sweepAt    time.Time // when the sweep gives it a turn
	restsUntil time.Time // changes in its namespace give it no turn before that
	changed    bool      // there were some during its turn
	awaited    bool      // it was to have another turn during its turn

	// The worker's.
	answers    []answer  // to the calls taken in this turn
	written    *Record   // the record as it was written last
	draft      Record    // as it would be now; kept here so that comparing it makes no garbage
	begun      bool      // by that record an ADD is under way
	unrecorded bool      // the record could not be written, which was logged
	ended      *netns.ID // that of the last sandbox of it that has ended; zero: not by the runtime's word
	progress
}

func newPod(r *Reconciler, uid string) *pod { return &pod{r: r, uid: uid} }

// name is namespace/name for people; a pod without an attachment has only its UID.
func (p *pod) name() string {
	if p.attachment == nil {
		return p.uid
	}
	return p.attachment.Namespace + "/" + p.attachment.Name
}

// redirected reports whether redirects have been put in place.
func (p *pod) redirected() bool { return p.applied.Form > ruleset.FormMarks }

// An outcome is what a turn came to.
type outcome struct {
	state   status.State
	reason  status.Reason
	message string
	again   time.Duration // when to look again; 0: at the next sweep
}

// reconcile closes the difference between intent and observation as far as that
// can be done now.
func (p *pod) reconcile(ctx context.Context) outcome {
	if p.attachment != nil && p.isOver() {
		// Whatever the runtime still says, the sandbox is over.
		p.fail(&Failure{status.NetnsRefused, "the sandbox's network namespace is gone"})
		p.drop()
	}
	if p.attachment == nil {
		return outcome{state: status.NotCaptured, reason: status.Deleted}
	}
	p.look()
	if !p.known {
		return p.r.undecided(p.attachment.Namespace, p.attachment.Name, p.unknown)
	}
	out := p.towards(ctx)
	if out.reason == status.KernelRefused {
		p.failures++
		out.again = backoff(p.failures, 100*time.Millisecond, 30*time.Second)
	} else {
		p.failures = 0
	}
	if p.gone && (out.state == status.Captured || out.state == status.NotCaptured) && out.reason != status.Draining {
		out.reason, out.message = status.ObjectGone, "the pod's object is gone, its namespace lives; it stays as it was"
	}
	return out
}

func (p *pod) towards(ctx context.Context) outcome {
	// That we cannot look does not concern a pod that we are to leave alone.
	if err := p.find(); err != nil && (p.decision.Capture || p.touched || errors.Is(err, sandbox.ErrAnothers)) {
		p.keep()
		return p.notOpened(err)
	}
	if p.orphan {
		return p.orphaned()
	}
	if p.lost && p.kernel == nil && (p.decision.Capture || p.touched) {
		return p.missing()
	}
	if err := p.resume(); err != nil {
		p.keep()
		return p.notOpened(err)
	}
	if p.decision.Capture {
		return p.capture(ctx)
	}
	return p.release(ctx)
}

// look asks the source and decides. What is not there any more leaves the last
// decision in force: nothing is released by inference.
func (p *pod) look() {
	defer func() { p.decision = p.decision.On(p.r.drained.Load()) }()
	object, namespace, ok := p.r.config.Source.Lookup(p.attachment.Namespace, p.attachment.Name)
	switch {
	case !ok:
		p.unknown = "no object or manifest of this pod, or of its namespace, is known on this node yet"
	case !object.Is(p.uid):
		ok, p.unknown = false, fmt.Sprintf("its object or manifest has UID %s, the runtime speaks of %s", object.UID, p.uid)
	}
	if !ok {
		unread, _ := p.r.unread(p.attachment.Namespace, p.attachment.Name)
		if unread != "" && unread != status.PodUnknown { // what may still tell of it, or has said no, is not silent
			p.recall()
		}
		p.gone = p.gone || p.known && p.r.config.Source.Synced() && unread == ""
		return
	}
	p.object, p.known, p.gone = object, true, false
	before := p.decision.Warnings
	p.decision = p.r.config.Policy.Decide(object, namespace)
	for i, warning := range p.decision.Warnings {
		if i >= len(before) || before[i] != warning {
			p.r.config.Logger.Warn("an annotation is ignored", "pod", p.name(), "warning", warning)
		}
	}
}

// undecided is the outcome for a pod of which the source does not know enough, and
// says so in its own words if nothing keeps it from knowing.
func (r *Reconciler) undecided(namespace, name, unknown string) outcome {
	out := outcome{state: status.Pending, reason: status.PodUnknown, message: unknown}
	if reason, why := r.unread(namespace, name); reason != "" {
		out.reason, out.message = reason, why
	}
	return out
}

func (r *Reconciler) unread(namespace, name string) (status.Reason, string) {
	if r.config.Unread == nil {
		return "", ""
	}
	return r.config.Unread(namespace, name)
}

// isOver reports whether the pod's namespace is gone, or is another one than was on
// record. That it cannot be looked at now says nothing.
func (p *pod) isOver() bool {
	switch {
	case p.found && p.place.Process != 0:
		return p.vanished()
	case p.found:
		return p.r.config.Gone(p.place)
	}
	return p.recorded != nil && errors.Is(p.find(), sandbox.ErrNotAPods)
}

// find looks which namespace the runtime has named, once. It is held only while
// something is to be done in it: most pods of a node may not be in the mesh.
func (p *pod) find() error {
	if p.found {
		return nil
	}
	place, err := p.r.config.Find(p.attachment.Netns)
	if err == nil && p.recorded != nil && place.ID != *p.recorded {
		err = fmt.Errorf("%s: %w: another one (%s) took the place of the one on record (%s)", place.Path, sandbox.ErrNotAPods, place.ID, *p.recorded)
	}
	if p.place.Process != 0 && errors.Is(err, sandbox.ErrNotAPods) {
		// Adopted, and the process is not there any more: to be searched for.
		place, err = sandbox.Place{Path: p.attachment.Netns, ID: *p.recorded}, nil
	}
	place.Process = p.place.Process
	p.place, p.found = place, err == nil
	return err
}

// open opens the namespace, once.
func (p *pod) open() error {
	if p.kernel != nil {
		return nil
	}
	kernel, err := p.r.config.Open(p.place, p.kernelChanged)
	if err == nil {
		p.kernel = kernel
	}
	return err
}

// kernelChanged gives the pod a turn: somebody has changed something that the
// kernel tells of in its namespace. Our own changes are told of too, and cost one
// look at a number.
func (p *pod) kernelChanged(by string) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	if by != "" {
		p.changer = by
	}
	if _, busy := p.r.busy[p.uid]; busy {
		p.changed = true
	} else if p.r.queue != nil {
		p.r.queue.AddAfter(p.uid, time.Until(p.restsUntil))
	}
}

// culprit names who changed the namespace last, as far as the kernel has said.
func (p *pod) culprit() string {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	return cmp.Or(p.changer, status.Unknown)
}

// notOpened is the outcome for a namespace that cannot be looked into.
func (p *pod) notOpened(err error) outcome {
	if !errors.Is(err, sandbox.ErrNotAPods) {
		return p.refused(err)
	}
	out := outcome{state: status.Pending, reason: status.NetnsRefused, message: err.Error()}
	if p.adding == nil && p.decision.Capture && !p.found { // it started without, and asks now
		out.state = status.Bypassing
	}
	return out
}

// letGo lets go of all that holds the namespace.
func (p *pod) letGo() {
	if p.kernel == nil {
		return
	}
	if err := p.kernel.Close(); err != nil {
		p.r.config.Logger.Warn("cannot let go of a pod's namespace", "pod", p.name(), "error", err)
	}
	p.kernel = nil
}

// drop forgets the attachment: its namespace is dying, and nothing in it needs to
// be undone. That is an inference: if the pod is found to live on there, it is taken again.
func (p *pod) drop() {
	p.outlive()
	p.withdraw()
	p.unexempt()
	p.letGo()
	p.progress, p.ended = progress{}, &netns.ID{}
}

// deleted is drop by the runtime's own word: what is found of the namespace until it is
// cleared away is not the pod's.
func (p *pod) deleted() {
	over := p.place.ID
	p.drop()
	p.ended = &over
}

// undo takes back an ADD that failed. The runtime destroys the namespace next, so
// what cannot be removed from it is left.
func (p *pod) undo(ctx context.Context) {
	p.withdraw()
	if p.touched && p.open() == nil {
		if err := p.kernel.Remove(ctx); err != nil {
			p.r.config.Logger.Debug("cannot clean the namespace of a pod that does not start", "pod", p.name(), "error", err)
		}
	}
	p.drop()
}

// withdraw has every proxy forget the pod, and does not wait for it.
func (p *pod) withdraw() {
	p.r.config.Proxies.Withdraw(p.uid)
	p.announced = false
}

// refused is the outcome when the kernel did not do what it was asked. Redirects
// that were not seen to stand are not counted on.
func (p *pod) refused(err error) outcome {
	var f *fight
	if errors.As(err, &f) {
		out := outcome{state: status.Bypassing, reason: status.RulesFought, message: f.Error(), again: f.wait}
		if !p.decision.Capture {
			out.state = status.Pending
		}
		return out
	}
	out := outcome{state: status.Pending, reason: status.KernelRefused, message: err.Error()}
	if p.adding == nil && p.decision.Capture && (!p.redirected() || !p.verified) {
		out.state = status.Bypassing
	}
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		out.message += " (raise the agent's limit of open files)"
	}
	return out
}

// backoff doubles from first up to most.
func backoff(n int, first, most time.Duration) time.Duration {
	for ; n > 1 && first < most; n-- {
		first *= 2
	}
	return min(first, most)
}
