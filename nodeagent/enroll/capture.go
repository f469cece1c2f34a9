package enroll

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

const (
	// listenerPoll is how often we look for listeners that should be there.
	listenerPoll = 10 * time.Millisecond
	// refusal pauses: a proxy that refused a pod is asked again after the first,
	// then after twice as long, up to the most.
	firstRefusalPause = time.Second
	mostRefusalPause  = time.Minute
	// alarmAfter is how long a running pod may be on its way into the mesh before
	// its traffic in the clear is called a bypass.
	alarmAfter = 5 * time.Second
)

// capture takes the next steps of a capture, in the order that package enroll's
// documentation gives.
func (p *pod) capture(ctx context.Context) outcome {
	p.releasing, p.withdrawing = time.Time{}, time.Time{}
	if p.form == 0 {
		// Nothing runs while the runtime waits for the ADD: no connection is older.
		p.older = p.adding == nil
		first := ruleset.FormFull
		if p.older {
			first = ruleset.FormMarks
		}
		if err := p.apply(ctx, p.want(first)); err != nil {
			return p.refused(err)
		}
	}
	served, out := p.serve(ctx)
	if !served {
		return out
	}
	if p.form == ruleset.FormMarks {
		form := ruleset.FormFull
		if p.older {
			form = ruleset.FormSYN
		}
		if err := p.apply(ctx, p.want(form)); err != nil {
			return p.refused(err)
		}
	}
	if err := p.verify(ctx); err != nil {
		return p.refused(err)
	}
	if out.state != status.Captured {
		return out
	}
	switch {
	case p.noDNS:
		out.reason, out.message = status.ProxyWithoutDNS, "the proxy does not listen on 15053; the pod's DNS is not captured"
	case p.older:
		out.reason, out.message = status.OldConnectionsUp, "the pod ran before it was captured; how many of its connections are older, and stay in the clear, is not known yet"
	}
	return out
}

// serve sees to it that a proxy has the pod and listens in it. Redirects may be in
// place, or stay there, only if it returns true; the outcome says more.
func (p *pod) serve(ctx context.Context) (bool, outcome) {
	if !p.announced {
		if wait := time.Until(p.retryAt); wait > 0 {
			return p.unserved(ctx, outcome{reason: status.ProxyRefused, again: wait,
				message: fmt.Sprintf("the proxy has refused the pod %d times; asked again in %s", p.refusals, wait.Round(time.Second))})
		}
		p.announce()
	}
	verdict := p.r.config.Proxies.Verdict(p.uid)
	switch verdict.State {
	case proxylink.Acked:
		p.refusals = 0
		return p.listening(ctx)
	case proxylink.Nacked, proxylink.Unsent:
		return p.nacked(ctx, verdict)
	case proxylink.NoProxy:
		return p.unserved(ctx, outcome{reason: status.NoProxy, message: "no node proxy is connected to the agent"})
	default:
		return p.unserved(ctx, outcome{reason: status.NoAnswer, again: verdict.Recheck,
			message: "the node proxy has not acknowledged the pod yet"})
	}
}

func (p *pod) announce() {
	p.r.config.Proxies.Announce(proxylink.Workload{
		UID: p.uid, Name: p.object.Name, Namespace: p.object.Namespace,
		ServiceAccount: p.object.ServiceAccount, Netns: p.kernel.Netns(),
	})
	p.announced = true
}

// nacked deals with a refusal. While another proxy serves the pod it stays with
// that one, which tries again by itself; otherwise the pod is withdrawn, so that
// the proxy becomes ready for the others, and announced again after a pause.
func (p *pod) nacked(ctx context.Context, verdict proxylink.Verdict) (bool, outcome) {
	out := outcome{reason: status.ProxyRefused, message: fmt.Sprintf("the node proxy (%s) refused the pod: %s", verdict.Proxy, verdict.Text)}
	if verdict.State == proxylink.Unsent {
		out.message = fmt.Sprintf("the pod could not be sent to the node proxy (%s): %s", verdict.Proxy, verdict.Text)
	}
	for _, ack := range verdict.Acks {
		if ack.State == proxylink.Acked && p.adding == nil {
			return p.unserved(ctx, out)
		}
	}
	p.refusals++
	out.again = backoff(p.refusals, firstRefusalPause, mostRefusalPause)
	p.retryAt = time.Now().Add(out.again)
	p.withdraw()
	p.r.config.Logger.Warn("the proxy refused a pod", "pod", p.name(), "proxy", verdict.Proxy, "text", verdict.Text, "again", out.again)
	return p.unserved(ctx, out)
}

// listening looks for the listeners of a proxy that has acknowledged the pod.
func (p *pod) listening(ctx context.Context) (bool, outcome) {
	if err := p.listen(ctx); err != nil {
		return false, p.refused(err)
	}
	if !p.listeners.Ready() {
		return p.unserved(ctx, outcome{reason: status.NoListeners, again: listenerPoll,
			message: "the node proxy has acknowledged the pod, but does not listen in it: " + p.listeners.String()})
	}
	p.noDNS = p.decision.CaptureDNS && !p.listeners.DNS
	return true, outcome{state: status.Captured, reason: status.OK}
}

func (p *pod) listen(ctx context.Context) error {
	listeners, err := p.kernel.Listeners(ctx)
	p.listeners = listeners
	return err
}

// unserved is the outcome for a pod that no proxy has acknowledged. If the
// redirects stand, they stay: an older proxy that is on its way out may still
// listen, and without one the pod is blocked rather than in the clear.
func (p *pod) unserved(ctx context.Context, out outcome) (bool, outcome) {
	redirected := p.form == ruleset.FormSYN || p.form == ruleset.FormFull
	switch {
	case p.adding != nil:
		out.state = status.Pending
	case !redirected && time.Since(p.began) < alarmAfter:
		out.state = status.Pending
		out.again = sooner(out.again, alarmAfter-time.Since(p.began))
	case !redirected:
		out.state = status.Bypassing
	default:
		if err := p.listen(ctx); err != nil {
			return false, p.refused(err)
		}
		out.state = status.Blocked
		if p.listeners.Ready() {
			out = outcome{state: status.Captured, reason: status.OK, again: out.again,
				message: "served by a proxy that is no longer connected (" + string(out.reason) + ")"}
		}
	}
	return redirected, out
}

// sooner is the earlier of two times to look again, where 0 means none.
func sooner(a, b time.Duration) time.Duration {
	switch {
	case a <= 0:
		return b
	case b <= 0:
		return a
	}
	return min(a, b)
}

// want is the redirection of the pod as its annotations and its proxy have it.
func (p *pod) want(form ruleset.Form) ruleset.Config {
	return ruleset.Config{
		CaptureDNS: p.decision.CaptureDNS && !p.noDNS,
		Ingress:    p.decision.Ingress, VirtualInterfaces: p.decision.VirtualInterfaces,
		ProbeIPv4: p.r.config.ProbeIPv4, ProbeIPv6: p.r.config.ProbeIPv6,
		Form: form,
	}
}

func (p *pod) apply(ctx context.Context, want ruleset.Config) error {
	if err := p.kernel.Apply(ctx, want); err != nil {
		return err
	}
	if p.form == 0 {
		p.began = time.Now()
	}
	p.form, p.applied, p.checked = want.Form, want, time.Now()
	return nil
}

// verify has the kernel follow what is wanted now, and repairs it if it is not
// what we left there.
func (p *pod) verify(ctx context.Context) error {
	if want := p.want(p.form); !reflect.DeepEqual(want, p.applied) {
		return p.apply(ctx, want)
	}
	drift, err := p.kernel.Check(ctx, p.applied)
	if err != nil {
		return err
	}
	p.checked = time.Now()
	if drift == "" {
		return nil
	}
	if err := p.apply(ctx, p.applied); err != nil {
		return err
	}
	p.repaired++
	p.r.config.Metrics.repairs.Inc()
	p.r.config.Logger.Info("redirection put right", "pod", p.name(), "drift", drift)
	return nil
}

// refused is the outcome when the kernel did not do what it was asked.
func (p *pod) refused(err error) outcome {
	out := outcome{state: status.Pending, reason: status.KernelRefused, message: err.Error()}
	if p.adding == nil && p.decision.Capture && p.form != ruleset.FormSYN && p.form != ruleset.FormFull {
		out.state = status.Bypassing
	}
	return out
}
