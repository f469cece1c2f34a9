package status_test

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

var update = flag.Bool("update", false, "write the golden files anew")

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func ago(d time.Duration) time.Time { return now.Add(-d) }

// pods is one of each kind that a person can meet.
func pods() []status.Pod {
	acked := []status.Ack{{Session: 1, PID: 4242, State: "acked", Since: ago(time.Hour)}}
	up := status.Listeners{Known: true, Outbound: true, Inbound: true, HBONE: true, DNS: true}
	return []status.Pod{
		{
			Namespace: "shop", Name: "cart", UID: "u1", State: status.Captured, Reason: status.OK,
			Rules: status.Rules{State: "full", DNS: true}, Listeners: up, Proxies: acked, Since: ago(25 * time.Hour),
		},
		{
			Namespace: "shop", Name: "legacy", UID: "u2", State: status.Captured, Reason: status.ReasonOldConnections,
			Message: "the pod ran before it was captured", Remedy: status.ReasonOldConnections.Remedy(),
			Rules: status.Rules{State: "syn", DNS: true}, Listeners: up, Proxies: acked, Since: ago(59 * time.Second),
		},
		{
			Namespace: "shop", Name: "pay", UID: "u3", State: status.Bypassing, Reason: status.NoProxy,
			Message: "no node proxy is connected to the agent", Remedy: status.NoProxy.Remedy(),
			Rules: status.Rules{State: "marks"}, Listeners: status.Listeners{Known: true}, Since: ago(90 * time.Second),
		},
		{
			Namespace: "shop", Name: "early", State: status.Pending, Reason: status.NetnsUnknown,
			Message: "the runtime has not told the agent", Rules: status.Rules{State: status.Unknown},
			Intent: status.Intent{Warnings: []string{"annotation a: \"x\" is neither true nor false; ignored"}},
		},
		{
			Namespace: "tools", Name: "shell\x1b[2J\n", UID: "u5", State: status.NotCaptured, Reason: "NotLabelled",
			Message: "no enablement selector matches", Rules: status.Rules{State: "none"}, Since: ago(0),
		},
	}
}

func node() status.Node {
	return status.Node{
		Version: "v0.1.0", Started: ago(26*time.Hour + 5*time.Minute), Source: "the manifests in /etc/pods", Synced: true,
		Proxies: []status.Proxy{{Session: 1, PID: 4242, State: "synced", Since: ago(time.Hour), Workloads: 2}},
	}
}

func TestTable(t *testing.T) {
	bare := node()
	troubled := node()
	troubled.Proxies = append(troubled.Proxies,
		status.Proxy{PID: 7, State: "hello", Since: ago(time.Second), EndedBadly: 1, Why: "the proxy speaks version 2, this agent speaks version 1"},
		status.Proxy{PID: 8, State: "held", Since: ago(time.Second), EndedBadly: 2, Why: "no answer to add of shop/web (u1) within 10s"})
	alike := slices.Concat(pods()[:4], pods()[2:3])
	alike[4].Name = "pay-2"
	alike[0].Intent.Warnings = pods()[3].Intent.Warnings // the same is not to be said of it
	bare.Proxies, bare.Synced, bare.Problems = nil, false, []string{"a.yaml: document 1: not YAML"}
	for name, test := range map[string]struct {
		node status.Node
		pods []status.Pod
	}{
		"all":   {node(), pods()},
		"empty": {bare, nil},
		"one":   {node(), pods()[:1]},
		"held":  {troubled, pods()[:1]},
		"alike": {node(), alike},
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := status.WriteTable(&b, test.node, test.pods, now); err != nil {
				t.Fatal(err)
			}
			golden := "testdata/" + name + ".txt"
			if *update {
				if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if b.String() != string(want) {
				t.Errorf("got\n%s\nwant\n%s", b.String(), want)
			}
			if strings.Contains(b.String(), "\x1b") {
				t.Error("a pod's name reaches the terminal's control sequences")
			}
		})
	}
}

// A hundred pods with one trouble are one trouble.
func TestManyAlike(t *testing.T) {
	for n, want := range map[int]string{1: "shop/a is", 2: "shop/a and shop/b are", 3: "shop/a, shop/b and shop/c are", 4: "shop/a, shop/b, shop/c and 1 more are", 26: "shop/a, shop/b, shop/c and 23 more are"} {
		var crowd []status.Pod
		for i := range n {
			p := pods()[2]
			p.Name = string(rune('a' + i))
			crowd = append(crowd, p)
		}
		var b strings.Builder
		if err := status.WriteTable(&b, node(), crowd, now); err != nil {
			t.Fatal(err)
		}
		want += " Bypassing (NoProxy)"
		if got := strings.Count(b.String(), " Bypassing (NoProxy)\n"); got != 1 || !strings.Contains(b.String(), "\n"+want+"\n") {
			t.Errorf("%d pods: not %q, once, but\n%s", n, want, b.String())
		}
	}
}

type brokenWriter struct{ left int }

func (w *brokenWriter) Write(b []byte) (int, error) {
	if w.left--; w.left < 0 {
		return 0, os.ErrClosed
	}
	return len(b), nil
}

func TestTableReportsAFailedWrite(t *testing.T) {
	const enough = 10000
	for n := range enough {
		if err := status.WriteTable(&brokenWriter{left: n}, node(), pods(), now); err == nil {
			if n < 10 {
				t.Errorf("after %d writes the rest is not missed", n)
			}
			return
		}
	}
	t.Error("the table never gets through")
}

func TestExitCode(t *testing.T) {
	pod := func(s status.State, age time.Duration) status.Pod { return status.Pod{State: s, Since: ago(age)} }
	for name, test := range map[string]struct {
		want int
		pods []status.Pod
	}{
		"none":                       {status.ExitOK, nil},
		"as intended":                {status.ExitOK, []status.Pod{pod(status.Captured, 0), pod(status.NotCaptured, 0)}},
		"pending for a moment":       {status.ExitOK, []status.Pod{pod(status.Pending, 30*time.Second)}},
		"pending too long":           {status.ExitAttention, []status.Pod{pod(status.Pending, 61*time.Second)}},
		"pending since nobody knows": {status.ExitAttention, []status.Pod{{State: status.Pending}}},
		"blocked":                    {status.ExitAttention, []status.Pod{pod(status.Blocked, 0)}},
		"unsupported":                {status.ExitAttention, []status.Pod{pod(status.Unsupported, 0), pod(status.Captured, 0)}},
		"bypassing":                  {status.ExitBypassing, []status.Pod{pod(status.Bypassing, 0)}},
		"bypassing and blocked":      {status.ExitBypassing, []status.Pod{pod(status.Blocked, 0), pod(status.Bypassing, 0)}},
	} {
		if got := status.ExitCode(test.pods, now); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

// What is not known must not look like a zero, or be left out.
func TestJSONSaysWhatIsNotKnown(t *testing.T) {
	raw, err := json.Marshal(status.Pod{Rules: status.Rules{State: status.Unknown}, Annotation: status.Unknown})
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(raw, &got); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"intent", "netns", "rules", "listeners", "proxies", "oldConnections", "annotation", "state", "reason", "since"} {
		if _, ok := got[field]; !ok {
			t.Errorf("%s is left out of %s", field, raw)
		}
	}
	for _, field := range []string{"netns", "listeners", "oldConnections"} {
		if known := got[field].(map[string]any)["known"]; known != false {
			t.Errorf("%s.known is %v", field, known)
		}
	}
}

func TestEveryAlarmHasARemedy(t *testing.T) {
	for _, r := range []status.Reason{
		status.ReasonOldConnections, status.ProxyWithoutDNS, status.PodUnknown, status.ObjectGone, status.NetnsUnknown,
		status.NetnsRefused, status.NoProxy, status.NoAnswer, status.ProxyRefused, status.NoListeners, status.KernelRefused,
	} {
		if r.Remedy() == "" {
			t.Errorf("%s has no remedy", r)
		}
	}
	if r := status.OK.Remedy(); r != "" {
		t.Errorf("nothing is wrong, yet: %s", r)
	}
}
