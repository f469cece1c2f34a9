package kube

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

const (
	// longPending is how long a pod whose sandbox is there may be on its way into the
	// mesh before people are told.
	longPending = 10 * time.Second

	// repairDelay is how long it may take until it is seen that a pod ends.
	repairDelay = 2 * time.Second

	// rulesRepaired is the reason of the one remark that is not about a pod's state.
	rulesRepaired = "RulesRepaired"
)

// repairs returns the remark about repairs that people have not been told of, if there is
// one, how many they know of then, and when to ask again. Of a pod that ends nobody is told:
// the runtime takes its network down piece by piece.
func repairs(p *pod, f fact, now time.Time) (all []remark, known int, again time.Duration) {
	times := f.pod.Rules.Repaired
	if times <= f.repaired || p.Deleting || f.pod.State == status.NotCaptured {
		return nil, times, 0
	}
	if left := repairDelay - now.Sub(f.repairedAt); left > 0 {
		return nil, f.repaired, left
	}
	return []remark{{corev1.EventTypeNormal, rulesRepaired,
		note("what redirects the pod's traffic had been changed by somebody, and was put right (%d times so far)", times)}}, times, 0
}

// remarks returns what people should be told of a pod's state now, which of its states they
// know of then, and when to ask again.
func remarks(p *pod, f fact, now time.Time) (all []remark, told string, again time.Duration) {
	delay, worth := worthTelling(p, f.pod)
	if !worth {
		return nil, "", 0
	}
	told = fmt.Sprint(f.pod.State, f.pod.Reason)
	if f.pod.State == status.Pending && !f.pod.Netns.Known {
		told += fmt.Sprint(f.pod.Tried) // each start that failed is one more
	}
	if told == f.told {
		return nil, told, 0
	}
	since := f.pod.Since
	if f.pod.Tried.After(since) {
		since = f.pod.Tried
	}
	if left := delay - now.Sub(since); left > 0 {
		return nil, f.told, left
	}
	text := note("%s: %s", f.pod.State, f.pod.Message)
	if f.pod.Remedy != "" {
		text = note("%s; remedy: %s", text, f.pod.Remedy)
	}
	return []remark{{corev1.EventTypeWarning, string(f.pod.Reason), text}}, told, 0
}

// worthTelling says whether people should be told of a pod's state, once it has lasted.
func worthTelling(p *pod, now status.Pod) (delay time.Duration, worth bool) {
	switch now.State {
	case status.Bypassing, status.Blocked:
		return alarm, true
	case status.Unsupported:
		return 0, true
	case status.Captured:
		return alarm, now.Reason == status.ReasonOldConnections || now.Reason == status.NewProxyRefused
	case status.Pending:
		switch {
		case now.Reason == status.Capturing, p.Deleting:
			return 0, false
		case now.Reason == status.NetnsUnknown && p.Phase == string(corev1.PodPending):
			return 0, false // its sandbox is still to come
		case now.Netns.Known, now.Reason == status.NetnsUnknown: // which may have ended, and is not shown so yet
			return longPending, true
		}
		return alarm, true
	}
	return 0, false
}
