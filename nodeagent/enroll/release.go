package enroll

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// drainPoll is how often a released pod's connections are counted.
const drainPoll = 100 * time.Millisecond

// release takes the next steps of a release. A step that fails stops it there,
// with the namespace still held, and is tried again.
func (p *pod) release(ctx context.Context) outcome {
	p.raced = false // should the label come back, that was seen
	if !p.touched && !p.sought {
		p.letGo()
		return p.uncaptured()
	}
	if err := p.open(); err != nil {
		return p.notOpened(err)
	}
	if !p.touched {
		// Found by a search: an earlier agent may have left something in it.
		if stand, err := p.stand(ctx); err != nil {
			return p.refused(err)
		} else if !stand {
			p.touched = true
		}
	}
	if p.decision.Reason == intent.Terminated {
		return p.over(ctx)
	}
	if p.withdrawing.IsZero() && p.applied.Form != 0 {
		if drained, out := p.drain(ctx); !drained {
			return out
		}
	}
	if p.withdrawing.IsZero() {
		p.withdraw()
		p.withdrawing = time.Now()
	}
	if state := p.r.config.Proxies.Verdict(p.uid).State; state == proxylink.Withdrawing {
		return outcome{state: status.NotCaptured, reason: status.Withdrawing, message: "the proxies are being told"}
	}
	if err := p.kernel.Remove(ctx); err != nil {
		return p.refused(err)
	}
	p.left = p.stays(ctx)
	p.released()
	return p.uncaptured()
}

// stays says what of istio-cni's may still take the packets of a pod that is being released.
func (p *pod) stays(ctx context.Context) string {
	left, err := p.kernel.Left(ctx)
	if err != nil {
		left = append(left, "what else there is cannot be seen: "+err.Error())
	}
	return strings.Join(left, ", ")
}

// uncaptured is the outcome for a pod in which nothing of ours is.
func (p *pod) uncaptured() outcome {
	done := outcome{state: uncaptured(p.decision), reason: status.Reason(p.decision.Reason), message: p.decision.Message}
	if p.left != "" {
		done.message = strings.TrimPrefix(done.message+"; what may still take its packets, and is not removed: "+p.left, "; ")
	}
	return done
}

// uncaptured is the state of a pod that the decision leaves alone.
func uncaptured(d intent.Decision) status.State {
	if d.Reason == intent.OwnNetworkStack {
		return status.Unsupported
	}
	return status.NotCaptured
}

// over is the release of a pod whose containers have ended: nobody is left to be
// drained for, and nothing waits for its namespace to be clean.
func (p *pod) over(ctx context.Context) outcome {
	p.withdraw()
	if err := p.kernel.Remove(ctx); err != nil {
		p.r.config.Logger.Debug("cannot clean the namespace of a pod that is over", "pod", p.name(), "error", err)
	}
	p.released()
	return p.uncaptured()
}

// released forgets the capture and lets go of the namespace.
func (p *pod) released() {
	p.unexempt()
	p.letGo()
	p.r.config.Logger.Info("pod released", "pod", p.name(), "reason", p.decision.Reason)
	if p.left != "" {
		p.r.config.Logger.Warn("what is left in a released pod may take its packets, and is not removed", "pod", p.name(), "left", p.left)
	}
	p.progress = progress{
		attachment: p.attachment, adding: p.adding, waiting: p.waiting,
		asked: p.asked, whereabouts: p.whereabouts, redirection: redirection{repaired: p.repaired, left: p.left},
	}
}

// drain flushes the redirects and waits until no proxied connection is left, and no new one
// is to be expected: at least the grace, at most the drain's timeout.
func (p *pod) drain(ctx context.Context) (bool, outcome) {
	if p.releasing.IsZero() {
		marks := p.applied // the label that is gone has taken its annotations' effect with it
		marks.Form = ruleset.FormMarks
		p.older, p.paired = true, false // what is opened from now on, should the label come back
		if err := p.apply(ctx, marks); err != nil {
			return false, p.refused(err)
		}
		p.releasing = time.Now()
	} else if err := p.uphold(ctx); err != nil {
		// The proxied connections need the marks.
		return false, p.refused(err)
	}
	age := time.Since(p.releasing)
	if age >= p.r.config.DrainTimeout {
		return true, outcome{}
	}
	left, err := p.kernel.Proxied(ctx)
	if err != nil {
		return false, p.refused(err)
	}
	out := outcome{state: status.NotCaptured, reason: status.Draining, again: drainPoll,
		message: fmt.Sprintf("no new connection is redirected; %d older ones still go through the proxy", left)}
	switch early := p.r.config.ReleaseGrace - age; {
	case left > 0:
	case early > 0:
		out.again = early
	case p.advertised():
		out.again = advertisedPoll
		out.message = "no new connection is redirected; the API still shows the pod as captured, and others may send it what only the proxy understands"
	default:
		return true, outcome{}
	}
	out.again = min(out.again, p.r.config.DrainTimeout-age)
	return false, out
}

// advertisedPoll is how often we look whether the API shows what becomes of a pod.
const advertisedPoll = time.Second

func (p *pod) advertised() bool {
	return p.r.config.Advertised != nil && p.r.config.Advertised(p.attachment.Namespace, p.attachment.Name, p.uid)
}
