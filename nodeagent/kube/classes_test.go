package kube

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func classed(class string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.RuntimeClassName = &class }
}

// wantHandler compares what is known of a pod's runtime class, if the pod is known.
func (c *cluster) wantHandler(podName, want string) {
	c.t.Helper()
	p, _, ok := c.source.Lookup("shop", podName)
	if got := fmt.Sprintf("%s %s %v", p.RuntimeClass, p.RuntimeHandler, ok); got != want {
		c.t.Errorf("of %s is known %q, want %q", podName, got, want)
	}
}

// A pod's runtime class is known by its handler; what is deleted is remembered.
func TestRuntimeClasses(t *testing.T) {
	for _, streaming := range []bool{true, false} {
		t.Run(fmt.Sprintf("streaming %v", streaming), func(t *testing.T) {
			inCluster(t, func(c *cluster) {
				c.api.streaming = streaming
				c.api.namespace("shop", nil)
				c.api.pod("shop", "web", classed("sandboxed"))
				c.api.pod("shop", "db")
				c.api.class("sandboxed", "runsc")
				c.api.class("plain", "runc")
				defer c.run(c.source.Run)()
				c.told()
				c.wantHandler("web", "sandboxed runsc true")
				c.wantHandler("db", "  true")
				if pods := c.source.Pods(); pods[1].RuntimeHandler != "runsc" {
					t.Errorf("pods %+v", pods)
				}
				c.api.deleteClass("sandboxed")
				c.wantTold("")
				c.api.cutWatches(true)
				c.pass(time.Minute)
				c.wantHandler("web", "sandboxed runsc true")
				c.api.class("sandboxed", "kata")
				c.wantTold("uid-web")
				c.wantHandler("web", "sandboxed kata true")
				c.api.pod("shop", "new", classed("later"))
				c.wantTold("uid-new")
				c.wantHandler("new", "later  true")
				c.api.class("later", "runsc")
				c.wantTold("uid-new")
				if lines := c.logged.Lines("level"); len(lines) > 0 {
					t.Errorf("logged %q", lines)
				}
			})
		})
	}
}

// Nothing is decided about a pod with a runtime class before the classes are known, and
// what is known of none other waits for them but the whole.
func TestRuntimeClassesComeLate(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.api.namespace("shop", nil)
		c.api.pod("shop", "web", classed("sandboxed"))
		c.api.pod("shop", "db")
		c.api.class("sandboxed", "runsc")
		c.api.refusing(onlyClasses(failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "not now")))
		defer c.run(c.source.Run)()
		c.pass(time.Minute)
		c.wantHandler("web", "sandboxed  false")
		c.wantHandler("db", "  true")
		if c.source.Synced() {
			t.Error("synced")
		}
		c.api.refusing(nil)
		c.pass(time.Minute)
		c.wantHandler("web", "sandboxed runsc true")
		if !c.source.Synced() {
			t.Error("not synced")
		}
	})
}

func onlyClasses(status *metav1.Status) func(*http.Request) *metav1.Status {
	return func(r *http.Request) *metav1.Status {
		if kindOf(r) == "RuntimeClass" {
			return status
		}
		return nil
	}
}

// Where classes may not be read, as with the role of an older chart, pods start: classes go
// by their names. It is said once, shown, and hides no outage.
func TestRuntimeClassesForbidden(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.api.namespace("shop", nil)
		c.api.pod("shop", "web", classed("sandboxed"))
		c.api.class("sandboxed", "runsc")
		c.api.refusing(onlyClasses(failure(http.StatusForbidden, metav1.StatusReasonForbidden, "runtimeclasses is forbidden")))
		defer c.run(c.source.Run)()
		c.pass(10 * time.Minute)
		c.wantHandler("web", "sandboxed  true")
		if !c.source.Synced() {
			t.Error("not synced")
		}
		want := "the Kubernetes API at http://api does not tell of runtime classes: runtimeclasses is forbidden; they go by their names, and not by their handlers'; " +
			"remedy: let the agent's service account list and watch runtimeclasses (its ClusterRole, and admission policies)"
		if problems := c.source.Problems(); len(problems) != 1 || problems[0] != want {
			t.Errorf("problems %q", problems)
		}
		if reason, why := c.source.Unread("shop", "other"); reason != "" {
			t.Errorf("unread: %s, %s", reason, why)
		}
		c.net.goAway(errors.New("connect: connection refused"))
		c.pass(time.Minute)
		c.net.goAway(nil)
		c.api.refusing(nil)
		c.pass(time.Minute)
		c.wantHandler("web", "sandboxed runsc true")
		lines := c.logged.Lines("level")
		if len(lines) != 3 || !strings.Contains(lines[0], "does not tell of runtime classes") || !strings.Contains(lines[1], "does not tell of all") || !strings.Contains(lines[2], "again") {
			t.Errorf("logged %q", lines)
		}
		if problems := c.source.Problems(); len(problems) > 0 {
			t.Errorf("problems %q", problems)
		}
	})
}
