package enroll

import (
	"cmp"
	"slices"
	"time"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// Report returns what is known of every pod of the node: those that the runtime
// has told us of, and those that the source knows and the runtime has not named.
func (r *Reconciler) Report() []status.Pod {
	type name struct{ namespace, name string }
	var pods []status.Pod
	told := map[name][]string{}
	r.mu.Lock()
	for uid, p := range r.pods {
		if p.report.State != "" {
			pods = append(pods, p.report)
			n := name{p.report.Namespace, p.report.Name}
			told[n] = append(told[n], uid)
		}
	}
	r.mu.Unlock()
	for _, object := range r.config.Source.Pods() {
		if !slices.ContainsFunc(told[name{object.Namespace, object.Name}], object.Is) {
			pods = append(pods, r.untold(object))
		}
	}
	for i := range pods {
		pods[i].Proxies = r.acks(pods[i].UID)
	}
	slices.SortFunc(pods, func(a, b status.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return pods
}

// untold is the report of a pod whose namespace nobody has named.
func (r *Reconciler) untold(object intent.Pod) status.Pod {
	_, namespace, _ := r.config.Source.Lookup(object.Namespace, object.Name)
	d := r.config.Policy.Decide(object, namespace)
	pod := status.Pod{
		Namespace: object.Namespace, Name: object.Name, UID: object.UID,
		Intent:     intentOf(d),
		Rules:      status.Rules{State: status.Unknown},
		Annotation: status.Unknown,
		State:      status.NotCaptured, Reason: status.Reason(d.Reason), Message: d.Message,
	}
	if d.Capture {
		pod.State, pod.Reason = status.Pending, status.NetnsUnknown
		pod.Message = "the runtime has not told the agent of the pod's network namespace; whether it bypasses the mesh is not known"
		pod.Remedy = pod.Reason.Remedy()
	}
	return pod
}

func (r *Reconciler) acks(uid string) []status.Ack {
	acks := []status.Ack{}
	if uid == "" {
		return acks
	}
	for _, a := range r.config.Proxies.Verdict(uid).Acks {
		acks = append(acks, status.Ack{Session: a.Session, PID: a.PID, State: string(a.State), Text: a.Text, Since: a.At})
	}
	return acks
}

// publish makes a turn's outcome the pod's report. Reconciler.mu is held.
func (p *pod) publish(out outcome) {
	before := p.report
	if p.attachment == nil {
		p.report = status.Pod{}
		p.r.config.Metrics.moved(before.State, "")
		return
	}
	now := status.Pod{
		Namespace: p.attachment.Namespace, Name: p.attachment.Name, UID: p.uid,
		Intent:         intentOf(p.decision),
		Netns:          status.Netns{Known: p.kernel != nil, Source: sandbox.SourceADD, Path: p.attachment.Netns, ContainerID: p.attachment.ContainerID},
		Rules:          p.rules(),
		Listeners:      p.listeners,
		OldConnections: status.OldConnections{Known: !p.older},
		Annotation:     status.Unknown,
		State:          out.state, Reason: out.reason, Message: out.message,
		Since: time.Now(), Remedy: out.reason.Remedy(),
	}
	if p.kernel != nil {
		now.Netns.ID = p.kernel.ID()
	}
	if before.State == now.State && before.Reason == now.Reason {
		now.Since = before.Since
	} else {
		p.logged = false
	}
	p.r.config.Metrics.moved(before.State, now.State)
	p.report = now
}

// warnAfter keeps what passes at once, as when a proxy dials again, out of the log.
const warnAfter = time.Second

// warn logs a state that a pod should not be in, once, and returns when to look
// again if it is too early for that.
func (p *pod) warn() time.Duration {
	now := p.report
	if p.logged || p.adding != nil || now.State == "" || now.State == status.Captured || now.State == status.NotCaptured {
		return 0
	}
	if left := warnAfter - time.Since(now.Since); left > 0 {
		return left
	}
	p.logged = true
	p.r.config.Logger.Warn("a pod is not as it should be", "pod", p.name(), "state", now.State, "reason", now.Reason, "message", now.Message)
	return 0
}

func (p *pod) rules() status.Rules {
	rules := status.Rules{State: "none", Checked: p.checked, Repaired: p.repaired}
	if p.form == 0 {
		return rules
	}
	rules.State, rules.Fingerprint = p.form.String(), p.kernel.Fingerprint()
	rules.DNS = p.applied.CaptureDNS && p.form != ruleset.FormMarks
	return rules
}

func intentOf(d intent.Decision) status.Intent {
	return status.Intent{
		Capture: d.Capture, Reason: string(d.Reason), Message: d.Message,
		DNSCapture: d.CaptureDNS, IngressMode: d.Ingress, VirtualInterfaces: d.VirtualInterfaces, Warnings: d.Warnings,
	}
}
