package kube

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The condition says at once that the agent is ready, and after a while that it is not; what
// else it says does not change all the time. Nothing else of the node is written.
func TestNodeCondition(t *testing.T) {
	inTainter(t, NodeWriterConfig{Condition: true}, func(n *tainter) {
		n.wantShown(ourTaint + " " + kubelets)
		n.pass(grace)
		n.wantShown(ourTaint + " " + kubelets + " fairlead.io/Ready/False/Starting/the node's pods are not known yet")
		n.is("OK", nil)
		n.wantShown(ourTaint + " " + kubelets + " fairlead.io/Ready/True/OK")
		n.is("NotInstalled", errors.New("no primary"))
		n.pass(grace)
		n.wantShown(ourTaint + " " + kubelets + " fairlead.io/Ready/False/NotInstalled/no primary")
		n.patches()
		for range 30 {
			n.is("NotInstalled", errors.New("one thing"))
			n.is("NotInstalled", errors.New("another"))
		}
		if got := n.patches(); got > 2 {
			t.Errorf("%d patches in a minute", got)
		}
		n.pass(2 * time.Minute)
		n.wantShown(ourTaint + " " + kubelets + " fairlead.io/Ready/False/NotInstalled/another")
		n.api.node("node1", func(n *corev1.Node) { n.Status.Conditions = n.Status.Conditions[:1] }) // somebody
		n.pass(nodeInterval + time.Second)
		n.wantShown(ourTaint + " " + kubelets + " fairlead.io/Ready/False/NotInstalled/another")
		n.wantMeasured("fairlead_api_node_writes_total", "nodes/status ok 5")
	}, born(ourStartup))
}

// An agent that starts again, and is ready soon, leaves no trace; since when it was ready
// stays what it was.
func TestNodeConditionOverARestart(t *testing.T) {
	then := metav1.Date(1999, 1, 2, 3, 4, 5, 0, time.UTC)
	inTainter(t, NodeWriterConfig{Condition: true}, func(n *tainter) {
		n.pass(grace - 2*time.Second)
		n.is("OK", nil)
		n.wantShown(kubelets + " fairlead.io/Ready/True/OK")
		if got := n.patches(); got != 1 { // what it said was wrong
			t.Errorf("%d patches", got)
		}
		if c := n.api.nodes["node1"].Status.Conditions[1]; !c.LastTransitionTime.Equal(&then) || !c.LastHeartbeatTime.After(then.Time) {
			t.Errorf("%+v", c)
		}
	}, func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: NodeCondition, Status: corev1.ConditionTrue, Reason: "Other", LastTransitionTime: then})
	})
}

// On a node that is uninstalled neither is left, and nothing comes again.
func TestNodeIsLeft(t *testing.T) {
	inTainter(t, NodeWriterConfig{Taint: true, PutBack: true, Guard: true, Condition: true}, func(n *tainter) {
		n.pass(time.Minute)
		n.wantShown(ourTaint + " " + kubelets + " fairlead.io/Ready/False/Starting/the node's pods are not known yet")
		n.api.refusing(refuse(http.MethodPatch, http.StatusForbidden, metav1.StatusReasonForbidden, "denied"))
		if err := n.writer.Leave(n.t.Context()); err == nil || err.Error() != "cannot patch nodes: denied" {
			t.Errorf("refused: %v", err)
		}
		n.api.refusing(nil)
		for range 2 {
			if err := n.writer.Leave(n.t.Context()); err != nil {
				t.Error(err)
			}
			n.wantShown(kubelets)
		}
		n.pass(5 * time.Minute)
		n.wantShown(kubelets)
	})
	inTainter(t, NodeWriterConfig{Taint: true}, func(n *tainter) {
		n.net.goAway(errors.New("connect: connection refused"))
		ctx, cancel := context.WithTimeout(n.t.Context(), time.Minute)
		defer cancel()
		if err := n.writer.Leave(ctx); err == nil || !strings.Contains(err.Error(), "connection refused") {
			t.Errorf("without the API: %v", err)
		}
	})
}
