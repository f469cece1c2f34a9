package status

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLeft(t *testing.T) {
	none, marks, unknown := Rules{State: "none"}, Rules{State: "marks"}, Rules{State: Unknown}
	known, asks := Netns{Known: true}, Intent{Reason: string(NodeDrained)}
	for name, test := range map[string]struct {
		pod             Pod
		left, toRelease bool
	}{
		"captured":                      {Pod{State: Captured, Reason: OK, Netns: known, Rules: Rules{State: "full"}}, true, true},
		"bypassing":                     {Pod{State: Bypassing, Rules: none, Netns: known}, true, true},
		"blocked":                       {Pod{State: Blocked, Rules: Rules{State: "full"}, Netns: known}, true, true},
		"draining":                      {Pod{State: NotCaptured, Reason: Draining, Rules: marks, Netns: known, Intent: asks}, true, true},
		"withdrawing":                   {Pod{State: NotCaptured, Reason: Withdrawing, Rules: none, Netns: known, Intent: asks}, true, true},
		"the kernel refuses":            {Pod{State: Pending, Reason: KernelRefused, Rules: marks, Netns: known, Intent: asks}, true, true},
		"its object is gone, it is not": {Pod{State: NotCaptured, Reason: ObjectGone, Rules: marks, Netns: known}, true, true},
		"the API shows another thing":   {Pod{State: NotCaptured, Reason: NodeDrained, Rules: none, Netns: known, Intent: asks, Annotation: "enabled"}, true, true},
		"not found":                     {Pod{State: Pending, Reason: NetnsUnknown, Rules: unknown, Intent: asks}, true, true},
		"released":                      {Pod{State: NotCaptured, Reason: NodeDrained, Rules: none, Netns: known, Intent: asks, Annotation: "none"}, false, true},
		"did not start":                 {Pod{State: Pending, Reason: NodeDrained, Rules: unknown, Intent: asks}, false, false},
		"never asked":                   {Pod{State: NotCaptured, Reason: "NotLabelled", Rules: none, Netns: known}, false, false},
		"never asked, and is not found": {Pod{State: NotCaptured, Reason: "NotLabelled", Rules: unknown}, false, false},
		"cannot be":                     {Pod{State: Unsupported, Reason: OwnNetworkStack, Rules: none, Netns: known}, false, false},
	} {
		if left, toRelease := test.pod.Left(), test.pod.ToRelease(); left != test.left || toRelease != test.toRelease {
			t.Errorf("%s: left %t, to be released %t", name, left, toRelease)
		}
	}
}

func TestWriteReleased(t *testing.T) {
	pods := []Pod{
		{Namespace: "shop", Name: "web", State: NotCaptured, Reason: NodeDrained, Rules: Rules{State: "none"}, Remedy: "go on"},
		{Namespace: "shop", Name: "db", State: Pending, Reason: KernelRefused, Rules: Rules{State: "marks"}, Message: "EPERM", Remedy: "look at the error"},
		{Namespace: "shop", Name: "api", State: NotCaptured, Reason: NodeDrained, Rules: Rules{State: "none"}, Annotation: "enabled", Remedy: "go on"},
	}
	var out strings.Builder
	if err := WriteReleased(&out, pods); err != nil {
		t.Fatal(err)
	}
	if err := WriteReleased(&out, nil); err != nil {
		t.Fatal(err)
	}
	if err := WriteSteps(&out, []Step{{"/run/x", Removed, ""}, {"/opt/y", Kept, "rm /opt/y"}}); err != nil {
		t.Fatal(err)
	}
	want := `NAMESPACE  POD  RELEASED  STATE        REASON
shop       web  yes       NotCaptured  NodeDrained
shop       db   no        Pending      KernelRefused
shop       api  no        NotCaptured  NodeDrained

1 released, 2 left

shop/db is Pending (KernelRefused)
  EPERM
  remedy: look at the error

shop/api is NotCaptured (NodeDrained)
  nothing of ours is in it, but the Kubernetes API still shows that it is captured, so that proxies elsewhere may speak to one here
  remedy: see what fairlead status says of the API; the annotation goes by itself once it can be written
there is no pod to be released
removed  /run/x
kept     /opt/y  rm /opt/y
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
