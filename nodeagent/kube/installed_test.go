package kube

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The agent knows when it was installed before anything is decided by it, or goes on
// without; it asks once.
func TestInstalled(t *testing.T) {
	for name, test := range map[string]struct {
		api    func(*cluster)
		want   string
		logged string
	}{
		"by a DaemonSet": {func(*cluster) {}, "1999-01-02T03:04:05Z", ""},
		"forbidden": {
			func(c *cluster) {
				c.api.refusing(onlyDaemonSets(failure(http.StatusForbidden, metav1.StatusReasonForbidden, "daemonsets is forbidden")))
			},
			"", "cannot get the agent's DaemonSet system/fairlead from the API: daemonsets is forbidden",
		},
		"gone": {
			func(c *cluster) { clear(c.api.sets) },
			"", "cannot get the agent's DaemonSet system/fairlead from the API: not found",
		},
		"overloaded for a while": {
			func(c *cluster) {
				asked := 0
				c.api.refusing(func(r *http.Request) *metav1.Status {
					if asked++; asked < 3 {
						return onlyDaemonSets(busy(1))(r)
					}
					asked--
					return nil
				})
			},
			"1999-01-02T03:04:05Z", "",
		},
		"silent": {
			func(c *cluster) {
				c.api.refusing(func(r *http.Request) *metav1.Status {
					if s := onlyDaemonSets(notFound)(r); s != nil {
						<-r.Context().Done()
					}
					return nil
				})
			},
			"", "context deadline exceeded",
		},
		"not by a DaemonSet": {
			func(c *cluster) { c.api.pod("system", "agent-x", func(p *corev1.Pod) { p.OwnerReferences = nil }) },
			"", "the agent's own pod system/agent-x belongs to no DaemonSet",
		},
		"not as a pod": {
			func(c *cluster) { c.api.deletePod("system", "agent-x") },
			"", "cannot get the agent's own pod system/agent-x from the API: not found",
		},
		"nobody says which pod": {
			func(c *cluster) { c.source.config.Agent.Name = "" },
			"", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, func(c *cluster) {
				c.api.namespace("shop", nil)
				test.api(c)
				defer c.run(c.source.Run)()
				for !c.source.Synced() {
					c.pass(time.Second)
				}
				got := ""
				if when := c.source.Installed(); !when.IsZero() {
					got = when.UTC().Format(time.RFC3339)
				}
				lines := c.logged.Lines("level")
				if got != test.want || (test.logged == "") != (len(lines) == 0) || !strings.Contains(strings.Join(lines, ""), test.logged) || len(lines) > 1 {
					t.Errorf("installed %q, want %q; logged %q, want %q", got, test.want, lines, test.logged)
				}
				c.api.requests()
				c.pass(time.Hour)
				if asked := c.api.requests(); asked != "" {
					t.Errorf("asked again: %s", asked)
				}
			})
		})
	}
}

func onlyDaemonSets(status *metav1.Status) func(*http.Request) *metav1.Status {
	return func(r *http.Request) *metav1.Status {
		if strings.Contains(r.URL.Path, "/daemonsets/") {
			return status
		}
		return nil
	}
}
