package nodeproxy_test

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/integration/nodeproxy"
)

// get asks the proxy's HTTP handler.
func (n *node) get(path string) (status int, body string) {
	n.t.Helper()
	w := httptest.NewRecorder()
	n.proxy.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestReadinessOverHTTP(t *testing.T) {
	n := newNode(t, nodeproxy.Config{})
	l := n.accept()
	n.wantUnready("snapshot")
	if status, body := n.get("/healthz/ready"); status != http.StatusServiceUnavailable || body != "the agent has not sent its snapshot yet\n" {
		t.Errorf("before the snapshot: %d %q", status, body)
	}
	l.wantAck(snapshot())
	n.wantReady()
	if status, body := n.get("/healthz/ready"); status != 200 || body != "ready\n" {
		t.Errorf("after the snapshot: %d %q", status, body)
	}
	l.wantNack(add("uid0"), noNamespace(t), "not a namespace")
	if status, body := n.get("/healthz/ready"); status != http.StatusServiceUnavailable || !strings.HasPrefix(body, "workload uid0 is pending: not a namespace") {
		t.Errorf("with a pending workload: %d %q", status, body)
	}
	if status, _ := n.get("/elsewhere"); status != 404 {
		t.Errorf("elsewhere: %d", status)
	}
}

func TestConfigDump(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, nodeproxy.Config{})
	l := n.acceptSynced()
	app := netlab.NewNS(t, "app")
	l.add("uid0", app)
	l.wantNack(add("uid1"), noNamespace(t), "not a namespace")
	status, body := n.get("/config_dump")
	if status != 200 {
		t.Errorf("status %d", status)
	}
	var got map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	none := map[string]any{"outbound": 0., "inbound": 0., "hbone": 0., "dns": 0.}
	want := map[string]any{
		"relayed":  none,
		"untagged": 0.,
		"workloadState": map[string]any{
			"uid0": map[string]any{
				"state":       "Up",
				"info":        map[string]any{"name": "name-uid0", "namespace": "ns", "serviceAccount": "sa"},
				"netns":       app.Handle.ID().String(),
				"connections": map[string]any{"inbound": []any{}, "outbound": []any{}},
				"relayed":     none,
				"untagged":    0.,
			},
			"uid1": map[string]any{
				"state":       "Pending",
				"error":       "not a namespace: nothing of type nsfs is mounted here (the namespace is gone, or was never here)",
				"info":        map[string]any{"name": "name-uid1", "namespace": "ns", "serviceAccount": "sa"},
				"connections": map[string]any{"inbound": []any{}, "outbound": []any{}},
				"relayed":     none,
				"untagged":    0.,
			},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestHTTPIsServedWhileTheProxyRuns(t *testing.T) {
	var addrs []string
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, l.Addr().String())
		defer l.Close()
		_ = l.Close() // free again, and nobody else's for a while
	}
	n := newNode(t, nodeproxy.Config{Admin: addrs[0], Readiness: addrs[1]})
	n.acceptSynced()
	n.wantReady()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, addr := range addrs {
		response, err := client.Get("http://" + addr + "/healthz/ready")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close() // all of it has been read
		if response.StatusCode != http.StatusOK || string(body) != "ready\n" || err != nil {
			t.Errorf("%s: %s %q, %v", addr, response.Status, body, err)
		}
	}
	n.stop()
	if err := <-n.ended; err != nil {
		t.Error(err)
	}
	for _, addr := range addrs {
		if c, err := net.Dial("tcp", addr); err == nil {
			_ = c.Close() // it should not be there
			t.Errorf("%s is still served", addr)
		}
	}
}
