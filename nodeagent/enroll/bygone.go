package enroll

import "github.com/fairlead-mesh/fairlead/nodeagent/intent"

// Until the source has told of the node's pods it cannot say what a pod asks for whose
// sandbox has just ended, and which the kubelet is about to give another one. What is on
// record of the one that ended still says it, and stays on record until then.

// outlive has what was decided of the pod outlive its sandbox.
func (p *pod) outlive() {
	if p.r.config.Source.Synced() || !p.known || p.written == nil {
		return
	}
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	p.r.bygone[p.uid] = *p.written
}

// outlived says whether the pod's record is to stay though its sandbox is over.
func (p *pod) outlived() bool {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	_, was := p.r.bygone[p.uid]
	return was && !p.r.config.Source.Synced()
}

// recall takes the last decision on a pod of which the source knows nothing yet. That its
// containers had ended decides nothing: a new sandbox shows that they run again.
func (p *pod) recall() {
	if p.known || p.r.config.Source.Synced() {
		return
	}
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	b, was := p.r.bygone[p.uid]
	if a := b.Attachment; was && b.Decision.Reason != intent.Terminated && a.Namespace == p.attachment.Namespace && a.Name == p.attachment.Name {
		p.object = intent.Pod{Namespace: a.Namespace, Name: a.Name, ServiceAccount: b.ServiceAccount}
		p.decision, p.known = b.Decision, true
	}
}

// forgetBygone is called when the source may have told of the node's pods. r.mu is held.
func (r *Reconciler) forgetBygone() {
	if !r.config.Source.Synced() {
		return
	}
	for uid := range r.bygone {
		if r.pods[uid] == nil { // else the record is of a sandbox that it has now
			r.unrecord(uid)
			delete(r.bygone, uid)
		}
	}
}
