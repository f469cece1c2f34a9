package enroll

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

const (
	// listenerPoll and listenerWatch are how often we look for listeners that should
	// be there: while an ADD waits for them, and otherwise.
	listenerPoll  = 10 * time.Millisecond
	listenerWatch = time.Second
	// dnsPatience is how long a DNS listener may come after the others.
	dnsPatience = 500 * time.Millisecond
	// refusal pauses: a proxy that refused a pod is asked again after the first,
	// then after twice as long, up to the most.
	firstRefusalPause = time.Second
	mostRefusalPause  = time.Minute
	// slowAnswer is how long a proxy may take over another pod until we say so.
	slowAnswer = 2 * time.Second
	// alarmAfter is how long a running pod may be on its way into the mesh before
	// its traffic in the clear is called a bypass.
	alarmAfter = 5 * time.Second
)

// capture takes the next steps of a capture, in the order that package enroll's
// documentation gives.
func (p *pod) capture(ctx context.Context) outcome {
	if err := p.open(); err != nil {
		return p.notOpened(err)
	}
	if err := p.prepare(ctx); err != nil {
		return p.refused(err)
	}
	served, out := p.serve(ctx)
	if !served {
		return p.prepared(ctx, out)
	}
	if p.applied.Form == ruleset.FormMarks {
		form := ruleset.FormFull
		if p.older {
			form = ruleset.FormSYN
		}
		if err := p.apply(ctx, p.want(form)); err != nil {
			return p.refused(err)
		}
		if p.adding == nil {
			p.r.config.Logger.Info("pod captured", "pod", p.name(), "form", form)
		}
	}
	if err := p.verify(ctx); err != nil {
		return p.refused(err)
	}
	probes := p.exempt(ctx)
	if out.state != status.Captured {
		return out
	}
	if p.older && p.adding == nil {
		paired := p.pair(ctx, out)
		if out.reason == status.OK || paired.state != status.Captured { // a refusal holds the node's rollout up, and is said first
			out = paired
		}
	}
	if probes != nil && out.state == status.Captured {
		return p.refused(probes)
	}
	switch {
	case out.reason != status.OK:
	case p.repairsLately() >= fightRepairs: // whose end is not in sight
		out.reason, out.message = status.RulesFought, fmt.Sprintf("the redirection stands, and was put right %d times in %s; it was changed by %s",
			len(p.repairs), fightWindow, p.culprit())
	case len(p.foreign) > 0:
		out.reason, out.message = status.ForeignRules, "what may take the pod's traffic before it is redirected: "+strings.Join(p.foreign, ", ")
	case p.noDNS:
		out.reason, out.message = status.ProxyWithoutDNS, "the proxy does not listen on 15053; the pod's DNS is not captured"
	}
	return out
}

// prepare puts in place what stands before the proxy has the pod: everything, while
// the ADD waits and nothing runs, no connection being older; otherwise marks and
// routes alone.
func (p *pod) prepare(ctx context.Context) error {
	fresh := p.applied.Form == 0
	if fresh || !p.releasing.IsZero() || !p.withdrawing.IsZero() {
		p.began = time.Now()
		p.older = !fresh || p.adding == nil
		p.gap, p.paired, p.left = false, false, ""
		p.releasing, p.withdrawing = time.Time{}, time.Time{}
	}
	switch {
	case !fresh:
		return nil
	case !p.older:
		return p.apply(ctx, p.want(ruleset.FormFull))
	}
	if stand, err := p.stand(ctx); stand || err != nil {
		return err
	}
	return p.apply(ctx, p.want(ruleset.FormMarks))
}

// stand takes over redirects that stand in a namespace which was sought and found: an
// earlier agent put them there. To begin with marks alone would open the pod up.
func (p *pod) stand(ctx context.Context) (bool, error) {
	if !p.sought {
		return false, nil
	}
	for _, noDNS := range []bool{false, true} {
		p.noDNS = noDNS
		for _, form := range []ruleset.Form{ruleset.FormFull, ruleset.FormSYN} {
			want := p.want(form)
			drift, err := p.kernel.Check(ctx, want, Everything)
			if err != nil {
				return false, err
			}
			if drift == "" {
				p.applied, p.touched, p.stood, p.stale = want, true, true, true
				return true, nil
			}
		}
	}
	p.noDNS = false
	return false, nil
}

// prepared sees to it that what stands before the proxy has the pod goes on standing.
func (p *pod) prepared(ctx context.Context, out outcome) outcome {
	if p.adding != nil || out.reason == status.KernelRefused {
		return out
	}
	if err := p.verify(ctx); err != nil {
		return p.refused(err)
	}
	return out
}

// serve sees to it that a proxy has the pod and listens in it. Redirects may be in
// place, or stay there, only if it returns true; the outcome says more.
func (p *pod) serve(ctx context.Context) (bool, outcome) {
	if !p.announced {
		if wait := time.Until(p.retryAt); wait > 0 {
			return p.unserved(ctx, outcome{reason: status.ProxyRefused, again: wait,
				message: fmt.Sprintf("%s (refused %d times; it is asked again in %s)", p.refusal, p.refusals, wait.Round(time.Second))})
		}
		if err := p.listen(ctx, Changes); err != nil {
			return false, p.refused(err)
		}
		if len(p.squatters) > 0 { // the proxy could not listen
			return p.unserved(ctx, p.squatted())
		}
		p.announce()
	}
	verdict := p.r.config.Proxies.Verdict(p.uid)
	switch verdict.State {
	case proxylink.Acked:
		p.refusals, p.refusal = 0, ""
		return p.listening(ctx)
	case proxylink.Nacked, proxylink.Unsent:
		return p.nacked(ctx, verdict)
	}
	if p.adding == nil && p.usurped(ctx, verdict.Acks) {
		p.withdraw()
		return p.unserved(ctx, p.squatted())
	}
	if !p.noDNS {
		p.noDNSFrom = time.Time{} // the next proxy has its own time to listen for DNS
	}
	switch verdict.State {
	case proxylink.NoProxy:
		out := outcome{reason: status.NoProxy, message: "no node proxy is connected to the agent"}
		if verdict.Text != "" {
			out.message += ": " + verdict.Text
		}
		return p.unserved(ctx, out)
	case proxylink.Queued:
		return p.unserved(ctx, p.queued(verdict))
	default:
		p.isBehind(time.Time{})
		return p.unserved(ctx, outcome{reason: status.NoAnswer, again: verdict.Recheck,
			message: "the node proxy has not acknowledged the pod yet"})
	}
}

// queued is the outcome for a pod that its proxy has not been told of, for the requests
// before it: it may be the proxy that is to blame.
func (p *pod) queued(v proxylink.Verdict) outcome {
	p.isBehind(v.Before.Since)
	out := outcome{reason: status.Capturing, again: v.Recheck,
		message: "the node proxy has not been told of the pod yet: it is busy with others"}
	if v.Before.Since.IsZero() {
		return out
	}
	took := time.Since(v.Before.Since)
	if left := slowAnswer - took; left > 0 {
		out.again = sooner(out.again, left)
		return out
	}
	out.reason, out.again = status.NoAnswer, sooner(out.again, time.Second)
	what := "for another pod"
	if v.Before.Snapshot {
		what = "that it knows the node's pods"
	}
	out.message = fmt.Sprintf("the node proxy (pid %d) has not answered %s for %s", v.Before.PID, what, took.Round(time.Second))
	return out
}

// isBehind begins the wait for an answer anew when it is another one that is waited for.
func (p *pod) isBehind(since time.Time) {
	if !since.Equal(p.behind) {
		p.behind = since
		delete(p.waiting, status.NoAnswer)
	}
}

func (p *pod) announce() {
	p.r.config.Proxies.Announce(proxylink.Workload{
		UID: p.uid, Name: p.object.Name, Namespace: p.object.Namespace,
		ServiceAccount: p.object.ServiceAccount, Netns: p.kernel.Netns(),
	})
	p.announced = true
}

// nacked deals with a refusal. While another proxy has acknowledged the pod it
// stays with both: the one that refused tries again by itself, and the listeners
// say whether the pod is served. Otherwise the pod is withdrawn, so that the proxy
// becomes ready for the others, and announced again after a pause.
func (p *pod) nacked(ctx context.Context, verdict proxylink.Verdict) (bool, outcome) {
	p.refusal = fmt.Sprintf("the node proxy (%s) refused the pod: %s", verdict.Proxy, verdict.Text)
	if verdict.State == proxylink.Unsent {
		p.refusal = fmt.Sprintf("the pod could not be sent to the node proxy (%s): %s", verdict.Proxy, verdict.Text)
	}
	if p.adding == nil && acked(verdict.Acks) {
		served, out := p.listening(ctx)
		if out.state == status.Captured && out.reason == status.OK {
			out.reason, out.message = status.NewProxyRefused, p.refusal+"; another proxy serves it"
		}
		return served, out
	}
	if err := p.listen(ctx, Everything); err == nil && len(p.squatters) > 0 {
		p.refusal += "; " + p.squatted().message
	}
	p.refusals++
	pause := backoff(p.refusals, firstRefusalPause, mostRefusalPause)
	p.retryAt = time.Now().Add(pause)
	p.withdraw()
	return p.unserved(ctx, outcome{reason: status.ProxyRefused, message: p.refusal, again: pause})
}

// usurped reports whether a process of the pod has taken a port of the proxy's since the
// pod was announced, so that the next proxy could not listen. A proxy that has the pod is
// not to lose what is left of it: one that listens beside that process may have lost its
// connection alone, and stops what the next snapshot does not name.
func (p *pod) usurped(ctx context.Context, acks []proxylink.Ack) bool {
	if acked(acks) || p.listen(ctx, Changes) != nil {
		return false
	}
	beside := p.listeners.Outbound || p.listeners.Inbound || p.listeners.HBONE
	return len(p.squatters) > 0 && !beside
}

func acked(acks []proxylink.Ack) bool {
	return slices.ContainsFunc(acks, func(a proxylink.Ack) bool { return a.State == proxylink.Acked })
}

// listening looks for the listeners of a proxy that has acknowledged the pod.
func (p *pod) listening(ctx context.Context) (bool, outcome) {
	if err := p.listen(ctx, Changes); err != nil {
		return false, p.refused(err)
	}
	if len(p.squatters) > 0 {
		return p.unserved(ctx, p.squatted())
	}
	if !p.listeners.Ready() {
		return p.unserved(ctx, p.unheard())
	}
	out := outcome{state: status.Captured, reason: status.OK}
	lacking := p.decision.CaptureDNS && !p.listeners.DNS
	switch {
	case !lacking:
		p.noDNS, p.noDNSFrom = false, time.Time{}
		return true, out
	case p.noDNSFrom.IsZero():
		p.noDNSFrom = time.Now()
	}
	left := dnsPatience - time.Since(p.noDNSFrom)
	switch {
	case left <= 0 || p.noDNS:
		p.noDNS = true
	case p.redirected() && p.adding == nil:
		out.again = left
	default:
		out = p.unheard()
		out.again = sooner(out.again, left)
		return p.unserved(ctx, out)
	}
	return true, out
}

// unheard is the outcome for a pod that its proxy does not listen in, or not for all.
func (p *pod) unheard() outcome {
	out := outcome{reason: status.NoListeners, again: listenerWatch,
		message: "the node proxy has acknowledged the pod, but does not listen in it: " + p.listeners.String()}
	if p.adding != nil {
		out.again = listenerPoll
	}
	return out
}

// listen looks who listens where the proxy should. Who cannot be found out does not
// count as somebody else.
func (p *pod) listen(ctx context.Context, depth Depth) error {
	listeners, err := p.kernel.Listeners(ctx)
	p.listeners = listeners
	if err != nil {
		return err
	}
	if p.squatters, err = p.kernel.Squatters(ctx, depth); err != nil {
		p.r.config.Logger.Debug("cannot tell whose listeners these are", "pod", p.name(), "error", err)
	}
	for _, s := range p.squatters { // what listens there is not the proxy, or not it alone
		switch s.Port {
		case ruleset.OutboundPort:
			p.listeners.Outbound = false
		case ruleset.InboundPort:
			p.listeners.Inbound = false
		case ruleset.HBONEPort:
			p.listeners.HBONE = false
		case ruleset.DNSPort:
			p.listeners.DNS = false
		}
	}
	return nil
}

// squatted is the outcome where a process of the pod holds a port of the proxy's.
func (p *pod) squatted() outcome {
	names := make([]string, len(p.squatters))
	for i, s := range p.squatters {
		names[i] = s.String()
	}
	return outcome{state: status.Bypassing, reason: status.PortTaken, again: listenerWatch,
		message: "a process in the pod holds what is the proxy's: " + strings.Join(names, ", ")}
}

// unserved is the outcome for a pod that no proxy has acknowledged. If the
// redirects stand, they stay: an older proxy that is on its way out may still
// listen, and without one the pod is blocked rather than in the clear.
func (p *pod) unserved(ctx context.Context, out outcome) (bool, outcome) {
	switch {
	case p.adding != nil:
		out.state = status.Pending
		return false, out
	case !p.redirected() && time.Since(p.began) < alarmAfter:
		out.state = status.Pending
		out.again = sooner(out.again, alarmAfter-time.Since(p.began))
		return false, out
	case !p.redirected():
		out.state = status.Bypassing
		return false, out
	}
	if err := p.listen(ctx, Changes); err != nil {
		return false, p.refused(err)
	}
	if len(p.squatters) > 0 { // what is redirected goes to them
		return true, p.squatted()
	}
	out.state = status.Blocked
	if p.listeners.Ready() {
		// Looked at again soon: whoever listens there may be on its way out.
		out = outcome{state: status.Captured, reason: status.OK, again: sooner(out.again, listenerWatch),
			message: "a proxy listens in the pod, though " + out.message}
	}
	return true, out
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
