package enroll

import (
	"context"
	"time"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A pod is one pod that the runtime has told us of.
type pod struct {
	r   *Reconciler
	uid string

	calls  []*call    // guarded by Reconciler.mu: not taken yet
	report status.Pod // guarded by Reconciler.mu

	answers []answer // to the calls taken in this turn; the worker's
	progress
}

// progress is what a pod's worker knows and has done. It alone touches it.
type progress struct {
	attachment *agentapi.Attachment // nil: the runtime has said that it is over
	adding     *call                // the ADD that waits for the outcome
	waiting    waiting

	object   intent.Pod
	decision intent.Decision
	known    bool // object and decision are the pod's, now or when it was last seen
	gone     bool // the object has been seen and is not there any more

	kernel Kernel // nil: the namespace is not open

	// What has been done, in the order of a capture.
	form      ruleset.Form // in place; 0: nothing of ours
	applied   ruleset.Config
	older     bool // captured while running: older connections are kept
	noDNS     bool // the proxy does not listen for DNS
	announced bool
	listeners status.Listeners
	began     time.Time // when the capture was begun
	checked   time.Time
	repaired  int
	logged    bool // that the pod is not as it should be

	releasing   time.Time // since when redirects are flushed; zero: not being released
	withdrawing time.Time // since when no proxy should have it any more

	refusals int       // by the proxy, in a row
	retryAt  time.Time // when to announce again after a refusal
	failures int       // by the kernel, in a row
}

func newPod(r *Reconciler, uid string) *pod { return &pod{r: r, uid: uid} }

// name is namespace/name for people; a pod without an attachment has only its UID.
func (p *pod) name() string {
	if p.attachment == nil {
		return p.uid
	}
	return p.attachment.Namespace + "/" + p.attachment.Name
}

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
	if p.attachment == nil {
		return outcome{state: status.NotCaptured, reason: status.Deleted}
	}
	p.look()
	if !p.known {
		return outcome{state: status.Pending, reason: status.PodUnknown,
			message: "no object or manifest of this pod is known on this node yet"}
	}
	if err := p.open(); err != nil {
		return outcome{state: status.Pending, reason: status.NetnsRefused, message: err.Error()}
	}
	out := p.towards(ctx)
	if out.reason == status.KernelRefused {
		p.failures++
		out.again = backoff(p.failures, 100*time.Millisecond, 30*time.Second)
	} else {
		p.failures = 0
	}
	if p.gone && out.state == status.Captured {
		out.reason, out.message = status.ObjectGone, "the pod's object is gone, its namespace lives; it stays as it was"
	}
	return out
}

func (p *pod) towards(ctx context.Context) outcome {
	if p.decision.Capture {
		return p.capture(ctx)
	}
	return p.release(ctx)
}

// look asks the source and decides. What is not there any more leaves the last
// decision in force: nothing is released by inference.
func (p *pod) look() {
	object, namespace, ok := p.r.config.Source.Lookup(p.attachment.Namespace, p.attachment.Name)
	if !ok || !object.Is(p.uid) {
		p.gone = p.known
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

// open opens the pod's namespace, once.
func (p *pod) open() error {
	if p.kernel != nil {
		return nil
	}
	kernel, err := p.r.config.Open(p.attachment.Netns)
	if err == nil {
		p.kernel = kernel
	}
	return err
}

// closeKernel lets go of all that holds the namespace.
func (p *pod) closeKernel() error {
	if p.kernel == nil {
		return nil
	}
	err := p.kernel.Close()
	p.kernel = nil
	return err
}

// drop forgets the attachment: its namespace is dying, and nothing in it needs to
// be undone.
func (p *pod) drop() {
	p.withdraw()
	if err := p.closeKernel(); err != nil {
		p.r.config.Logger.Warn("cannot let go of a pod's namespace", "pod", p.name(), "error", err)
	}
	p.progress = progress{}
}

// undo takes back an ADD that failed. The runtime destroys the namespace next, so
// what cannot be removed from it is left.
func (p *pod) undo(ctx context.Context) {
	p.withdraw()
	if p.kernel != nil && p.form != 0 {
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

// backoff doubles from first up to most.
func backoff(n int, first, most time.Duration) time.Duration {
	for ; n > 1 && first < most; n-- {
		first *= 2
	}
	return min(first, most)
}
