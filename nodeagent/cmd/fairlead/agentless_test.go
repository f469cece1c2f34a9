package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// An uninstallation that has not come to anything has said nothing to the next agent.
func TestUninstallWhileAnAgentStarts(t *testing.T) {
	netlab.Kernel(t)
	c, file := settings(t)
	starting, err := agentapi.Lock(c.File("agent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer closeQuietly(starting)
	if _, err := run(t.Context(), "uninstall", "--config", file); !errors.Is(err, agentapi.ErrTaken) {
		t.Errorf("it ended with %v", err)
	}
	if names := inDir(t, c.RunDir); !slices.Equal(names, []string{"lock"}) {
		t.Errorf("the run directory holds %v", names)
	}
}

// Without an agent the proxies' socket is somebody else's by now.
func TestUninstallLeavesTheProxiesSocket(t *testing.T) {
	netlab.Kernel(t)
	c, file := settings(t)
	others, err := ztunnelproto.Listen(c.ProxySocket)
	if err != nil {
		t.Fatal(err)
	}
	defer closeQuietly(others)
	if out, err := run(t.Context(), "uninstall", "--config", file); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if !others.InPlace() {
		t.Error("whoever dials does not reach the other agent any more")
	}
	if names := inDir(t, c.RunDir); !slices.Equal(names, []string{"drained"}) {
		t.Errorf("the run directory holds %v", names)
	}
	if err := others.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := run(t.Context(), "uninstall", "--config", file); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if names := inDir(t, filepath.Dir(c.ProxySocket)); len(names) != 0 {
		t.Errorf("beside a socket that was dead there is %v", names)
	}
}

// A guest serves proxies if there may be something to tell them, and nobody else does.
func TestWhetherAGuestListens(t *testing.T) {
	for name, test := range map[string]struct {
		record, socket, served bool
		want                   bool
	}{
		"nothing":                  {},
		"no record, a dead socket": {socket: true},
		"a record":                 {record: true, want: true},
		"a dead socket":            {record: true, socket: true, want: true},
		"another agent":            {record: true, socket: true, served: true},
	} {
		c, _ := settings(t)
		a := &agent{config: c, guest: true}
		if test.record {
			if err := errors.Join(os.MkdirAll(c.File("pods"), 0o700), os.WriteFile(c.File("pods/a.json"), nil, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if test.socket {
			l, err := ztunnelproto.Listen(c.ProxySocket)
			if err != nil {
				t.Fatal(err)
			}
			defer closeQuietly(l)
			if !test.served {
				closeQuietly(l)
			}
		}
		if got := a.listens(); got != test.want {
			t.Errorf("%s: it listens: %t", name, got)
		}
	}
}

// Only what is a socket, and dead, is removed.
func TestRemoveDead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(removeDead(path), removeDead(path+"-not-there")); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

// What libcni has written that cannot be read does not keep a node from being left.
func TestUninstallBesideAnUnreadableCache(t *testing.T) {
	netlab.Kernel(t)
	cache := t.TempDir()
	_, file := settings(t, "cniCache: "+cache)
	if err := os.WriteFile(filepath.Join(cache, "net-c1-eth0"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := run(t.Context(), "uninstall", "--config", file)
	if err != nil {
		t.Errorf("it failed: %v", err)
	}
	if want := "kept     rules in pods that nobody knows"; !strings.Contains(out, want) || !strings.Contains(out, "1 cannot be read") || !strings.Contains(out, cache+"/net-c1-eth0") {
		t.Errorf("it does not say %q, and which:\n%s", want, out)
	}
}

// What only an agent could take out of the API is named, with what takes it away.
func TestUninstallSaysWhatTheAPIKeeps(t *testing.T) {
	netlab.Kernel(t)
	const step = "the node's startup taint and its condition in the API"
	const taint = "kubectl taint node node1 fairlead.io/agent-not-ready-"
	const condition = `kubectl patch node node1 --subresource status -p '{"status":{"conditions":[{"type":"fairlead.io/Ready","$patch":"delete"}]}}'`
	for node, commands := range map[string]string{
		"{}":                              "",
		"{taint: remove}":                 taint,
		"{condition: true}":               condition,
		"{taint: start, condition: true}": taint + "; " + condition,
	} {
		_, file := settings(t, "nodeName: node1", "node: "+node)
		out, err := run(t.Context(), "uninstall", "--config", file)
		if err != nil {
			t.Errorf("node: %s: it failed: %v", node, err)
		}
		var got, want []string
		for line := range strings.Lines(out) {
			if strings.Contains(line, step) || strings.Contains(line, "kubectl") {
				got = append(got, line)
			}
		}
		if commands != "" {
			want = []string{"kept     " + step + "  no agent runs that could take them away; if they are there: " + commands + "\n"}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("node: %s: it says of the API (-want +got):\n%s", node, diff)
		}
	}
}

func inDir(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
