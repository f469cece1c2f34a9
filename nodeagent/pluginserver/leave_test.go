package pluginserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/pluginserver"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

var drainRequest = agentapi.Request{Drain: &agentapi.DrainRequest{}}

// shows changes what is reported.
func (p *pods) shows(report ...status.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.report = report
}

func drained(name string, state status.State, reason status.Reason, rules string) status.Pod {
	return status.Pod{
		Namespace: "shop", Name: name, State: state, Reason: reason,
		Intent: status.Intent{Reason: string(status.NodeDrained)}, Netns: status.Netns{Known: true}, Rules: status.Rules{State: rules},
	}
}

// Each pod is told of when there is news, and the end is when nothing is left.
func TestDrain(t *testing.T) {
	plain := status.Pod{Namespace: "shop", Name: "plain", State: status.NotCaptured, Reason: "NotLabelled", Netns: status.Netns{Known: true}, Rules: status.Rules{State: "none"}}
	late := drained("late", status.Pending, status.NodeDrained, status.Unknown) // it did not start
	late.Netns.Known = false
	p := &pods{}
	p.shows(plain, drained("db", status.NotCaptured, status.NodeDrained, "none"), drained("web", status.Captured, status.OK, "full"), drained("gone", status.NotCaptured, status.Draining, "marks"))
	steps := [][]status.Pod{
		{plain, drained("web", status.NotCaptured, status.Draining, "marks"), late},
		{plain, drained("web", status.NotCaptured, status.NodeDrained, "none")},
	}
	client, _ := serve(t, p)
	var got []string
	err := client.Stream(t.Context(), drainRequest, func(line json.RawMessage) error {
		var pod status.Pod
		if err := json.Unmarshal(line, &pod); err != nil {
			return err
		}
		got = append(got, pod.Name+" "+string(pod.State)+" "+string(pod.Reason))
		if len(steps) > 0 && (len(got) == 3 || len(got) == 5) {
			p.shows(steps[0]...)
			steps = steps[1:]
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	want := []string{
		"db NotCaptured NodeDrained", "web Captured OK", "gone NotCaptured Draining",
		"web NotCaptured Draining",
		"db NotCaptured Deleted", "gone NotCaptured Deleted", "web NotCaptured NodeDrained",
	}
	slices.Sort(got[3:])
	slices.Sort(want[3:])
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"drain true "}, p.heard()); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// While not all pods are known nobody can say that nothing is left.
func TestDrainBeforePodsAreKnown(t *testing.T) {
	p := &pods{}
	client, stop := serve(t, p, func(c *pluginserver.Config) { c.Node = func() status.Node { return status.Node{} } })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- client.Stream(ctx, drainRequest, func(json.RawMessage) error { return nil })
	}()
	netlab.Eventually(t, func() error {
		if len(p.heard()) == 0 {
			return errors.New("not asked yet")
		}
		return nil
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	stop() // it returns: nobody is served any more
}

func TestDrainThatFails(t *testing.T) {
	p := &pods{answers: map[string]error{"drain false": errors.New("the node was uninstalled")}}
	client, _ := serve(t, p)
	err := client.Stream(t.Context(), agentapi.Request{Drain: &agentapi.DrainRequest{Undo: true}}, func(json.RawMessage) error { return nil })
	var e *agentapi.Error
	if !errors.As(err, &e) || e.Message != "the node was uninstalled" {
		t.Errorf("got %v", err)
	}
}

// What was done is told, even if the next thing fails.
func TestUninstall(t *testing.T) {
	for _, failure := range []error{nil, errors.New("a read-only file system")} {
		p := &pods{answers: map[string]error{"uninstall": failure}}
		client, _ := serve(t, p)
		var got []string
		err := client.Stream(t.Context(), agentapi.Request{Uninstall: &agentapi.UninstallRequest{}}, func(line json.RawMessage) error {
			got = append(got, string(line))
			return nil
		})
		if (err == nil) != (failure == nil) {
			t.Errorf("got %v, want %v", err, failure)
		}
		if diff := cmp.Diff([]string{`{"what":"the list","outcome":"removed"}`}, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}
