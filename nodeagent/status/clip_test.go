package status_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// flood fills every text and list of v, those that are added later too, with what
// takes the most room. States and reasons are our own words.
func flood(v reflect.Value) {
	switch v.Interface().(type) {
	case status.State, status.Reason:
		v.SetString("Word")
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(strings.Repeat("\x01", 20_000))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 200, 200))
		for i := range v.Len() {
			flood(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				flood(v.Field(i))
			}
		}
	case reflect.Bool:
		v.SetBool(true)
	}
}

func TestBriefAlwaysFits(t *testing.T) {
	var node status.Node
	var pod status.Pod
	flood(reflect.ValueOf(&node).Elem())
	flood(reflect.ValueOf(&pod).Elem())
	for name, item := range map[string]any{"node": node.Brief(), "pod": pod.Brief()} {
		raw, err := json.Marshal(item)
		if err != nil || len(raw) > agentapi.MaxMessage*3/4 {
			t.Errorf("%s: %d bytes, %v", name, len(raw), err)
		}
		if !strings.Contains(string(raw), "too long to be sent and is shortened; 200 proxies") {
			t.Errorf("%s does not say that it is shortened", name)
		}
	}
	if got := pod.Brief(); got.State != "Word" || got.Reason != "Word" || !got.Intent.Capture || !got.Listeners.Ready() {
		t.Errorf("the state got lost: %+v", got)
	}
}

// What is of a usual size is not touched.
func TestUsualReportsStay(t *testing.T) {
	if diff := cmp.Diff(node(), node().Clip()); diff != "" {
		t.Errorf("node (-want +got):\n%s", diff)
	}
	for _, pod := range pods() {
		if diff := cmp.Diff(pod, pod.Clip()); diff != "" {
			t.Errorf("pod (-want +got):\n%s", diff)
		}
		brief := pod.Brief()
		if brief.Namespace != pod.Namespace || brief.Name != pod.Name || brief.State != pod.State || brief.Reason != pod.Reason ||
			brief.Message != pod.Message || !brief.Since.Equal(pod.Since) {
			t.Errorf("%+v is not %+v in brief", brief, pod)
		}
	}
}

func TestClip(t *testing.T) {
	long := strings.Repeat("€", 1000)
	var lines []string
	for i := range 600 {
		lines = append(lines, fmt.Sprintf("line %d", i))
	}
	node := status.Node{Problems: append([]string{long}, lines...)}
	pod := status.Pod{
		Message: long, Intent: status.Intent{Message: long, Warnings: lines},
		Proxies: []status.Ack{{Text: long}, {Text: "boom"}},
	}
	before := fmt.Sprint(node, pod)
	gotNode, gotPod := node.Clip(), pod.Clip()
	if fmt.Sprint(node, pod) != before {
		t.Error("what others still use has been changed")
	}
	for name, text := range map[string]string{
		"problem": gotNode.Problems[0], "message": gotPod.Message, "intent": gotPod.Intent.Message, "proxy": gotPod.Proxies[0].Text,
	} {
		if len(text) > 1100 || !strings.HasSuffix(text, "€…") {
			t.Errorf("%s is %d bytes that end with %q", name, len(text), text[len(text)-6:])
		}
	}
	if gotPod.Proxies[1].Text != "boom" {
		t.Errorf("a short text was changed: %q", gotPod.Proxies[1].Text)
	}
	if n := gotNode.Problems; len(n) != 21 || n[20] != "… 581 more" {
		t.Errorf("%d problems, the last is %q", len(n), n[len(n)-1])
	}
	if want := append(slices.Clone(lines[:20]), "… 580 more"); !slices.Equal(gotPod.Intent.Warnings, want) {
		t.Errorf("warnings %q", gotPod.Intent.Warnings)
	}
}
