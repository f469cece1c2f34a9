package kube

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
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

// What the API would not store as it is written is not written again and again.
func TestNodeConditionInUTF8(t *testing.T) {
	inTainter(t, NodeWriterConfig{Condition: true}, func(n *tainter) {
		n.is("NotInstalled", errors.New("00-caf\xe9.conflist sorts before"))
		n.pass(10 * time.Minute)
		n.wantShown(kubelets + " fairlead.io/Ready/False/NotInstalled/00-caf\uFFFD.conflist sorts before")
		if got := n.patches(); got != 1 {
			t.Errorf("%d patches in ten minutes", got)
		}
	})
}

// Where the taint may not be written, the condition is even so.
func TestNodeConditionWithoutTheTaint(t *testing.T) {
	inTainter(t, NodeWriterConfig{Taint: true, Condition: true}, func(n *tainter) {
		n.api.refusing(func(r *http.Request) *metav1.Status {
			if strings.HasSuffix(r.URL.Path, "/status") {
				return nil
			}
			return refuse(http.MethodPatch, http.StatusForbidden, metav1.StatusReasonForbidden, "denied")(r)
		})
		n.is("OK", nil)
		n.wantShown(ourTaint + " " + kubelets + " fairlead.io/Ready/True/OK")
		want := "what the API shows of the node node1 is not up to date: cannot patch nodes: denied; remedy: "
		if got := strings.Join(n.writer.Problems(), "\n"); !strings.HasPrefix(got, want) {
			t.Errorf("problems %q", got)
		}
	}, born(ourStartup))
}

// An agent that is ready every other second is no reason to look at the node more often.
func TestNodeIsNotLookedAtForNothing(t *testing.T) {
	inTainter(t, NodeWriterConfig{Taint: true, Guard: true, Condition: true}, func(n *tainter) {
		n.is("OK", nil)
		var looks atomic.Int32
		n.api.refusing(func(r *http.Request) *metav1.Status {
			if r.Method == http.MethodGet && r.URL.Path == "/api/v1/nodes/node1" {
				looks.Add(1)
			}
			return nil
		})
		for range 300 {
			n.is("NotInstalled", errors.New("for a moment"))
			n.is("OK", nil)
		}
		if got, most := int(looks.Load()), int(10*time.Minute/nodeInterval); got < most/2 || got > most {
			t.Errorf("looked at %d times in ten minutes, want at most %d", got, most)
		}
	})
}

// On a node that is uninstalled neither is left, and nothing comes again.
func TestNodeIsLeft(t *testing.T) {
	inTainter(t, NodeWriterConfig{Taint: true, PutBack: true, Guard: true, Condition: true}, func(n *tainter) {
		n.pass(time.Minute)
		n.wantShown(ourTaint + " " + kubelets + " fairlead.io/Ready/False/Starting/the node's pods are not known yet")
		n.api.refusing(refuse(http.MethodPatch, http.StatusForbidden, metav1.StatusReasonForbidden, "denied"))
		if err := n.writer.Leave(n.t.Context()); err == nil || err.Error() != "cannot patch nodes: denied; cannot patch nodes/status: denied" {
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
