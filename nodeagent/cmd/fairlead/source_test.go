package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
)

func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: %q}}]\n", server)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// An apiServer has a labelled pod and one that opts out, and its watches say nothing. While it is silent its
// lists do not tell of them.
type apiServer struct {
	silent  atomic.Bool
	gets    atomic.Int32
	patched atomic.Value
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	pod := `{"metadata":{"namespace":"shop","name":"web","uid":"u1","resourceVersion":"9"},"spec":{"nodeName":"node1"}}`
	plain := `{"metadata":{"namespace":"shop","name":"plain","uid":"u2","resourceVersion":"9","labels":{"istio.io/dataplane-mode":"none"},` +
		`"annotations":{"ambient.istio.io/redirection":"enabled"}},"spec":{"nodeName":"node1"}}`
	switch query := r.URL.Query(); {
	case query.Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusBadRequest)
	case query.Get("watch") != "":
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case r.URL.Path == "/api/v1/pods" && !s.silent.Load() && query.Get("fieldSelector") == "spec.nodeName=node1":
		fmt.Fprintf(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"10"},"items":[%s,%s]}`, pod, plain)
	case r.URL.Path == "/api/v1/pods":
		fmt.Fprint(w, `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"8"},"items":[]}`)
	case r.URL.Path == "/api/v1/namespaces":
		fmt.Fprint(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"10"},`+
			`"items":[{"metadata":{"name":"shop","resourceVersion":"1","labels":{"istio.io/dataplane-mode":"ambient"}}}]}`)
	case r.URL.Path == "/api/v1/namespaces/shop/pods/web":
		s.gets.Add(1)
		fmt.Fprint(w, `{"kind":"Pod","apiVersion":"v1",`+strings.TrimPrefix(pod, "{"))
	case r.Method == http.MethodPatch:
		body, _ := io.ReadAll(r.Body)
		s.patched.Store(r.URL.Path + " " + string(body))
		w.WriteHeader(http.StatusNotFound)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

func inCluster(t *testing.T) (*apiServer, config.Config, string) {
	t.Helper()
	netlab.Kernel(t)
	api := &apiServer{}
	server := httptest.NewServer(api)
	t.Cleanup(func() {
		server.CloseClientConnections() // watches last
		server.Close()
	})
	c, file := settings(t, "nodeName: node1", "kubeconfig: "+kubeconfig(t, server.URL), "waits: {pod: 100ms}")
	return api, c, file
}

func TestAgentAsksKubernetes(t *testing.T) {
	api, c, file := inCluster(t)
	start(t, file, "")
	netlab.Eventually(t, func() error {
		out, err := run(t.Context(), "status", "-o", "json", "--run-dir", c.RunDir)
		var r report
		if err == nil {
			err = json.Unmarshal([]byte(out), &r)
		}
		if err == nil && (!r.Node.Synced || r.Node.Source != "the Kubernetes API, as node node1" || len(r.Pods) != 2 || r.Pods[1].UID != "u1" || !r.Pods[1].Intent.Capture || r.Pods[1].Annotation != "none") {
			err = fmt.Errorf("status: %s", out)
		}
		return err
	})
	// What the API shows of the other one is not so.
	netlab.Eventually(t, func() error {
		want := `/api/v1/namespaces/shop/pods/plain/status {"metadata":{"uid":"u2","annotations":{"ambient.istio.io/redirection":null}}}`
		if got := api.patched.Load(); got != want {
			return fmt.Errorf("patched %s", got)
		}
		return nil
	})
}

// The watch does not tell of a pod in time: an ADD has it asked for, and what is wrong
// next is not that the pod is unknown.
func TestAddFetchesThePod(t *testing.T) {
	api, _, file := inCluster(t)
	api.silent.Store(true)
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAgent(c, "", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.run(ctx) }()
	netlab.Eventually(t, a.ready)
	pods := kubePods{a.reconciler, a.kube, c.Waits.Pod.Duration, a.logger}
	attachment := agentapi.Attachment{Namespace: "shop", Name: "web", UID: "u1", ContainerID: "c1", Netns: "/nowhere", Interface: "eth0"}
	if err := pods.Add(ctx, attachment); err == nil || strings.Contains(err.Error(), "is known on this node yet") || api.gets.Load() != 1 {
		t.Errorf("ADD: %v, asked %d times", err, api.gets.Load())
	}
	if err := pods.Add(ctx, attachment); err == nil || api.gets.Load() != 1 {
		t.Errorf("ADD again, the pod being known: %v, asked %d times", err, api.gets.Load())
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
