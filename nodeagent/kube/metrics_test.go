package kube

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// measured are all metrics that begin so, as text, without their prefix.
func (c *cluster) measured(prefix string) string {
	c.t.Helper()
	families, err := c.registry.Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	var all []string
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var words []string
			for _, label := range m.GetLabel() {
				words = append(words, label.GetValue())
			}
			words = append(words, fmt.Sprint(m.GetCounter().GetValue()+m.GetGauge().GetValue()))
			if name, found := strings.CutPrefix(f.GetName(), prefix); found {
				all = append(all, strings.TrimLeft(name+" "+strings.Join(words, " "), " "))
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

func (c *cluster) wantMeasured(prefix, want string) {
	c.t.Helper()
	if got := c.measured(prefix); got != want {
		c.t.Errorf("%s: %s\nwant %s", prefix, got, want)
	}
}

func TestSourceMetrics(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.api.streaming = false
		c.wantMeasured("fairlead_api_away", "namespaces 1; pods 1; runtimeclasses 1")
		defer c.run(c.source.Run)()
		c.wantMeasured("fairlead_api_away", "namespaces 0; pods 0; runtimeclasses 0")
		c.net.goAway(errors.New("connect: connection refused"))
		c.pass(time.Minute)
		c.wantMeasured("fairlead_api_away", "namespaces 1; pods 1; runtimeclasses 1")
		c.net.goAway(nil)
		c.pass(time.Minute)
		c.wantMeasured("fairlead_api_away", "namespaces 0; pods 0; runtimeclasses 0")
		if got := c.measured("fairlead_api_watches_total"); !strings.Contains(got, "pods failed ") || !strings.Contains(got, "pods ok ") {
			t.Error(got)
		}
	})
}

func TestWriterMetrics(t *testing.T) {
	inNode(t, func(n *node) {
		n.api.pod("shop", "db", labelled)
		n.api.refusing(refuse(http.MethodPatch, http.StatusForbidden, metav1.StatusReasonForbidden, "no"))
		n.is("web", status.Captured, status.OK)
		n.is("db", status.Captured, status.OK)
		n.wantMeasured("fairlead_api_writes_total", "failed 2")
		n.wantMeasured("fairlead_api_pods_outdated", "2")
		n.api.refusing(nil)
		n.pass(time.Minute)
		n.wantMeasured("fairlead_api_writes_total", "failed 2; ok 2")
		n.wantMeasured("fairlead_api_pods_outdated", "0")
		n.api.refusing(refuse(http.MethodPatch, http.StatusNotFound, metav1.StatusReasonNotFound, "gone"))
		n.is("web", status.NotCaptured, status.Draining)
		n.wantMeasured("fairlead_api_writes_total", "failed 2; gone 1; ok 2")
		n.wantMeasured("fairlead_api_pods_outdated", "0")
	})
}

func TestEventMetrics(t *testing.T) {
	inNode(t, func(n *node) {
		bypasses := func(times int) {
			for range times {
				n.is("web", status.Bypassing, status.NoProxy)
				n.pass(2 * time.Second)
				n.is("web", status.Captured, status.OK)
			}
		}
		bypasses(2)
		n.wantMeasured("fairlead_events_total", "ok 2")
		n.api.refusing(refuse(http.MethodPatch, http.StatusForbidden, metav1.StatusReasonForbidden, "no"))
		bypasses(1)
		n.wantMeasured("fairlead_events_total", "failed 1; ok 2")
		bypasses(5) // more than of one pod are sent
		n.wantMeasured("fairlead_events_total", "dropped 3; failed 3; ok 2")
	})
}
