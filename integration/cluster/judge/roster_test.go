package judge

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// watched is an event as kubectl prints it, of a pod with a UID that is also its name.
func watched(kind, uid, phase, labels string, ips ...string) string {
	for i, ip := range ips {
		ips[i] = `{"ip": "` + ip + `"}`
	}
	return fmt.Sprintf(`{"type": %q, "object": {"apiVersion": "v1", "kind": "Pod",
    "metadata": {"namespace": "default", "name": %q, "uid": %[2]q, "creationTimestamp": "1999-12-31T00:00:00Z", "labels": {%s}},
    "spec": {"nodeName": "n1", "hostNetwork": %t}, "status": {"phase": %q, "podIPs": [%s]}}}
`, kind, uid, labels, uid == "agent", phase, strings.Join(ips, ", "))
}

func TestRoster(t *testing.T) {
	const ambient = `"istio.io/dataplane-mode": "ambient"`
	synctest.Test(t, func(t *testing.T) {
		r := Roster{
			Captured:  func(_ string, labels map[string]string) bool { return labels["istio.io/dataplane-mode"] == "ambient" },
			OnPurpose: func(_ string, labels map[string]string) bool { return labels["bypass"] == "on-purpose" },
		}
		err := r.Read(strings.NewReader(
			watched("ADDED", "agent", "Running", "", "172.30.0.11") +
				watched("ADDED", "web", "Pending", ambient) +
				watched("MODIFIED", "web", "Running", ambient, "10.244.1.5", "fd00::1:5") +
				watched("ADDED", "job", "Succeeded", ambient, "10.244.1.6") +
				watched("MODIFIED", "job", "Succeeded", ambient) +
				watched("ADDED", "never", "Pending", ambient) +
				watched("ADDED", "bypasser", "Running", `"bypass": "on-purpose"`, "10.244.1.7") +
				watched("ADDED", "gone", "Running", "", "10.244.1.8") +
				watched("DELETED", "gone", "Running", "", "10.244.1.8") +
				watched("ADDED", "moved", "Running", "", "10.244.1.9") +
				watched("MODIFIED", "moved", "Running", "", "10.244.1.10")))
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, p := range r.Pods() {
			to := "now"
			if p.To.IsZero() {
				to = "on"
			} else if !p.To.Equal(time.Now()) {
				to = p.To.String()
			}
			got[p.name()] = fmt.Sprintf("%s %v captured=%t on-purpose=%t from %d until %s", p.Node, p.Addrs, p.Captured, p.OnPurpose, p.From.Year(), to)
		}
		want := map[string]string{
			"default/web":      "n1 [10.244.1.5 fd00::1:5] captured=true on-purpose=false from 1999 until on",
			"default/job":      "n1 [10.244.1.6] captured=true on-purpose=false from 1999 until now",
			"default/bypasser": "n1 [10.244.1.7] captured=false on-purpose=true from 1999 until on",
			"default/gone":     "n1 [10.244.1.8] captured=false on-purpose=false from 1999 until now",
			"default/moved":    "n1 [10.244.1.9 10.244.1.10] captured=false on-purpose=false from 1999 until on",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if err := r.Read(strings.NewReader(watched("ADDED", "late", "Running", "") + "{")); err == nil {
			t.Error("a stream that is cut off was read without an error")
		}
	})
}
