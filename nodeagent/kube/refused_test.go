package kube

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// The API has another pod of the name by now, which the watch has not told of yet: that
// one is not touched, and the old one not tried again.
func TestSuccessorIsNotTouched(t *testing.T) {
	for verb, answered := range map[string]func(n *node){
		"another": func(n *node) { n.api.pods[name{"shop", "web"}].UID = "other" },
		"none":    func(n *node) { delete(n.api.pods, name{"shop", "web"}) },
		"conflict": func(n *node) {
			n.api.refusing(refuse(http.MethodPatch, http.StatusConflict, metav1.StatusReasonConflict, "changed"))
		},
	} {
		t.Run(verb, func(t *testing.T) {
			inNode(t, func(n *node) {
				answered(n)
				n.is("web", status.Captured, status.OK)
				if got := n.api.requests(); strings.Count(got, "PATCH") != 1 {
					t.Errorf("asked: %s", got)
				}
				n.pass(time.Hour)
				n.wantAsked()
				if p := n.api.pods[name{"shop", "web"}]; p != nil && p.Annotations != nil {
					t.Errorf("annotations %v", p.Annotations)
				}
				if lines := n.logged.Lines("level=WARN"); len(lines) > 0 || n.writer.Problems() != nil {
					t.Errorf("nothing is wrong, yet %q, %q", lines, n.writer.Problems())
				}
				// The pod itself has changed: it is tried again.
				n.api.refusing(nil)
				if verb == "conflict" {
					n.api.pod("shop", "web")
					n.wantShown("web", `"enabled" True OK`)
				}
			})
		})
	}
}

func refuse(method string, code int, reason metav1.StatusReason, message string) func(*http.Request) *metav1.Status {
	return func(r *http.Request) *metav1.Status {
		if r.Method != method {
			return nil
		}
		return failure(code, reason, message)
	}
}

// All writes are forbidden: it is said once, with the remedy, tried again ever more
// seldom, and done when it is allowed.
func TestForbidden(t *testing.T) {
	inNode(t, func(n *node) {
		n.api.pod("shop", "db", labelled)
		n.api.refusing(refuse(http.MethodPatch, http.StatusForbidden, metav1.StatusReasonForbidden, "pods/status is forbidden"))
		n.is("web", status.Captured, status.OK)
		n.is("db", status.Captured, status.OK)
		n.pass(10 * time.Minute)
		if asked := strings.Count(n.api.requests(), "PATCH"); asked < 20 || asked > 60 {
			t.Errorf("asked %d times in ten minutes", asked)
		}
		if lines := n.logged.Lines("level=WARN"); len(lines) != 1 || !strings.Contains(lines[0], "is forbidden") || !strings.Contains(lines[0], "let the agent's service account patch pods/status") {
			t.Errorf("logged %q", lines)
		}
		want := "what the API shows of 2 pods is not up to date (one is shop/db): pods/status is forbidden; remedy: let the agent's service account patch pods/status (its ClusterRole, and admission policies)"
		if got := n.writer.Problems(); !slices.Equal(got, []string{want}) {
			t.Errorf("problems %q, want %q", got, want)
		}
		n.api.refusing(nil)
		n.pass(time.Minute)
		n.wantShown("web", `"enabled" True OK`)
		n.wantShown("db", `"enabled" True OK`)
		if got := n.writer.Problems(); got != nil {
			t.Errorf("it is over, yet %q", got)
		}
	})
}

// An API server that has too much to do says when it is to be asked again.
func TestOverloaded(t *testing.T) {
	inNode(t, func(n *node) {
		n.api.refusing(func(r *http.Request) *metav1.Status {
			if r.Method == http.MethodPatch {
				return busy(3)
			}
			return nil
		})
		n.is("web", status.Captured, status.OK)
		n.pass(2 * time.Minute)
		if asked := strings.Count(n.api.requests(), "PATCH"); asked < 5 || asked > 45 {
			t.Errorf("asked %d times in two minutes", asked)
		}
		n.api.refusing(nil)
		n.pass(time.Minute)
		n.wantShown("web", `"enabled" True OK`)
	})
}

// The API answers slowly: there is one request at a time for one pod, each is bounded, and
// what comes of it is what is the case at the end.
func TestSlowAPI(t *testing.T) {
	inNode(t, func(n *node) {
		var mu sync.Mutex
		at, most, hang := 0, 0, true
		n.api.refusing(func(r *http.Request) *metav1.Status {
			if !strings.HasSuffix(r.URL.Path, "/status") {
				return nil
			}
			mu.Lock()
			at++
			most = max(most, at)
			hanging := hang
			mu.Unlock()
			if hanging {
				<-r.Context().Done()
			}
			mu.Lock()
			defer mu.Unlock()
			at--
			return nil
		})
		for range 10 {
			n.is("web", status.Captured, status.OK)
			n.pass(3 * time.Second)
			n.is("web", status.NotCaptured, status.Draining)
			n.pass(3 * time.Second)
		}
		mu.Lock()
		hang = false
		mu.Unlock()
		n.is("web", status.Captured, status.OK)
		n.pass(2 * time.Minute)
		n.wantShown("web", `"enabled" True OK`)
		if most != 1 {
			t.Errorf("%d requests at once for one pod", most)
		}
	})
}

// The agent ends while the API does not answer: that is nobody's fault.
func TestEndDuringAWrite(t *testing.T) {
	var n *node
	inNode(t, func(during *node) {
		n = during
		n.api.refusing(func(r *http.Request) *metav1.Status {
			if r.Method != http.MethodGet {
				<-r.Context().Done()
			}
			return nil
		})
		n.is("web", status.Bypassing, status.NoProxy)
		n.pass(2 * time.Second)
		if got := n.api.requests(); !strings.Contains(got, "PATCH") {
			t.Errorf("asked %q", got)
		}
	})
	if lines := n.logged.Lines("level="); len(lines) > 0 {
		t.Errorf("logged %q", lines)
	}
}
