package kube

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

const repairsText = "Normal web RulesRepaired: what redirects the pod's traffic had been changed by somebody, and was put right (%d times so far)"

func repaired(times int) func(*status.Pod) {
	return func(p *status.Pod) { p.Rules.Repaired = times }
}

func TestRepairsAreTold(t *testing.T) {
	inNode(t, func(n *node) {
		n.is("web", status.Captured, status.OK, repaired(2)) // before this agent was
		n.pass(time.Minute)
		n.wantRecorded()
		n.is("web", status.Captured, status.OK, repaired(3))
		n.pass(repairDelay)
		n.wantRecorded(fmt.Sprintf(repairsText, 3))
		n.is("web", status.Captured, status.OK, repaired(4))
		n.pass(repairDelay)
		n.wantRecorded(fmt.Sprintf(repairsText, 3) + " (2 times)")
		n.is("web", status.Captured, status.OK, repaired(0)) // a new sandbox
		n.pass(time.Hour)
		n.is("web", status.Captured, status.OK, repaired(1))
		n.pass(repairDelay)
		n.wantRecorded(fmt.Sprintf(repairsText, 3)+" (2 times)", fmt.Sprintf(repairsText, 1))
	})
}

// Repairs without an end are told of while they last.
func TestRepairsInARow(t *testing.T) {
	inNode(t, func(n *node) {
		for i := range 5 {
			n.is("web", status.Captured, status.OK, repaired(i))
			n.pass(repairDelay * 3 / 4)
		}
		n.wantRecorded(fmt.Sprintf(repairsText, 2) + " (2 times)")
	})
}

// A pod that ends loses its network piece by piece, which the agent may see before it
// hears that the pod ends.
func TestRepairsOfAPodThatEnds(t *testing.T) {
	for name, end := range map[string]func(*node){
		"deleted": func(n *node) {
			n.api.pod("shop", "web", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} })
		},
		"terminated": func(n *node) { n.is("web", status.NotCaptured, "Terminated", repaired(1)) },
		"gone":       func(n *node) { n.api.deletePod("shop", "web") },
	} {
		t.Run(name, func(t *testing.T) {
			inNode(t, func(n *node) {
				n.is("web", status.Captured, status.OK)
				n.is("web", status.Captured, status.OK, repaired(1))
				n.pass(repairDelay / 2)
				end(n)
				n.pass(time.Hour)
				n.wantRecorded()
			})
		})
	}
}
