package enroll

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// Report returns what is known of every pod of the node: those that the runtime
// has told us of, and those that the source knows and the runtime has not named.
func (r *Reconciler) Report() []status.Pod {
	pods := r.reports()
	for i := range pods {
		pods[i].Proxies = r.acks(pods[i].UID)
	}
	slices.SortFunc(pods, func(a, b status.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
	})
	return pods
}

func (r *Reconciler) reports() []status.Pod {
	objects := r.config.Source.Pods()
	r.mu.Lock()
	defer r.mu.Unlock()
	var pods []status.Pod
	told := map[string][]string{} // UIDs by name
	for uid, p := range r.pods {
		if p.report.State != "" {
			pods = append(pods, p.report)
			name := p.report.Namespace + "/" + p.report.Name
			told[name] = append(told[name], uid)
		}
	}
	still := map[string]early{}
	for _, object := range objects {
		name := object.Namespace + "/" + object.Name
		known, waits := r.early[name]
		if slices.ContainsFunc(told[name], object.Is) {
			if waits { // its ADD is under way
				still[name] = known
			}
			continue
		}
		if !object.Is(known.uid) {
			known = early{uid: object.RuntimeUID()}
		}
		pod := r.untold(object, known)
		if pod.State != known.state {
			known.state, known.since = pod.State, time.Now()
		}
		pod.Since = known.since
		still[name] = known
		pods = append(pods, pod)
	}
	for name, known := range r.early { // what the source cannot know may be tried again
		namespace, pod, _ := strings.Cut(name, "/")
		unread, _ := r.unread(namespace, pod)
		if _, is := still[name]; !is && unread != "" && time.Since(known.tried) < triedAgain {
			still[name] = known
		}
	}
	r.early = still
	return pods
}

// triedAgain is after how long at most the runtime tries to start a pod again, as far as we care.
const triedAgain = 2 * time.Minute

// early is what is known of a pod that has not started, as far as we were told: each
// ADD of it that fails is over, and its wait goes on.
type early struct {
	uid     string // as the runtime knows it; empty: it has not said
	state   status.State
	since   time.Time // it is in state
	tried   time.Time // when its last ADD came
	failure *Failure  // of its last ADD
}

// tried returns what is known of a pod that c is another try to start. However often the
// runtime tries, and whatever is in the way each time, it is one wait. r.mu is held.
func (r *Reconciler) tried(c *call) early {
	name := c.attachment.Namespace + "/" + c.attachment.Name
	known := r.early[name]
	if known.uid != c.attachment.UID || known.state != status.Pending {
		known = early{uid: c.attachment.UID, state: status.Pending, since: c.came}
	}
	known.tried = c.came
	r.early[name] = known
	return known
}

// started ends a pod's wait. r.mu is held.
func (r *Reconciler) started(name, uid string) {
	if known := r.early[name]; known.uid == uid || known.uid == "" {
		delete(r.early, name)
	}
}

// failed remembers why a pod's last ADD failed. r.mu is held.
func (r *Reconciler) failed(c *call, f *Failure) {
	known := r.tried(c)
	known.failure = f
	r.early[c.attachment.Namespace+"/"+c.attachment.Name] = known
	r.config.Logger.Warn("a pod does not start", "pod", c.attachment.Namespace+"/"+c.attachment.Name, "reason", f.Reason, "error", f.Message)
}

// untold is the report of a pod whose namespace nobody has named.
func (r *Reconciler) untold(object intent.Pod, known early) status.Pod {
	_, namespace, ok := r.config.Source.Lookup(object.Namespace, object.Name)
	d := r.config.Policy.Decide(object, namespace).On(r.drained.Load())
	rules := status.Unknown
	if object.HostNetwork {
		rules = "none" // it has no namespace of its own for them
	}
	pod := status.Pod{
		Namespace: object.Namespace, Name: object.Name, UID: object.UID,
		Intent:     intentOf(d),
		Rules:      status.Rules{State: rules},
		Annotation: status.Unknown,
		State:      uncaptured(d), Reason: status.Reason(d.Reason), Message: d.Message,
		Tried: known.tried, Remedy: status.Reason(d.Reason).Remedy(),
	}
	switch {
	case !ok:
		out := r.undecided(object.Namespace, object.Name, "what the pod's namespace asks for is not known")
		pod.Intent = status.Intent{Reason: string(out.reason), Message: "its namespace is not known"}
		pod.State, pod.Reason, pod.Message = out.state, out.reason, out.message
		pod.Remedy = pod.Reason.Remedy()
	case d.Asked() && known.failure != nil:
		pod.State, pod.Reason = status.Pending, known.failure.Reason
		pod.Message = "its last start failed, the runtime tries again: " + known.failure.Message
		pod.Remedy = pod.Reason.Remedy()
	case d.Asked():
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
		return
	}
	now := status.Pod{
		Namespace: p.attachment.Namespace, Name: p.attachment.Name, UID: p.uid,
		Intent:         intentOf(p.decision),
		Netns:          status.Netns{Known: p.found, Source: p.place.Source, Path: p.attachment.Netns, ContainerID: p.attachment.ContainerID},
		Rules:          p.rules(),
		Listeners:      p.listeners,
		OldConnections: status.OldConnections{Known: !p.older || p.paired, Count: p.bypassing},
		Annotation:     status.Unknown,
		State:          out.state, Reason: out.reason, Message: out.message,
		Since: time.Now(), Remedy: out.reason.Remedy(),
	}
	if p.found {
		now.Netns.ID = p.place.ID.String()
	}
	if before.State == now.State && before.Reason == now.Reason {
		now.Since = before.Since
	}
	if p.adding == nil {
		p.r.started(p.name(), p.uid)
	} else {
		known := p.r.tried(p.adding)
		now.Since, now.Tried = known.since, known.tried
	}
	if p.logged != "" && (now.State == status.Captured || now.State == status.NotCaptured) {
		p.logged = ""
		p.r.config.Logger.Info("a pod is as it should be again", "pod", p.name(), "state", now.State, "reason", now.Reason)
	}
	p.report = now
	if reported := p.r.config.Reported; reported != nil {
		reported(now)
	}
}

// warnAfter keeps what passes at once, as when a proxy dials again, out of the log.
const warnAfter = time.Second

// warn logs a state that a pod should not be in, once for each reason, and returns when to look
// again if it is too early for that.
func (p *pod) warn() time.Duration {
	now := p.report
	if p.logged == now.Reason || p.adding != nil || now.State == "" || now.State == status.Captured || now.State == status.NotCaptured {
		return 0
	}
	if left := warnAfter - time.Since(now.Since); left > 0 {
		return left
	}
	p.logged = now.Reason
	p.r.config.Logger.Warn("a pod is not as it should be", "pod", p.name(), "state", now.State, "reason", now.Reason, "message", now.Message)
	return 0
}

func (p *pod) rules() status.Rules {
	rules := status.Rules{State: "none", Checked: p.checked, Repaired: p.repaired}
	switch {
	case p.kernel == nil || p.applied.Form == 0:
		return rules
	case !p.verified:
		rules.State = status.Unknown
		return rules
	}
	rules.State, rules.Fingerprint = p.applied.Form.String(), p.kernel.Fingerprint()
	rules.DNS = p.applied.CaptureDNS && p.redirected()
	return rules
}

func intentOf(d intent.Decision) status.Intent {
	return status.Intent{
		Capture: d.Capture, Reason: string(d.Reason), Message: d.Message,
		DNSCapture: d.CaptureDNS, IngressMode: d.Ingress, VirtualInterfaces: d.VirtualInterfaces, Warnings: d.Warnings,
	}
}
