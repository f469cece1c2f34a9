package clusterbench

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
)

func TestParseTally(t *testing.T) {
	const metric = `containerd_cri_network_plugin_operations_duration_seconds_seconds`
	for name, tt := range map[string]struct {
		metrics string
		want    tally
		wrong   bool
	}{
		"no pod yet": {"# HELP " + metric + " latency\ngo_threads 9\n", tally{}, false},
		"some": {metric + `_bucket{operation_type="set_up_pod",le="0.1"} 1` + "\n" +
			metric + `_sum{operation_type="tear_down_pod"} 7` + "\n" + metric + `_count{operation_type="tear_down_pod"} 8` + "\n" +
			metric + `_sum{operation_type="set_up_pod"} 0.25` + "\n" + metric + `_count{operation_type="set_up_pod"} 2` + "\n",
			tally{2, 250 * time.Millisecond}, false},
		"garbage": {metric + `_sum{operation_type="set_up_pod"} x` + "\n", tally{}, true},
	} {
		got, err := parseTally(tt.metrics)
		if got != tt.want || (err != nil) != tt.wrong {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, tt.want)
		}
	}
}

const auditLog = `
{"auditID":"a","stage":"ResponseComplete","verb":"patch","user":{"username":"agent"},"objectRef":{"resource":"pods","namespace":"n","name":"pod-0","subresource":"status"},"requestReceivedTimestamp":"2026-01-01T00:00:09.999999Z"}
{"auditID":"b","stage":"ResponseStarted","verb":"watch","user":{"username":"agent"},"objectRef":{"resource":"pods"},"requestReceivedTimestamp":"2026-01-01T00:00:10.000000Z"}
{"auditID":"b","stage":"ResponseComplete","verb":"watch","user":{"username":"agent"},"objectRef":{"resource":"pods"},"requestReceivedTimestamp":"2026-01-01T00:00:10.000000Z"}
{"auditID":"c","stage":"ResponseComplete","verb":"get","user":{"username":"node"},"requestURI":"/healthz","requestReceivedTimestamp":"2026-01-01T00:00:11.000000Z"}
{"auditID":"d","stage":"ResponseComplete","verb":"patch","user":{"username":"agent"},"objectRef":{"resource":"pods","namespace":"n","name":"pod-0","subresource":"status"},"requestReceivedTimestamp":"2026-01-01T00:00:12.500000Z"}
`

func TestReadAudit(t *testing.T) {
	from := time.Date(2026, 1, 1, 0, 0, 10, 0, time.UTC)
	got, err := readAudit(strings.NewReader(strings.TrimSpace(auditLog)), "agent", from)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, r := range got {
		kinds = append(kinds, r.RequestReceivedTimestamp.Sub(from).String()+" "+r.kind()+" "+r.ObjectRef.Name)
	}
	if diff := cmp.Diff([]string{"0s watch pods ", "2.5s patch pods/status pod-0"}, kinds); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if _, err := readAudit(strings.NewReader("{"), "agent", from); err == nil {
		t.Error("half a line was read")
	}
}

func TestParseAdded(t *testing.T) {
	const out = `1767225612.004000000
{"kind":"cniCacheV1","cniArgs":[["K8S_POD_NAME","pod-0"],["IgnoreUnknown","1"],["K8S_POD_NAMESPACE","n"]],"result":{}}
1767225613.000000001
{"kind":"cniCacheV1","cniArgs":[["K8S_POD_NAME","pod-1"],["K8S_POD_NAMESPACE","other"]],"result":{}}
`
	got, err := parseAdded(out, "n")
	want := map[string]time.Time{"pod-0": time.Date(2026, 1, 1, 0, 0, 12, 4_000_000, time.UTC)}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, out := range []string{"now\n{}", "1.0\n{"} {
		if _, err := parseAdded(out, "n"); err == nil {
			t.Errorf("%q was read", out)
		}
	}
}

// A request that comes before the ADD's end is counted, and so is one that has nothing
// to do with the pods.
func TestCompareRequests(t *testing.T) {
	end := time.Date(2026, 1, 1, 0, 0, 10, 0, time.UTC)
	about := func(name string, after time.Duration) request {
		r := request{Verb: "patch", RequestReceivedTimestamp: end.Add(after)}
		r.ObjectRef.Resource, r.ObjectRef.Subresource, r.ObjectRef.Namespace, r.ObjectRef.Name = "pods", "status", "n", name
		return r
	}
	added := map[string]time.Time{"pod-0": end, "pod-1": end}
	agent := []request{{Verb: "watch"}, about("pod-0", 3*time.Millisecond), about("pod-1", -time.Millisecond), about("pod-1", 9*time.Millisecond)}
	node := []request{about("pod-0", 0), about("pod-1", 0), about("", 0), {Verb: "get"}}
	got, err := compareRequests(agent, node, added, "n", 2)
	if err != nil {
		t.Fatal(err)
	}
	want := []figures.Measure{
		{
			What: "API requests of the agent, per start of a captured pod", Value: 2, Budget: figures.AtMost(1),
			Others: []figures.Other{{Name: "the kubelet's, per pod start", Value: 1.5}},
			Note:   "by the API server's audit log, all of the agent's while 2 pods started, 2 of them captured: map[patch pods/status:3 watch :1]",
		},
		{
			What: "API requests of the agent, before the pod's ADD has ended", Value: 1, Budget: figures.AtMost(0),
			Note: "the earliest reached the API server -1.0 ms after libcni's result of the ADD was written, whose time is that of the kernel's last tick",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	later := []request{{Verb: "watch"}, about("pod-0", 3*time.Millisecond), about("pod-1", 2*time.Millisecond)}
	if got, err := compareRequests(later, node, added, "n", 2); err != nil || got[1].Value != 0 || !strings.Contains(got[1].Note, "server 2.0 ms after") {
		t.Errorf("all of them later: %+v, %v", got, err)
	}
	if _, err := compareRequests(agent, nil, added, "n", 2); err == nil {
		t.Error("no request of the kubelet's was found, and nothing said")
	}
	if _, err := compareRequests(agent, node, added, "n", 3); err == nil {
		t.Error("a pod without a result was not missed")
	}
}

func TestUnknownRow(t *testing.T) {
	if _, err := Run(t.Context(), Options{Rows: []string{"cluster-start", "nonsense"}}); err == nil || !strings.Contains(err.Error(), `no row "nonsense"`) {
		t.Errorf("got %v", err)
	}
}
