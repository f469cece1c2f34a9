package kube

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// What the annotation may say. Peers speak HBONE to a pod whose annotation is enabled,
// and to no other.
const (
	enabled = "enabled"
	pending = "pending"
)

const (
	// grace is how long what is shown stays while nothing but the proxy is missing: a
	// proxy that is replaced, or a sandbox, is not to be seen by every peer of the mesh;
	// and how long an agent is not ready before its node shows it.
	grace = 30 * time.Second
	// alarm is how long a bypass lasts before it is shown.
	alarm = time.Second
	// newReason and newMessage are how often a pod, or the node, is written for these alone:
	// a number in a message may change all the time.
	newReason  = time.Minute
	newMessage = 10 * time.Minute
)

// astray says whether a pod should be captured and is not.
func astray(p status.Pod) bool {
	return p.State == status.Pending || p.State == status.Bypassing || p.State == status.Blocked
}

// desire is what the API should show of a pod, and when to ask again.
func desire(p *pod, f fact, now time.Time) (want report, again time.Duration) {
	want = p.stands
	state := f.pod.State
	switch {
	case f.pod.Reason == status.ObjectGone:
		return want, 0
	case state == status.Captured:
		want.annotation = enabled
		want.condition = condition(corev1.ConditionTrue, f.pod)
		return want, 0
	case state == status.NotCaptured, state == status.Unsupported:
		want.annotation = ""
		if want.hasCondition() || p.gated || state == status.Unsupported {
			want.condition = condition(corev1.ConditionFalse, f.pod)
		}
		return want, 0
	case p.Deleting, !astray(f.pod):
		return want, 0
	case f.pod.Reason == status.NetnsUnknown && p.Phase == string(corev1.PodPending):
		return want, 0 // its sandbox is still to come
	}
	delay := grace
	if state == status.Bypassing {
		delay = alarm
	}
	if left := delay - now.Sub(f.since); left > 0 {
		again = left
	} else {
		want.condition = condition(corev1.ConditionFalse, f.pod)
	}
	if want.annotation == "" || f.unserved.IsZero() {
		return want, again
	}
	if left := grace - now.Sub(f.unserved); left > 0 {
		return want, sooner(again, left)
	}
	want.annotation = pending
	if f.pod.Rules.State == "none" || f.pod.Rules.State == "marks" {
		want.annotation = ""
	}
	return want, again
}

func condition(is corev1.ConditionStatus, p status.Pod) corev1.PodCondition {
	message := p.Message
	if p.Remedy != "" {
		message += "; remedy: " + p.Remedy
	}
	if is == corev1.ConditionFalse && p.State != status.NotCaptured {
		message = string(p.State) + ": " + message
	}
	return corev1.PodCondition{Type: Condition, Status: is, Reason: string(p.Reason), Message: message}
}

// rest is how long after the last write what stands may be replaced by r.
func (r report) rest(stands report) time.Duration {
	switch {
	case !r.saysTheSame(stands), passing(stands.condition.Reason):
		return 0
	case r.condition.Reason != stands.condition.Reason:
		return newReason
	}
	return newMessage
}

// passing says that a reason is one of a pod on its way out of the mesh: what it comes to is
// worth a write.
func passing(reason string) bool {
	return reason == string(status.Draining) || reason == string(status.Withdrawing)
}

// saysTheSame compares all but the reason and the message.
func (r report) saysTheSame(other report) bool {
	return r.annotation == other.annotation && r.condition.Type == other.condition.Type && r.condition.Status == other.condition.Status
}

func (r report) same(other report) bool {
	return r.saysTheSame(other) && r.condition.Reason == other.condition.Reason && r.condition.Message == other.condition.Message
}

// A patch is a strategic merge patch of a pod's status. A merge patch would take away the
// conditions of others.
type patch struct {
	Metadata patchMeta    `json:"metadata"`
	Status   *patchStatus `json:"status,omitempty"`
}

type patchMeta struct {
	UID         string             `json:"uid"`
	Annotations map[string]*string `json:"annotations,omitempty"`
}

type patchStatus struct {
	Conditions []patchCondition `json:"conditions"`
}

// A patchCondition has all fields, since one that is left out stays as it was.
type patchCondition struct {
	Type               corev1.PodConditionType `json:"type"`
	Status             corev1.ConditionStatus  `json:"status"`
	Reason             string                  `json:"reason"`
	Message            string                  `json:"message"`
	LastTransitionTime metav1.Time             `json:"lastTransitionTime"`
}

// patchOf is what makes the API show want.
func patchOf(p *pod, want report, now time.Time) patch {
	result := patch{Metadata: patchMeta{UID: p.UID}}
	if want.annotation != p.stands.annotation {
		var value *string // null: removed
		if want.annotation != "" {
			value = &want.annotation
		}
		result.Metadata.Annotations = map[string]*string{Annotation: value}
	}
	c := want.condition
	if was := p.stands.condition; c.Type != "" && (c.Status != was.Status || c.Reason != was.Reason || c.Message != was.Message) {
		changed := metav1.NewTime(now)
		if c.Status == was.Status {
			changed = was.LastTransitionTime
		}
		result.Status = &patchStatus{Conditions: []patchCondition{{c.Type, c.Status, c.Reason, c.Message, changed}}}
	}
	return result
}

// sooner is the earlier of two times to ask again, where 0 means none.
func sooner(a, b time.Duration) time.Duration {
	switch {
	case a <= 0:
		return b
	case b <= 0:
		return a
	}
	return min(a, b)
}

func compareNames(a, b name) int {
	return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}
