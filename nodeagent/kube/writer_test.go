package kube

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A node is a cluster in which a Writer runs, and what it is told of the node's pods.
type node struct {
	*cluster
	writer *Writer

	mu   sync.Mutex
	pods map[string]status.Pod // by UID
}

// inNode runs story with the pod shop/web, which is labelled, and a Writer that runs.
func inNode(t *testing.T, story func(*node), with ...func(*corev1.Pod)) {
	t.Helper()
	inCluster(t, func(c *cluster) {
		n := &node{cluster: c, pods: map[string]status.Pod{}}
		var err error
		if n.writer, err = NewWriter(WriterConfig{Source: c.source, Report: n.report, Logger: c.logger()}); err != nil {
			c.t.Fatal(err)
		}
		c.api.namespace("shop", nil)
		c.api.pod("shop", "web", append(with, labelled)...)
		defer c.run(c.source.Run)()
		defer c.run(n.writer.Run)()
		c.api.requests()
		story(n)
	})
}

func (n *node) report() []status.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all []status.Pod
	for _, p := range n.pods {
		all = append(all, p)
	}
	return all
}

// is has the agent report of a pod.
func (n *node) is(podName string, state status.State, reason status.Reason, with ...func(*status.Pod)) {
	p := status.Pod{
		Namespace: "shop", Name: podName, UID: "uid-" + podName, State: state, Reason: reason, Message: "so it is", Remedy: reason.Remedy(),
		Rules: status.Rules{State: "full"}, Netns: status.Netns{Known: true}, Since: time.Now(),
	}
	if state == status.Captured {
		p.Message = ""
		served(&p)
	}
	for _, w := range with {
		w(&p)
	}
	n.mu.Lock()
	n.pods[p.UID] = p
	n.mu.Unlock()
	n.writer.Reported(p)
	synctest.Wait()
}

func served(p *status.Pod) {
	p.Listeners = status.Listeners{Known: true, Outbound: true, Inbound: true, HBONE: true, DNS: true}
}
func unruly(p *status.Pod) { p.Rules.State = "none" }

func gated(p *corev1.Pod) {
	p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: Condition}}
}

// shown has the API show what an earlier agent has written.
func shown(annotation string, is corev1.ConditionStatus) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if annotation != "" {
			p.Annotations = map[string]string{Annotation: annotation}
		}
		if is != "" {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: Condition, Status: is, Reason: "OK"})
		}
	}
}

// wantAsked compares what the API was asked since the last time.
func (n *node) wantAsked(want ...string) {
	n.t.Helper()
	synctest.Wait()
	if got := n.api.requests(); got != strings.Join(want, "\n") {
		n.t.Errorf("the API was asked:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}

// wantShown compares what the API shows of a pod: annotation, status and reason.
func (n *node) wantShown(podName, want string) {
	n.t.Helper()
	synctest.Wait()
	n.api.mu.Lock()
	p := podOf(n.api.pods[name{"shop", podName}])
	n.api.mu.Unlock()
	got := fmt.Sprintf("%q %s %s", p.stands.annotation, p.stands.condition.Status, p.stands.condition.Reason)
	if got != want {
		n.t.Errorf("the API shows of %s %s, want %s", podName, got, want)
	}
}

const patchWeb = "PATCH /api/v1/namespaces/shop/pods/web/status "

// The bytes of each patch, in a pod's life.
func TestPatches(t *testing.T) {
	inNode(t, func(n *node) {
		n.wantAsked()
		n.is("web", status.Pending, status.Capturing)
		n.wantAsked()
		n.is("web", status.Captured, status.OK)
		n.wantAsked(patchWeb + `{"metadata":{"uid":"uid-web","annotations":{"ambient.istio.io/redirection":"enabled"}},` +
			`"status":{"conditions":[{"type":"fairlead.io/Captured","status":"True","reason":"OK","message":"","lastTransitionTime":"2000-01-01T00:00:00Z"}]}}`)
		n.pass(time.Hour)
		n.is("web", status.Captured, status.OK)
		n.wantAsked()

		n.is("web", status.Captured, status.ReasonOldConnections, func(p *status.Pod) { p.Message = "2 are older" })
		n.wantAsked(patchWeb + `{"metadata":{"uid":"uid-web"},` +
			`"status":{"conditions":[{"type":"fairlead.io/Captured","status":"True","reason":"OldConnections",` +
			`"message":"2 are older; remedy: restart the pod, or its old connections, to bring those under the proxy too","lastTransitionTime":"2000-01-01T00:00:00Z"}]}}`)
		n.pass(time.Hour)

		n.is("web", status.NotCaptured, status.Draining, func(p *status.Pod) { p.Message = "1 goes on" })
		n.wantAsked(patchWeb + `{"metadata":{"uid":"uid-web","annotations":{"ambient.istio.io/redirection":null}},` +
			`"status":{"conditions":[{"type":"fairlead.io/Captured","status":"False","reason":"Draining","message":"1 goes on","lastTransitionTime":"2000-01-01T02:00:00Z"}]}}`)

		// What others have written stands.
		p := n.api.pods[name{"shop", "web"}]
		if len(p.Annotations) != 0 || len(p.Status.Conditions) != 2 || p.Status.Conditions[0].Type != corev1.PodReady {
			t.Errorf("annotations %v, conditions %v", p.Annotations, p.Status.Conditions)
		}
	})
}

// What is shown of a pod that is in a state, at once and later, given what stands.
func TestDesired(t *testing.T) {
	type later struct {
		after time.Duration
		shows string
	}
	const none = `""  `
	for name, test := range map[string]struct {
		stands []func(*corev1.Pod)
		state  status.State
		reason status.Reason
		with   []func(*status.Pod)
		shows  string
		later  []later
	}{
		"not labelled":                    {state: status.NotCaptured, reason: "NotLabelled", shows: none, later: []later{{time.Hour, none}}},
		"not labelled, gated":             {stands: []func(*corev1.Pod){gated}, state: status.NotCaptured, reason: "NotLabelled", shows: `"" False NotLabelled`},
		"not labelled, false annotation":  {stands: []func(*corev1.Pod){shown("enabled", "")}, state: status.NotCaptured, reason: "NotLabelled", shows: none},
		"released":                        {stands: []func(*corev1.Pod){shown("enabled", "True")}, state: status.NotCaptured, reason: status.Draining, shows: `"" False Draining`},
		"over":                            {stands: []func(*corev1.Pod){shown("enabled", "True")}, state: status.NotCaptured, reason: "Terminated", shows: `"" False Terminated`},
		"unsupported":                     {state: status.Unsupported, reason: status.OwnNetworkStack, shows: `"" False OwnNetworkStack`},
		"unsupported, false annotation":   {stands: []func(*corev1.Pod){shown("enabled", "")}, state: status.Unsupported, reason: status.OwnNetworkStack, shows: `"" False OwnNetworkStack`},
		"captured":                        {state: status.Captured, reason: status.OK, shows: `"enabled" True OK`},
		"captured, was pending":           {stands: []func(*corev1.Pod){shown("pending", "False")}, state: status.Captured, reason: status.OK, shows: `"enabled" True OK`},
		"captured but for DNS":            {state: status.Captured, reason: status.ProxyWithoutDNS, shows: `"enabled" True ProxyWithoutDNS`},
		"object gone":                     {stands: []func(*corev1.Pod){shown("enabled", "True")}, state: status.NotCaptured, reason: status.ObjectGone, shows: `"enabled" True OK`},
		"being captured":                  {state: status.Pending, reason: status.NoProxy, shows: none, later: []later{{29 * time.Second, none}, {2 * time.Second, `"" False NoProxy`}}},
		"blocked, was captured":           {stands: []func(*corev1.Pod){shown("enabled", "True")}, state: status.Blocked, reason: status.NoProxy, shows: `"enabled" True OK`, later: []later{{29 * time.Second, `"enabled" True OK`}, {2 * time.Second, `"pending" False NoProxy`}, {time.Hour, `"pending" False NoProxy`}}},
		"blocked, a proxy listens":        {stands: []func(*corev1.Pod){shown("enabled", "True")}, state: status.Blocked, reason: status.NoAnswer, with: []func(*status.Pod){served}, shows: `"enabled" True OK`, later: []later{{time.Hour, `"enabled" False ProxyDoesNotAnswer`}}},
		"not found after a boot":          {stands: []func(*corev1.Pod){shown("enabled", "True")}, state: status.Pending, reason: status.NetnsUnknown, with: []func(*status.Pod){unruly}, shows: `"enabled" True OK`, later: []later{{31 * time.Second, `"" False NetworkNamespaceUnknown`}}},
		"no sandbox yet":                  {stands: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }}, state: status.Pending, reason: status.NetnsUnknown, shows: none, later: []later{{time.Hour, none}}},
		"bypassing, was captured":         {stands: []func(*corev1.Pod){shown("enabled", "True")}, state: status.Bypassing, reason: status.RulesFought, with: []func(*status.Pod){served}, shows: `"enabled" True OK`, later: []later{{2 * time.Second, `"enabled" False RulesFought`}, {time.Hour, `"enabled" False RulesFought`}}},
		"bypassing, nobody listens":       {stands: []func(*corev1.Pod){shown("enabled", "True")}, state: status.Bypassing, reason: status.PortTaken, with: []func(*status.Pod){unruly}, shows: `"enabled" True OK`, later: []later{{2 * time.Second, `"enabled" False ProxyPortTaken`}, {30 * time.Second, `"" False ProxyPortTaken`}}},
		"bypassing, never captured":       {state: status.Bypassing, reason: status.NoProxy, with: []func(*status.Pod){unruly}, shows: none, later: []later{{2 * time.Second, `"" False NoProxy`}, {time.Hour, `"" False NoProxy`}}},
		"deleted, its sandbox being over": {stands: []func(*corev1.Pod){shown("enabled", "True"), func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }}, state: status.Pending, reason: status.NetnsUnknown, shows: `"enabled" True OK`, later: []later{{time.Hour, `"enabled" True OK`}}},
	} {
		t.Run(name, func(t *testing.T) {
			inNode(t, func(n *node) {
				n.is("web", test.state, test.reason, test.with...)
				n.wantShown("web", test.shows)
				for _, l := range test.later {
					n.pass(l.after)
					n.wantShown("web", l.shows)
				}
			}, test.stands...)
		})
	}
}

// A proxy that is away for less than the grace is not seen by the mesh; its time is not
// added to the next one's.
func TestShortOutagesOfTheProxyAreNotShown(t *testing.T) {
	inNode(t, func(n *node) {
		n.is("web", status.Captured, status.OK)
		n.api.requests()
		for range 5 {
			n.is("web", status.Blocked, status.NoProxy)
			n.pass(10 * time.Second)
			n.is("web", status.Blocked, status.NoAnswer) // another reason is no other outage
			n.pass(15 * time.Second)
			n.is("web", status.Captured, status.OK)
		}
		n.wantAsked()
	})
}

// A message that changes all the time costs few requests.
func TestMessagesAreWrittenSeldom(t *testing.T) {
	inNode(t, func(n *node) {
		for i := range 360 {
			n.is("web", status.Captured, status.ReasonOldConnections, func(p *status.Pod) { p.Message = fmt.Sprint(i) })
			n.pass(10 * time.Second)
		}
		if asked := strings.Count(n.api.requests(), "\n") + 1; asked != 7 {
			t.Errorf("%d requests in an hour", asked)
		}
	})
}

// What we have written ourselves is known before the watch tells of it.
func TestOwnWritesAreKnownAtOnce(t *testing.T) {
	inNode(t, func(n *node) {
		n.api.refusing(func(r *http.Request) *metav1.Status {
			if r.URL.Query().Get("watch") == "true" {
				return failure(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "slowly")
			}
			return nil
		})
		n.api.cutWatches(false)
		n.is("web", status.Captured, status.OK)
		n.pass(time.Minute)
		if asked := strings.Count(n.api.requests(), "PATCH"); asked != 1 {
			t.Errorf("written %d times", asked)
		}
		if annotation, ok := n.source.Shown("shop", "web", "uid-web"); annotation != "enabled" || !ok {
			t.Errorf("known: %q, %v", annotation, ok)
		}
	})
}

// Somebody takes the annotation away, or claims more than is the case.
func TestOthersWritesAreCorrected(t *testing.T) {
	inNode(t, func(n *node) {
		n.is("web", status.Captured, status.OK)
		n.api.pod("shop", "web", func(p *corev1.Pod) { p.Annotations = nil })
		n.wantShown("web", `"enabled" True OK`)
		n.is("web", status.NotCaptured, "OptedOut")
		n.api.pod("shop", "web", shown("enabled", ""))
		n.wantShown("web", `"" False OptedOut`)
	})
}

// A new pod of the name: what is known of the old one is not its.
func TestSuccessorStartsAnew(t *testing.T) {
	inNode(t, func(n *node) {
		n.is("web", status.Captured, status.OK)
		n.api.deletePod("shop", "web")
		n.api.pod("shop", "web", renewed, labelled)
		n.pass(time.Minute)
		n.wantShown("web", `""  `)
		n.is("web", status.Captured, status.OK, func(p *status.Pod) { p.UID = "uid-web-2" })
		n.wantShown("web", `"enabled" True OK`)
	})
}

func TestStaticPodIsWritten(t *testing.T) {
	inNode(t, func(n *node) {
		n.is("web", status.Captured, status.OK, func(p *status.Pod) { p.UID = "h1" })
		n.wantShown("web", `"enabled" True OK`)
	}, func(p *corev1.Pod) { p.Annotations = map[string]string{intent.AnnotationConfigHash: "h1"} })
}

// What a release has come to is shown at once, though it is only another reason.
func TestTheEndOfAReleaseIsShown(t *testing.T) {
	inNode(t, func(n *node) {
		n.is("web", status.Captured, status.OK)
		n.is("web", status.NotCaptured, status.Draining)
		n.wantShown("web", `"" False Draining`)
		n.is("web", status.NotCaptured, "NotLabelled")
		n.wantShown("web", `"" False NotLabelled`)
	})
}

// A pod that starts is written of when the answer to its ADD has had its time.
func TestAnADDIsNotOvertaken(t *testing.T) {
	inNode(t, func(n *node) {
		n.is("web", status.Captured, status.OK)
		n.pass(startDelay - time.Millisecond)
		n.wantAsked()
		n.pass(time.Millisecond)
		n.wantShown("web", `"enabled" True OK`)
	}, func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending })
}

// Pods that are gone are forgotten.
func TestWriterForgets(t *testing.T) {
	inNode(t, func(n *node) {
		n.is("web", status.Captured, status.OK)
		n.mu.Lock()
		clear(n.pods)
		n.mu.Unlock()
		n.pass(time.Minute)
		n.writer.mu.Lock()
		defer n.writer.mu.Unlock()
		if len(n.writer.facts) != 0 {
			t.Errorf("%d are remembered", len(n.writer.facts))
		}
	})
}
