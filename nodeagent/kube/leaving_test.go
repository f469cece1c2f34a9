package kube

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
)

// What the hook of the chart learns of its nodes: each is named, with what it says.
func TestLeavings(t *testing.T) {
	answers := map[string]string{
		"/apis/apps/v1/namespaces/ns/daemonsets/leave": `{"metadata": {"generation": 2}, "status": {"observedGeneration": 2, "desiredNumberScheduled": 6}}`,
		"/api/v1/namespaces/ns/pods?labelSelector=a%3Db": `{"apiVersion": "v1", "kind": "PodList", "items": [
			{"metadata": {"name": "p6"}, "spec": {"nodeName": "f"}, "status": {"initContainerStatuses": [{"state": {"running": {}}}]}},
			{"metadata": {"name": "p1"}, "spec": {"nodeName": "a"}, "status": {"initContainerStatuses": [{"state": {"terminated": {"exitCode": 0, "message": "all gone"}}}]}},
			{"metadata": {"name": "p2"}, "spec": {"nodeName": "b"}, "status": {"initContainerStatuses": [{"restartCount": 2, "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": {"exitCode": 2, "message": "1 left"}}}]}},
			{"metadata": {"name": "p3"}, "spec": {"nodeName": "c"}, "status": {"initContainerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}]}},
			{"metadata": {"name": "p4"}, "spec": {"nodeName": "d"}, "status": {"phase": "Pending"}},
			{"metadata": {"name": "p5"}, "status": {"phase": "Pending"}}]}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, known := answers[r.URL.RequestURI()]
		if !known {
			http.Error(w, r.URL.RequestURI(), http.StatusNotFound)
		}
		_, _ = w.Write([]byte(answer))
	}))
	defer server.Close()
	c, err := newClient(&rest.Config{Host: server.URL}, "test")
	if err != nil {
		t.Fatal(err)
	}
	got, all, err := c.Leavings(t.Context(), "ns", "leave", "a=b")
	if err != nil || all != 6 {
		t.Fatalf("%d nodes, %v", all, err)
	}
	want := []Leaving{
		{"(none yet, of pod p5)", false, "it has not begun; Pending"},
		{"a", true, "all gone"}, {"b", false, "tried 2 times, exit code 2: 1 left"}, {"c", false, "ImagePullBackOff"},
		{"d", false, "it has not begun; Pending"}, {"f", false, "it is at work"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	answers["/apis/apps/v1/namespaces/ns/daemonsets/leave"] = `{"metadata": {"generation": 1}, "status": {}}`
	if _, _, err := c.Leavings(t.Context(), "ns", "leave", "a=b"); err == nil {
		t.Error("a DaemonSet that nobody has looked at is counted")
	}
}
