package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A nodeServer is an apiServer that has the node, too, and what became of it.
type nodeServer struct {
	apiServer

	mu      sync.Mutex
	node    corev1.Node
	history []string
	looks   int // how often the node was read
	refuse  int // how many patches are still to be refused
}

func (s *nodeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.Path, "/api/v1/nodes/") {
		s.apiServer.ServeHTTP(w, r)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Method == http.MethodPatch && s.refuse > 0 {
		s.refuse--
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	if r.Method == http.MethodPatch {
		var patch struct {
			Spec   *struct{ Taints []corev1.Taint }
			Status struct {
				Conditions []struct {
					corev1.NodeCondition
					Patch string `json:"$patch"`
				}
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&patch); err != nil {
			panic(err)
		}
		if patch.Spec != nil {
			s.node.Spec.Taints = patch.Spec.Taints
		}
		for _, c := range patch.Status.Conditions {
			s.node.Status.Conditions = nil
			if c.Patch == "" {
				s.node.Status.Conditions = []corev1.NodeCondition{c.NodeCondition}
			}
		}
		s.history = append(s.history, s.shown())
	} else {
		s.looks++
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s.node)
}

func (s *nodeServer) shown() string {
	words := []string{}
	for _, t := range s.node.Spec.Taints {
		words = append(words, t.ToString())
	}
	for _, c := range s.node.Status.Conditions {
		words = append(words, fmt.Sprintf("%s=%s (%s)", c.Type, c.Status, c.Reason))
	}
	return strings.Join(words, " ")
}

func (s *nodeServer) looked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks
}

// staysUntil waits until the node has been looked at so many times, and not written: a
// write comes between two looks.
func (s *nodeServer) staysUntil(t *testing.T, looks int) {
	t.Helper()
	netlab.Eventually(t, func() error {
		if got := s.looked(); got < looks {
			return fmt.Errorf("the node was looked at %d times, want %d", got, looks)
		}
		return nil
	})
	s.became(t)
}

// became compares what the node has been made to show since the last time.
func (s *nodeServer) became(t *testing.T, want ...string) {
	t.Helper()
	netlab.Eventually(t, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if got := strings.Join(s.history, "; "); got != strings.Join(want, "; ") {
			return fmt.Errorf("the node became %q, want %q", got, strings.Join(want, "; "))
		}
		return nil
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history = nil
}

// birth has the node be made anew, with the startup taint.
func (s *nodeServer) birth() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node = corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: s.node.UID + "n", ResourceVersion: "1"},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "fairlead.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule}}},
	}
}

// The startup taint is put there by an agent that finds the plugin not installed, and goes
// when it is; an agent that finds it installed leaves the node alone; one on a drained node
// leaves it tainted; and what uninstalls the node leaves neither taint nor condition.
func TestNodeInTheAPI(t *testing.T) {
	netlab.Kernel(t)
	api := &nodeServer{node: corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "n1", ResourceVersion: "1"},
	}}
	server := httptest.NewServer(api)
	t.Cleanup(func() {
		server.CloseClientConnections() // watches last
		server.Close()
	})
	dir := t.TempDir()
	bin, conf, plugin := filepath.Join(dir, "bin"), filepath.Join(dir, "net.d"), filepath.Join(dir, "plugin")
	if err := errors.Join(os.Mkdir(bin, 0o755), os.Mkdir(conf, 0o755), os.WriteFile(plugin, []byte("plugin"), 0o600)); err != nil {
		t.Fatal(err)
	}
	c, file := settings(t, "nodeName: node1", "kubeconfig: "+kubeconfig(t, server.URL), "node: {taint: start, condition: true}",
		fmt.Sprintf("install: {cniBinDir: %s, cniConfDir: %s, plugin: %s}", bin, conf, plugin))
	t.Run("not installed", func(t *testing.T) {
		a, _ := runAgent(t, file)
		api.became(t, "fairlead.io/agent-not-ready:NoSchedule")
		if err := os.WriteFile(filepath.Join(conf, "10-net.conflist"), []byte(`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		api.became(t, "", "fairlead.io/Ready=True (OK)")
		if problems := a.node().Problems; len(problems) > 0 {
			t.Errorf("status names %q", problems)
		}
	})
	t.Run("installed, and then no more", func(t *testing.T) {
		before := api.looked()
		a, _ := runAgent(t, file)
		api.staysUntil(t, before+2) // at the start, and when it is ready
		netlab.Eventually(t, a.ready)
		var steps []string
		if err := a.Uninstall(t.Context(), func(s status.Step) error {
			steps = append(steps, fmt.Sprintf("%s: %s", s.What, s.Outcome))
			return nil
		}); err != nil {
			t.Error(err)
		}
		if want := "the node's startup taint and its condition in the API: removed"; len(steps) == 0 || steps[0] != want {
			t.Errorf("steps %q, the first to be %q", steps, want)
		}
		api.became(t, "")
	})
	t.Run("uninstalled", func(t *testing.T) {
		before := api.looked()
		runAgent(t, file)
		api.staysUntil(t, before+1)
	})
	t.Run("uninstalled, and the API would not show it", func(t *testing.T) {
		api.birth()
		api.refuse = 2
		runAgent(t, file)
		api.became(t, "")
	})
	t.Run("drained", func(t *testing.T) {
		if err := os.Remove(filepath.Join(c.RunDir, "drained")); err != nil {
			t.Fatal(err)
		}
		if err := openDrainFile(c.File("agent.sock")).set(false, time.Time{}); err != nil {
			t.Fatal(err)
		}
		api.birth()
		before := api.looked()
		a, _ := runAgent(t, file)
		netlab.Eventually(t, a.ready)
		if reason, err := a.nodeReady(); reason != "Drained" || err == nil || !strings.Contains(err.Error(), "this node is drained") {
			t.Errorf("the node is %s: %v", reason, err)
		}
		api.staysUntil(t, before+1)
		if err := a.Drain(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		api.became(t, "", "fairlead.io/Ready=True (OK)")
	})
}
