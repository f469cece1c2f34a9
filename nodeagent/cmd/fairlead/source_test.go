package main

import (
	"context"
	"encoding/json"
	"errors"
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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
	"github.com/fairlead-mesh/fairlead/ztunnelproto"
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

// An apiServer has a labelled pod and one that opts out, and its watches say nothing. While
// it is silent its lists do not tell of them.
type apiServer struct {
	silent  atomic.Bool
	gets    atomic.Int32
	refused atomic.Bool   // nobody may get a pod
	late    chan struct{} // closed when namespaces are listed; nil: at once
	asked   atomic.Int32  // for namespaces
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
		s.asked.Add(1)
		if s.late != nil {
			select {
			case <-r.Context().Done():
			case <-s.late:
			}
		}
		fmt.Fprint(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"10"},`+
			`"items":[{"metadata":{"name":"shop","resourceVersion":"1","labels":{"istio.io/dataplane-mode":"ambient"}}}]}`)
	case r.URL.Path == "/apis/node.k8s.io/v1/runtimeclasses":
		fmt.Fprint(w, `{"kind":"RuntimeClassList","apiVersion":"node.k8s.io/v1","metadata":{"resourceVersion":"10"},"items":[]}`)
	case r.URL.Path == "/api/v1/namespaces/system/pods/agent-x":
		fmt.Fprint(w, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"ownerReferences":[{"kind":"DaemonSet","name":"fairlead","controller":true}]}}`)
	case r.URL.Path == "/apis/apps/v1/namespaces/system/daemonsets/fairlead":
		fmt.Fprint(w, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"creationTimestamp":"2026-01-02T03:04:05Z"}}`)
	case r.URL.Path == "/api/v1/namespaces/shop/pods/web" && s.refused.Load():
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"who are you","reason":%q,"code":401}`, metav1.StatusReasonUnauthorized)
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
	c, file := settings(t, "nodeName: node1", "kubeconfig: "+kubeconfig(t, server.URL), "waits: {pod: 2s}")
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

// runAgent runs an agent in the test's process until the end of the test.
func runAgent(t *testing.T, file string) (*agent, kubePods) {
	t.Helper()
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	return runConfigured(t, c)
}

func runConfigured(t *testing.T, c config.Config) (*agent, kubePods) {
	t.Helper()
	a, err := newAgent(c, "", false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- a.run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return a, kubePods{a.reconciler, a.kube, c.Waits.Pod.Duration}
}

var web = agentapi.Attachment{Namespace: "shop", Name: "web", UID: "u1", ContainerID: "c1", Netns: "/nowhere", Interface: "eth0"}

// The watch does not tell of a pod in time: an ADD has it asked for, and what is wrong
// next is not that the pod is unknown.
func TestAddFetchesThePod(t *testing.T) {
	api, _, file := inCluster(t)
	api.silent.Store(true)
	a, pods := runAgent(t, file)
	netlab.Eventually(t, a.ready)
	if err := pods.Add(t.Context(), web); err == nil || strings.Contains(err.Error(), "is known on this node yet") || api.gets.Load() != 1 {
		t.Errorf("ADD: %v, asked %d times", err, api.gets.Load())
	}
	if err := pods.Add(t.Context(), web); err == nil || api.gets.Load() != 1 {
		t.Errorf("ADD again, the pod being known: %v, asked %d times", err, api.gets.Load())
	}
}

// An ADD that fails because the API does not say says what it said instead, and what helps.
func TestAddSaysWhyThePodIsNotKnown(t *testing.T) {
	api, _, file := inCluster(t)
	api.silent.Store(true)
	api.refused.Store(true)
	a, pods := runAgent(t, file)
	netlab.Eventually(t, a.ready)
	err := pods.Add(t.Context(), web)
	var failure *enroll.Failure
	if !errors.As(err, &failure) || failure.Reason != status.APIUnavailable ||
		!strings.HasPrefix(failure.Message, "not captured: cannot get pod shop/web from the API at http://127.0.0.1:") ||
		!strings.HasSuffix(failure.Message, ": who are you (look whether the agent's token, or its kubeconfig, is expired or another cluster's)") {
		t.Errorf("ADD: %v", err)
	}
}

// When the agent was installed its configuration says, or the API of its own DaemonSet.
func TestPromised(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "system")
	t.Setenv("POD_NAME", "agent-x")
	_, _, file := inCluster(t)
	a, _ := runAgent(t, file)
	netlab.Eventually(t, a.ready)
	if got := a.promised().UTC().Format(time.RFC3339); got != "2026-01-02T03:04:05Z" {
		t.Errorf("by the DaemonSet %s", got)
	}
	said := &agent{kube: a.kube, config: config.Config{Installed: metav1.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)}}
	if got := said.promised().UTC().Format(time.RFC3339); got != "2025-01-01T00:00:00Z" {
		t.Errorf("by the configuration %s", got)
	}
}

// What proxies may have of pods is not ended because their namespaces are not known yet.
func TestSnapshotWaitsForNamespaces(t *testing.T) {
	api, c, file := inCluster(t)
	api.late = make(chan struct{})
	runAgent(t, file)
	proxy := hello(t, c)
	netlab.Eventually(t, func() error {
		if api.asked.Load() == 0 {
			return errors.New("namespaces are not asked for")
		}
		return nil
	})
	if there, err := proxy.Ready(); there || err != nil {
		t.Errorf("something was sent before namespaces are known, %v", err)
	}
	close(api.late)
	if got := requests(t, proxy, 2); got != `keep:{uid:"u1"}, snapshot_sent:{}` {
		t.Errorf("sent %s", got)
	}
}

// While the API says nothing of the node, proxies are told of the pods on record: those
// that were captured stay so, whoever is restarted. The agent itself is not ready then.
func TestSnapshotOfTheRecords(t *testing.T) {
	api, c, file := inCluster(t)
	api.late = make(chan struct{})
	defer close(api.late)
	pod := netlab.NewNS(t, "web")
	attachment := web
	attachment.Netns = pod.Path
	if err := enroll.RecordDir(c.File("pods")).Save(enroll.Record{
		Version: 1, Attachment: attachment, Netns: pod.Handle.ID(), ServiceAccount: "default", Decision: intent.Decision{Capture: true}, Touched: true,
		Applied: ruleset.Config{IPv4: true, Form: ruleset.FormFull},
	}); err != nil {
		t.Fatal(err)
	}
	a, _ := runAgent(t, file)
	if got := requests(t, hello(t, c), 3); got != `add:{uid:"u1" workload_info:{name:"web" namespace:"shop" service_account:"default"}}, keep:{uid:"u2"}, snapshot_sent:{}` {
		t.Errorf("sent %s", got)
	}
	if err := a.ready(); err == nil || agentapi.CheckReady(c.File("agent.sock")) == nil {
		t.Errorf("it is ready: %v", err)
	}
}

// Nor is a pod stopped that the API has told of already, and that is not on record: a proxy
// may have it.
func TestSnapshotOfTheRecordsAndOfWhatIsKnown(t *testing.T) {
	api, c, file := inCluster(t)
	api.late = make(chan struct{})
	defer close(api.late)
	pod := netlab.NewNS(t, "other")
	attachment := web
	attachment.Netns, attachment.Name, attachment.UID = pod.Path, "other", "u9"
	if err := enroll.RecordDir(c.File("pods")).Save(enroll.Record{Version: 1, Attachment: attachment, Netns: pod.Handle.ID()}); err != nil {
		t.Fatal(err)
	}
	runAgent(t, file)
	if got := requests(t, hello(t, c), 3); got != `keep:{uid:"u2"}, keep:{uid:"u1"}, snapshot_sent:{}` {
		t.Errorf("sent %s", got)
	}
}

// hello is a proxy that has said hello.
func hello(t *testing.T, c config.Config) *ztunnelproto.Conn {
	t.Helper()
	var proxy *ztunnelproto.Conn
	netlab.Eventually(t, func() (err error) {
		proxy, err = ztunnelproto.Dial(t.Context(), c.ProxySocket)
		return err
	})
	t.Cleanup(func() { _ = proxy.Close() })
	if err := proxy.Send(&ztunnelproto.ZdsHello{Version: ztunnelproto.Version_V1}, nil); err != nil {
		t.Fatal(err)
	}
	return proxy
}

// requests are the next ones that a proxy is sent, each of which it acks.
func requests(t *testing.T, proxy *ztunnelproto.Conn, count int) string {
	t.Helper()
	var got []string
	for range count {
		var request ztunnelproto.WorkloadRequest
		namespace, err := proxy.Receive(&request)
		if err != nil {
			t.Fatal(err)
		}
		if namespace != nil {
			closeQuietly(namespace)
		}
		got = append(got, request.String())
		if err := proxy.Send(ztunnelproto.NewResponse(""), nil); err != nil {
			t.Fatal(err)
		}
	}
	return strings.ReplaceAll(strings.Join(got, ", "), "  ", " ")
}
