package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A Leaving is one node that is being uninstalled, by the init container of a pod on it.
type Leaving struct {
	Node    string
	Done    bool
	Message string // what it has said last, or why it says nothing
}

// Leavings returns the nodes that the pods of a DaemonSet uninstall, and how many there are
// to be: one that has no pod yet cannot be named.
func (c *Client) Leavings(ctx context.Context, namespace, daemonSet, selector string) (nodes []Leaving, all int, err error) {
	var set struct {
		Metadata struct {
			Generation int64 `json:"generation"`
		} `json:"metadata"`
		Status struct {
			Observed int64 `json:"observedGeneration"`
			Desired  int   `json:"desiredNumberScheduled"`
		} `json:"status"`
	}
	text, err := c.core.Get().AbsPath("/apis/apps/v1/namespaces", namespace, "daemonsets", daemonSet).
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err == nil {
		err = json.Unmarshal(text, &set)
	}
	if err == nil && set.Status.Observed != set.Metadata.Generation {
		err = fmt.Errorf("its controller has not looked at it yet")
	}
	if err != nil {
		return nil, 0, fmt.Errorf("cannot ask for DaemonSet %s/%s: %w", namespace, daemonSet, err)
	}
	var pods corev1.PodList
	err = c.core.Get().Namespace(namespace).Resource("pods").
		VersionedParams(&metav1.ListOptions{LabelSelector: selector}, c.parameters).Do(ctx).Into(&pods)
	if err != nil {
		return nil, 0, fmt.Errorf("cannot ask for the pods of DaemonSet %s/%s: %w", namespace, daemonSet, err)
	}
	for _, p := range pods.Items {
		nodes = append(nodes, leavingOf(&p))
	}
	slices.SortFunc(nodes, func(a, b Leaving) int { return cmp.Compare(a.Node, b.Node) })
	return nodes, set.Status.Desired, nil
}

func leavingOf(p *corev1.Pod) Leaving {
	l := Leaving{Node: cmp.Or(p.Spec.NodeName, "(none yet, of pod "+p.Name+")"), Message: "it has not begun; " + string(p.Status.Phase)}
	for _, s := range p.Status.InitContainerStatuses {
		now, before := s.State.Terminated, s.LastTerminationState.Terminated
		switch {
		case now != nil && now.ExitCode == 0:
			l.Done, l.Message = true, now.Message
		case now != nil:
			l.Message = fmt.Sprintf("exit code %d: %s", now.ExitCode, now.Message)
		case before != nil:
			l.Message = fmt.Sprintf("tried %d times, exit code %d: %s", s.RestartCount, before.ExitCode, before.Message)
		case s.State.Running != nil:
			l.Message = "it is at work"
		case s.State.Waiting != nil:
			l.Message = cmp.Or(s.State.Waiting.Message, s.State.Waiting.Reason)
		}
	}
	return l
}
