package kube

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

func (n *node) wantRecorded(want ...string) {
	n.t.Helper()
	synctest.Wait()
	if got := n.api.recorded(); got != strings.Join(want, "\n") {
		n.t.Errorf("events:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}

// remarked is what the event of a state says.
func remarked(state status.State, reason status.Reason) string {
	text := fmt.Sprintf("Warning web %s: %s: so it is", reason, state)
	if reason.Remedy() != "" {
		text += "; remedy: " + reason.Remedy()
	}
	return text
}

// untold is the report of a pod whose sandbox nobody has told of.
func untold(p *status.Pod) { p.Netns.Known = false }

// Which states people are told of, and when.
func TestEvents(t *testing.T) {
	old := func(p *status.Pod) { p.Message = "so it is" }
	for name, test := range map[string]struct {
		stands   []func(*corev1.Pod)
		state    status.State
		reason   status.Reason
		with     []func(*status.Pod)
		not, yes time.Duration // not yet after that, and then after that; yes 0: never
	}{
		"captured":              {state: status.Captured, reason: status.OK, not: time.Hour},
		"not captured":          {state: status.NotCaptured, reason: "NotLabelled", not: time.Hour},
		"draining":              {state: status.NotCaptured, reason: status.Draining, not: time.Hour},
		"older connections":     {state: status.Captured, reason: status.ReasonOldConnections, with: []func(*status.Pod){old}, not: 900 * time.Millisecond, yes: time.Second},
		"refused by one of two": {state: status.Captured, reason: status.NewProxyRefused, with: []func(*status.Pod){old}, not: 900 * time.Millisecond, yes: time.Second},
		"bypassing":             {state: status.Bypassing, reason: status.NoProxy, not: 900 * time.Millisecond, yes: time.Second},
		"blocked":               {state: status.Blocked, reason: status.NoProxy, not: 900 * time.Millisecond, yes: time.Second},
		"unsupported":           {state: status.Unsupported, reason: status.OwnNetworkStack, yes: time.Millisecond},
		"being captured":        {state: status.Pending, reason: status.Capturing, not: time.Hour},
		"waiting for a proxy":   {state: status.Pending, reason: status.NoProxy, not: 9 * time.Second, yes: 2 * time.Second},
		"its start failed":      {state: status.Pending, reason: status.NoProxy, with: []func(*status.Pod){untold}, not: 900 * time.Millisecond, yes: time.Second},
		"runs, and is unknown":  {state: status.Pending, reason: status.NetnsUnknown, with: []func(*status.Pod){untold}, not: 9 * time.Second, yes: 2 * time.Second},
		"has not been started":  {stands: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }}, state: status.Pending, reason: status.NetnsUnknown, with: []func(*status.Pod){untold}, not: time.Hour},
		"is being deleted":      {stands: []func(*corev1.Pod){func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }}, state: status.Pending, reason: status.NetnsUnknown, with: []func(*status.Pod){untold}, not: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			inNode(t, func(n *node) {
				n.is("web", test.state, test.reason, test.with...)
				if test.not > 0 {
					n.pass(test.not)
					n.wantRecorded()
				}
				if test.yes > 0 {
					n.pass(test.yes)
					n.wantRecorded(remarked(test.state, test.reason))
					n.pass(time.Hour)
					n.wantRecorded(remarked(test.state, test.reason)) // once
				}
			}, test.stands...)
		})
	}
}

// The bytes of an event, and of its series.
func TestEventBytes(t *testing.T) {
	inNode(t, func(n *node) {
		for range 2 {
			n.is("web", status.Bypassing, status.RulesFought)
			n.pass(2 * time.Second)
			n.is("web", status.Captured, status.OK)
			n.pass(2 * time.Second)
		}
		n.api.mu.Lock()
		defer n.api.mu.Unlock()
		var got []string
		for _, line := range n.api.log {
			if strings.Contains(line, "/events.k8s.io/") {
				got = append(got, line)
			}
		}
		want := []string{
			`POST /apis/events.k8s.io/v1/namespaces/shop/events {"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"web.d234ccf8dddca00","namespace":"shop"},` +
				`"eventTime":"2000-01-01T00:00:01.000000Z","reportingController":"fairlead.io/agent","reportingInstance":"node1","action":"Capture","reason":"RulesFought",` +
				`"regarding":{"kind":"Pod","namespace":"shop","name":"web","uid":"uid-web","apiVersion":"v1"},` +
				`"note":"Bypassing: so it is; remedy: ` + status.RulesFought.Remedy() + `","type":"Warning",` +
				`"deprecatedSource":{},"deprecatedFirstTimestamp":null,"deprecatedLastTimestamp":null}`,
			`PATCH /apis/events.k8s.io/v1/namespaces/shop/events/web.d234ccf8dddca00 {"series":{"count":2,"lastObservedTime":"2000-01-01T00:00:05.000000Z"}}`,
		}
		if strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Errorf("sent:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	})
}

// Each start that fails is one more of the series.
func TestFailedStartsAreCounted(t *testing.T) {
	inNode(t, func(n *node) {
		began := time.Now()
		tried := func() func(*status.Pod) {
			now := time.Now()
			return func(p *status.Pod) { p.Since, p.Tried = began, now } // all of it is one wait
		}
		for range 3 {
			try := tried()
			n.is("web", status.Pending, status.NoProxy, try)
			n.pass(5 * time.Second)
			n.is("web", status.Pending, status.NoProxy, untold, try)
			n.pass(12 * time.Second)
		}
		// The next one failed at once.
		n.is("web", status.Pending, status.NoProxy, untold, tried())
		n.pass(12 * time.Second)
		n.wantRecorded(remarked(status.Pending, status.NoProxy) + " (4 times)")
	})
}

// One pod in an endless fight, and all pods of the node at once: so many events are sent,
// nobody waits for them, and the series' number is right.
func TestEventFlood(t *testing.T) {
	inNode(t, func(n *node) {
		for range 200 {
			n.is("web", status.Bypassing, status.RulesFought)
			n.pass(1500 * time.Millisecond)
			n.is("web", status.Captured, status.OK)
			n.pass(1500 * time.Millisecond)
		}
		if sent := n.sent(); sent < 13 || sent > 16 { // 5, and one a minute for ten minutes
			t.Errorf("%d events were sent of one pod", sent)
		}
		if got := n.api.recorded(); !strings.Contains(got, "RulesFought") || strings.Contains(got, "\n") || !strings.Contains(got, " times)") {
			t.Errorf("recorded:\n%s", got)
		}
	})
	inNode(t, func(n *node) {
		for i := range 250 {
			n.api.pod("shop", fmt.Sprint("p", i), labelled)
		}
		for i := range 250 {
			n.is(fmt.Sprint("p", i), status.Blocked, status.NoProxy)
			n.pass(100 * time.Millisecond)
		}
		if sent := n.sent(); sent < 45 || sent > 55 { // 25, and one a second
			t.Errorf("%d events were sent of 250 pods", sent)
		}
	})
}

// sent counts the requests about events.
func (n *node) sent() int {
	n.api.mu.Lock()
	defer n.api.mu.Unlock()
	return strings.Count(strings.Join(n.api.log, "\n"), " /apis/events.k8s.io/")
}

// The API does not answer, or refuses: nothing else waits for it, and it is logged once.
func TestEventsAreNotWaitedFor(t *testing.T) {
	for name, answers := range map[string]func(r *http.Request) *metav1.Status{
		"slow": func(r *http.Request) *metav1.Status {
			<-r.Context().Done()
			return notFound
		},
		"forbidden": func(*http.Request) *metav1.Status {
			return failure(http.StatusForbidden, metav1.StatusReasonForbidden, "events is forbidden")
		},
	} {
		t.Run(name, func(t *testing.T) {
			inNode(t, func(n *node) {
				n.api.refusing(func(r *http.Request) *metav1.Status {
					if strings.Contains(r.URL.Path, "events.k8s.io") {
						return answers(r)
					}
					return nil
				})
				for i := range 100 {
					n.api.pod("shop", fmt.Sprint("p", i), labelled)
					n.is(fmt.Sprint("p", i), status.Blocked, status.NoProxy)
					n.pass(2 * time.Second)
				}
				for range 10 {
					n.is("web", status.Bypassing, status.NoProxy)
					n.pass(2 * time.Second)
					n.is("web", status.Captured, status.OK)
					n.pass(10 * time.Second) // other pods are written, too
					n.wantShown("web", `"enabled" True OK`)
				}
				if lines := n.logged.Lines("level=WARN"); len(lines) != 1 || !strings.Contains(lines[0], "cannot record events") {
					t.Errorf("logged %q", lines)
				}
				n.api.refusing(nil)
				n.pass(time.Hour)
				clear(n.api.events)
				n.is("web", status.Bypassing, status.NoProxy)
				n.pass(2 * time.Second)
				n.wantRecorded(remarked(status.Bypassing, status.NoProxy))
			})
		})
	}
}

// The API has not kept the event of a series: another one begins.
func TestForgottenEventIsMadeAnew(t *testing.T) {
	inNode(t, func(n *node) {
		n.is("web", status.Bypassing, status.NoProxy)
		n.pass(2 * time.Second)
		n.is("web", status.Captured, status.OK)
		n.api.mu.Lock()
		clear(n.api.events)
		n.api.mu.Unlock()
		n.is("web", status.Bypassing, status.NoProxy)
		n.pass(2 * time.Second)
		n.wantRecorded(remarked(status.Bypassing, status.NoProxy))
	})
}

// Texts without end, which a pod's author or a proxy can cause, fit into an event.
func TestLongNotesAreCut(t *testing.T) {
	long := strings.Repeat("€", 5000)
	inNode(t, func(n *node) {
		n.is("web", status.Bypassing, status.NoProxy, func(p *status.Pod) { p.Message = long })
		n.pass(2 * time.Second)
		for _, e := range n.api.events {
			if len(e.Note) > 1024 || !strings.HasSuffix(e.Note, "…") {
				t.Errorf("note of %d bytes: %s", len(e.Note), e.Note)
			}
		}
	})
}
