package enroll

import (
	"context"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// adopt takes over the pods that an earlier agent has put on record, before any
// worker runs. A namespace that is gone, or not the one on record, ends the pod:
// that is the kernel's own word.
func (r *Reconciler) adopt() {
	records, err := r.config.Records.Load()
	if err != nil {
		r.config.Logger.Warn("not all pods could be adopted", "error", err)
	}
	for _, record := range records {
		uid := record.Attachment.UID
		p := newPod(r, uid)
		p.attachment, p.recorded, p.place.Process = &record.Attachment, &record.Netns, record.Process
		if p.isOver() {
			r.ended[uid], r.bygone[uid] = netns.ID{}, record // nobody has said so
			continue
		}
		p.object = intent.Pod{Namespace: record.Attachment.Namespace, Name: record.Attachment.Name, ServiceAccount: record.ServiceAccount}
		p.decision, p.known = record.Decision, true
		p.touched, p.applied = record.Touched, record.Applied
		p.stood, p.older, p.gap, p.raced, p.kept = record.Stood, record.Older, record.Gap, record.Raced, record.Kept
		p.stale = record.Stale
		p.orphan, p.begun, p.resumed = record.Adding, record.Adding, true
		written := record // so that what is the same is not written again
		p.written = &written
		r.pods[uid] = p
		r.adopting[uid] = record.Applied.Form != 0
	}
	if len(records) > 0 {
		r.config.Logger.Info("adopting pods", "pods", len(r.adopting))
	}
	r.forgetBygone()
	r.allAdopted = err == nil && len(records) > 0
	r.looked()
}

// looked closes adopted once every pod on record has had its first turn. r.mu is
// held, or no worker runs yet.
func (r *Reconciler) looked() {
	if len(r.adopting) == 0 {
		r.adoptedOnce.Do(func() { close(r.adopted) })
	}
}

// adoptionLimit is how long the node's other pods, and its proxies, wait for an adopted
// pod to be looked at.
const adoptionLimit = 10 * time.Second

// boundAdoption has proxies go on with pods that could not be looked at in time: somebody
// in one may keep the kernel busy there.
func (r *Reconciler) boundAdoption(ctx context.Context) {
	limit := time.NewTimer(adoptionLimit)
	defer limit.Stop()
	select {
	case <-ctx.Done():
		return
	case <-r.adopted:
		return
	case <-limit.C:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, captured := range r.adopting {
		if captured {
			r.config.Proxies.Keep(uid)
		}
		r.config.Logger.Warn("an adopted pod is slow to be looked at", "pod", uid)
	}
	clear(r.adopting)
	r.looked()
}

// Adopted is closed when every pod on record has been looked at, and has been announced
// if it is to be; or when proxies were asked to keep those that take too long. Proxies are not to be told of the node's pods before:
// a snapshot stops what it does not name.
func (r *Reconciler) Adopted() <-chan struct{} { return r.adopted }

// AllAdopted says, once Adopted is closed, whether the pods on record are all that an earlier
// agent can have captured, so that a snapshot may be made of them alone: there are some, and
// each could be read.
func (r *Reconciler) AllAdopted() bool { return r.allAdopted }

// resume is an adopted pod's first step: it is the proxies' again, captured or on
// its way out, before anything else is decided.
func (p *pod) resume() error {
	if p.resumed && p.applied.Form != 0 {
		if err := p.open(); err != nil {
			return err
		}
		p.began = time.Now()
		p.announce()
	}
	p.resumed = false
	return nil
}

// keep has proxies go on with an adopted pod that cannot be announced to them yet: its
// namespace is there, and could not be opened.
func (p *pod) keep() {
	if p.resumed && p.applied.Form != 0 {
		p.r.config.Proxies.Keep(p.uid)
	}
}

// orphaned is the outcome for an ADD that was under way when its agent ended: the
// plugin asks again, or the runtime gives the sandbox up.
func (p *pod) orphaned() outcome {
	return outcome{state: status.Pending, reason: status.Capturing,
		message: "the agent ended during the pod's ADD; the plugin or the runtime has the next word"}
}
