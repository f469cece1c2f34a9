package kube

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// What the agent writes about its node.
const (
	// StartupTaint is the taint that nodes may be born with, whatever its effect. The other
	// one is istio-cni's, which clusters may have from before.
	StartupTaint  = "fairlead.io/agent-not-ready"
	istioTaint    = "cni.istio.io/not-ready"
	NodeCondition = "fairlead.io/Ready"
)

// A nodeState is what the API should show of a node.
type nodeState struct {
	taint     taintState
	condition nodeCondition // without a status: as it is
	leaving   bool          // there is to be no condition
}

type taintState int

const (
	taintAsIs taintState = iota
	taintGone
	taintThere
)

// A nodeCondition is what is to be read in ours.
type nodeCondition struct {
	Status          corev1.ConditionStatus
	Reason, Message string
}

func isStartupTaint(t corev1.Taint) bool { return t.Key == StartupTaint || t.Key == istioTaint }

func tainted(n *corev1.Node) bool { return slices.ContainsFunc(n.Spec.Taints, isStartupTaint) }

// A nodePatch is a strategic merge patch of a node, or of its status. Conditions are merged
// by their types; a list of taints replaces the whole list, so that it has to be made of
// the version that it replaces: the API server refuses it where there is a newer one.
type nodePatch struct {
	Metadata nodePatchMeta    `json:"metadata"`
	Spec     *nodePatchSpec   `json:"spec,omitempty"`
	Status   *nodePatchStatus `json:"status,omitempty"`
}

type nodePatchMeta struct {
	UID             types.UID `json:"uid"`
	ResourceVersion string    `json:"resourceVersion,omitempty"`
}

type nodePatchSpec struct {
	Taints []corev1.Taint `json:"taints"`
}

type nodePatchStatus struct {
	Conditions []any `json:"conditions"`
}

// A deletedCondition takes a condition away.
type deletedCondition struct {
	Type  string `json:"type"`
	Patch string `json:"$patch"`
}

// words are the taints of ours that are left, for people.
func (s *nodePatchSpec) words() string {
	var all []string
	for _, t := range s.Taints {
		if isStartupTaint(t) {
			all = append(all, t.ToString())
		}
	}
	if all == nil {
		return "removed"
	}
	return strings.Join(all, ",")
}

// patch returns what brings a node nearer to the state, and the subresource that it is
// for; nil: nothing does.
func (s nodeState) patch(n *corev1.Node, taint, condition bool, now time.Time) (sub string, p *nodePatch) {
	meta := nodePatchMeta{UID: n.UID}
	if taint && (s.taint == taintGone && tainted(n) || s.taint == taintThere && !tainted(n)) {
		meta.ResourceVersion = n.ResourceVersion
		taints := slices.DeleteFunc(slices.Clone(n.Spec.Taints), isStartupTaint)
		if s.taint == taintThere {
			taints = append(taints, corev1.Taint{Key: StartupTaint, Effect: corev1.TaintEffectNoSchedule})
		}
		return "", &nodePatch{Metadata: meta, Spec: &nodePatchSpec{taints}}
	}
	if !condition {
		return "", nil
	}
	var is corev1.NodeCondition
	if at := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == NodeCondition }); at >= 0 {
		is = n.Status.Conditions[at]
	}
	want := s.condition
	switch {
	case s.leaving && is.Type != "":
		return "status", &nodePatch{Metadata: meta, Status: &nodePatchStatus{[]any{deletedCondition{NodeCondition, "delete"}}}}
	case s.leaving, want.Status == "", want == nodeCondition{is.Status, is.Reason, is.Message}:
		return "", nil
	}
	changed := metav1.NewTime(now)
	if want.Status == is.Status {
		changed = is.LastTransitionTime
	}
	return "status", &nodePatch{Metadata: meta, Status: &nodePatchStatus{[]any{corev1.NodeCondition{
		Type: NodeCondition, Status: want.Status, Reason: want.Reason, Message: want.Message,
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: changed,
	}}}}
}
