package kube

import (
	"errors"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// The watch lags: what is asked for is known at once, and what the watch tells later does
// not undo it.
func TestFetch(t *testing.T) {
	inCluster(t, func(c *cluster) {
		defer c.run(c.source.Run)()
		c.api.refusing(func(r *http.Request) *metav1.Status {
			if r.URL.Query().Get("watch") == "true" {
				return failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "slowly")
			}
			return nil
		})
		c.api.cutWatches(false)
		synctest.Wait()
		c.api.namespace("shop", ambient)
		c.api.pod("shop", "web", labelled)
		c.api.pod("shop", "far", elsewhere)
		c.wantView("synced true")
		c.told()

		if err := c.source.fetch(c.t.Context(), name{"shop", "web"}); err != nil {
			t.Error(err)
		}
		c.wantView("synced true", "shop/web uid-web map[istio.io/dataplane-mode:ambient] in map[istio.io/dataplane-mode:ambient]")
		c.wantTold("uid-web")
		for podName, want := range map[string]string{
			"far": `cannot take pod shop/far for this node's: its object names node "node2", this is node "node1"`,
			"no":  "cannot get pod shop/no from the API at http://api: not found",
		} {
			if err := c.source.fetch(c.t.Context(), name{"shop", podName}); err == nil || err.Error() != want {
				t.Errorf("%s: %v, want %s", podName, err, want)
			}
		}
		c.api.refusing(nil)
		c.pass(time.Minute)
		c.wantView("synced true", "shop/web uid-web map[istio.io/dataplane-mode:ambient] in map[istio.io/dataplane-mode:ambient]")
		c.wantTold("")
	})
}

// What an ADD says of a pod that the watch has not told of, when its wait is over.
func TestUnread(t *testing.T) {
	const cannot = "cannot get pod shop/new from the API at http://api: "
	const wait = 5 * time.Second
	refused := func(status *metav1.Status) func(*cluster) {
		return func(c *cluster) { c.api.refusing(func(*http.Request) *metav1.Status { return status }) }
	}
	for name, test := range map[string]struct {
		api    func(*cluster)
		reason status.Reason
		why    string
	}{
		"none": {func(*cluster) {}, status.PodUnknown, cannot + "not found"},
		"another node's": {
			func(c *cluster) { c.api.pod("shop", "new", elsewhere) },
			status.PodUnknown, `cannot take pod shop/new for this node's: its object names node "node2", this is node "node1"`,
		},
		"token expired": {
			refused(failure(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "who are you")),
			status.APIUnavailable, cannot + "who are you (look whether the agent's token, or its kubeconfig, is expired or another cluster's)",
		},
		"forbidden": {
			refused(failure(http.StatusForbidden, metav1.StatusReasonForbidden, "pods is forbidden")),
			status.APIUnavailable, cannot + "pods is forbidden (let the agent's service account get pods and namespaces (its ClusterRole, and admission policies))",
		},
		"out of order": {
			refused(failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "etcd is away")),
			status.APIUnavailable, cannot + "etcd is away (look at the API server: it answers with an error)",
		},
		"overloaded": {
			refused(busy(60)),
			status.APIUnavailable, cannot + "come back later (look at the API server: it answers with an error)",
		},
		"unreachable": {
			func(c *cluster) { c.net.goAway(errors.New("connect: connection refused")) },
			status.APIUnavailable, cannot + "connect: connection refused (look whether the API server runs, and whether this node reaches it)",
		},
		"silent": {
			func(c *cluster) {
				c.api.refusing(func(r *http.Request) *metav1.Status { <-r.Context().Done(); return notFound })
			},
			status.APIUnavailable, "context deadline exceeded (look whether the API server runs, and whether this node reaches it)",
		},
		"namespace forbidden": {
			func(c *cluster) {
				c.api.pod("lost", "new")
				c.api.refusing(func(r *http.Request) *metav1.Status {
					if strings.HasPrefix(r.URL.Path, "/api/v1/namespaces/lost") && !strings.Contains(r.URL.Path, "/pods/") {
						return failure(http.StatusForbidden, metav1.StatusReasonForbidden, "namespaces is forbidden")
					}
					return nil
				})
			},
			status.APIUnavailable, "cannot get namespace lost from the API at http://api: namespaces is forbidden (let the agent's service account get pods and namespaces",
		},
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, func(c *cluster) {
				c.api.namespace("shop", ambient)
				defer c.run(c.source.Run)()
				namespace := "shop"
				if strings.HasPrefix(name, "namespace") {
					namespace = "lost"
				}
				test.api(c)
				c.told()
				stop := c.source.Expect(c.t.Context(), namespace, "new", "uid-new", wait)
				c.pass(wait / 2)
				c.pass(wait*9/20 - time.Millisecond)
				c.pass(wait / 20) // a turn that the end of the wait calls for sees it
				if reason, why := c.source.Unread(namespace, "new"); reason != test.reason || !strings.Contains(why, test.why) {
					t.Errorf("%s, %s\nwant %s, %s", reason, why, test.reason, test.why)
				}
				if told := c.told(); !strings.Contains(told, "uid-new") {
					t.Errorf("told of %q", told)
				}
				stop()
				if len(c.source.unfetched) > 0 {
					t.Error("it is not forgotten")
				}
			})
		})
	}
}

// busy is the answer of an API server that has too much to do.
func busy(retryAfter int32) *metav1.Status {
	s := failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "come back later")
	s.Details.RetryAfterSeconds = retryAfter
	return s
}

// An API server that has too much to do for a moment is asked again.
func TestExpectComesBackLater(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.api.namespace("shop", nil)
		defer c.run(c.source.Run)()
		asked := 0
		c.api.refusing(func(r *http.Request) *metav1.Status {
			if !strings.Contains(r.URL.Path, "/pods/") {
				return failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "no")
			}
			if asked++; asked == 1 {
				return busy(1)
			}
			return nil
		})
		c.api.cutWatches(false)
		c.api.pod("shop", "web")
		defer c.source.Expect(c.t.Context(), "shop", "web", "uid-web", 4*time.Second)()
		c.pass(3*time.Second - time.Millisecond)
		c.wantView("synced true")
		c.pass(time.Millisecond)
		c.wantView("synced true", "shop/web uid-web map[] in map[]")
		if asked != 2 {
			t.Errorf("asked %d times", asked)
		}
	})
}

// A pod that is known in time is not asked for, and neither is one whose ADD is over.
func TestExpectAsksOnlyIfNeeded(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.api.namespace("shop", nil)
		c.api.pod("shop", "web")
		defer c.run(c.source.Run)()
		c.api.requests()
		web := c.source.Expect(c.t.Context(), "shop", "web", "uid-web", 5*time.Second)
		c.source.Expect(c.t.Context(), "shop", "new", "uid-new", 5*time.Second)()
		c.pass(5 * time.Second)
		web()
		if asked := c.api.requests(); asked != "" {
			t.Errorf("asked %s", asked)
		}
		// Another pod of the name is known.
		stop := c.source.Expect(c.t.Context(), "shop", "web", "uid-web-2", 5*time.Second)
		c.pass(5 * time.Second)
		stop()
		if asked := c.api.requests(); asked != "GET /api/v1/namespaces/shop/pods/web" {
			t.Errorf("asked %s", asked)
		}
	})
}

// An answer that comes when the ADD is over, and after the time for it, leaves nothing behind.
func TestExpectForgetsWhatComesTooLate(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.api.namespace("shop", nil)
		defer c.run(c.source.Run)()
		c.api.refusing(func(r *http.Request) *metav1.Status {
			if strings.Contains(r.URL.Path, "/pods/") {
				<-r.Context().Done()
			}
			return nil
		})
		stop := c.source.Expect(c.t.Context(), "shop", "web", "uid-web", 5*time.Second)
		c.pass(5*time.Second*9/10 - time.Millisecond)
		c.source.mu.Lock()
		<-time.After(time.Millisecond) // the bubble's clock
		for range 10000 {              // until the answer waits for the lock, which stop takes before it
			runtime.Gosched()
		}
		c.source.mu.Unlock()
		stop()
		c.pass(time.Second)
		if reason, why := c.source.Unread("shop", "web"); reason != "" {
			t.Errorf("%s, %s", reason, why)
		}
	})
}

// While the API is away this is what is wrong with a pod that is not known, before it was
// asked for, too; and nothing is wrong with one when it is back.
func TestUnreadDuringAnOutage(t *testing.T) {
	inCluster(t, func(c *cluster) {
		defer c.run(c.source.Run)()
		c.net.goAway(errors.New("connect: connection refused"))
		c.pass(time.Minute)
		want := "the Kubernetes API at http://api does not tell of pods (since 2000-01-01T00:00:0"
		if reason, why := c.source.Unread("shop", "web"); reason != status.APIUnavailable || !strings.HasPrefix(why, want) || !strings.Contains(why, "connection refused (look whether") {
			t.Errorf("%s, %s", reason, why)
		}
		c.net.goAway(nil)
		c.pass(time.Minute)
		if reason, why := c.source.Unread("shop", "web"); reason != "" {
			t.Errorf("%s, %s", reason, why)
		}
	})
}
