package sandbox_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
)

func TestMain(m *testing.M) { netlab.Main(m, 2) }

func TestOpensAPodsNamespace(t *testing.T) {
	netlab.Kernel(t)
	pod := netlab.NewNS(t, "pod")
	f, err := sandbox.New()
	if err != nil {
		t.Fatal(err)
	}
	h, err := f.Open(pod.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = h.Close() }()
	if h.ID() != pod.Handle.ID() {
		t.Errorf("opened %s, want %s", h.ID(), pod.Handle.ID())
	}
}

func TestRefusals(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	f, err := sandbox.New()
	if err != nil {
		t.Fatal(err)
	}
	leftover := filepath.Join(t.TempDir(), "cni-1")
	if err := os.WriteFile(leftover, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/proc/self/ns/net": "the node's own network namespace",
		leftover:            "not a namespace",
		"/run/netns/gone":   "no such file",
	} {
		h, err := f.Open(path)
		if err == nil {
			_ = h.Close()
			t.Errorf("%s was opened", path)
			continue
		}
		if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v; want it to name the path and %q", path, err, want)
		}
	}
}
