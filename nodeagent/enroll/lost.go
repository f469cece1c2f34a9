package enroll

import (
	"cmp"
	"errors"

	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A search is for a pod that we have, and what it came to.
type search struct {
	wanted sandbox.Wanted
	done   bool
	found  sandbox.Found
	err    error
}

// vanished is isOver for a pod that was found by a process. That its Place is gone
// means that the process has ended, and the sandbox perhaps not; and that the namespace
// lives is no evidence, since we may be the only one who holds it. So it is searched
// for, and stays as it is until something of the pod is found elsewhere, or nothing.
func (p *pod) vanished() bool {
	gone := p.r.config.Gone(p.place)
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	was := p.search
	p.search, p.lost = nil, gone
	switch {
	case !gone:
		return false
	case was == nil || !was.done:
		p.search = cmp.Or(was, p.searchFor())
	case errors.Is(was.err, sandbox.ErrNotFound):
		return true
	case was.err != nil:
		if text := was.err.Error(); text != p.unfound {
			p.unfound = text
			p.r.config.Logger.Warn("whether a pod's sandbox is over cannot be told", "pod", p.name(), "error", was.err)
		}
		p.search = p.searchFor()
	case was.found.ID != p.place.ID:
		return true // a new sandbox, of which the runtime has not told us
	default:
		p.place, p.lost, p.unfound = was.found.Place, false, ""
		p.attachment.Netns = p.place.Path
	}
	return false
}

func (p *pod) searchFor() *search {
	w := sandbox.Wanted{UID: p.uid, Namespace: p.attachment.Namespace, Name: p.attachment.Name, IPs: p.object.IPs}
	if len(w.IPs) == 0 {
		w.IPs = p.attachment.IPs
	}
	return &search{wanted: w}
}

// missing is the outcome for a pod whose namespace is not held, and not found yet.
func (p *pod) missing() outcome {
	p.keep()
	return outcome{state: status.Pending, reason: status.NetnsUnknown,
		message: cmp.Or(p.unfound, "the process by which the pod's network namespace was found has ended; another way to it is searched for")}
}
