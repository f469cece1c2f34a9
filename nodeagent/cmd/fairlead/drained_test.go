package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/nodeagent/kube"
)

// What was said to one agent is known to the next, until it is taken back.
func TestDrainFile(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "agent.sock")
	f := openDrainFile(socket)
	if f.state() != nil || f.uninstalled() {
		t.Error("it is drained from the first")
	}
	if err := f.set(false); err != nil {
		t.Fatal(err)
	}
	next := openDrainFile(socket)
	if d := next.state(); d == nil || d.Uninstalled || time.Since(d.Since) > time.Hour {
		t.Errorf("the next agent knows %+v", d)
	}
	if err := errors.Join(next.set(true), next.set(false)); err != nil {
		t.Fatal(err)
	}
	if !openDrainFile(socket).uninstalled() {
		t.Error("a drain takes an uninstallation back")
	}
	if ended, err := next.end(time.Now().Add(-time.Hour)); ended || err != nil || next.state() == nil {
		t.Errorf("it was ended by an older installation: %t, %v", ended, err)
	}
	if ended, err := next.end(time.Now()); !ended || err != nil || next.state() != nil || openDrainFile(socket).state() != nil {
		t.Errorf("it did not end: %t, %v", ended, err)
	}
}

// A file that cannot be read is there even so.
func TestBrokenDrainFile(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "drained"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if openDrainFile(filepath.Join(dir, "agent.sock")).state() == nil {
		t.Error("it is taken for none")
	}
}

func TestRuntimeOf(t *testing.T) {
	for want, comms := range map[string][]string{
		"":           {"bash", "kubelet"},
		"containerd": {"bash", "containerd", "containerd-shim"},
		"k3s-server": {"k3s-server"},
		"crio":       {"containerd", "crio", "conmon"},
	} {
		proc := t.TempDir()
		for i, comm := range comms {
			dir := filepath.Join(proc, string(rune('1'+i)))
			if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "comm"), []byte(comm+"\n"), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if got, err := runtimeOf(proc); got != want || err != nil {
			t.Errorf("of %v: %q, %v; want %q", comms, got, err, want)
		}
	}
	if _, err := runtimeOf(t.TempDir()); err == nil {
		t.Error("without processes a runtime is told")
	}
}

// Nodes are named one by one; those that do not answer are not waited for without end.
func TestAwait(t *testing.T) {
	done, silent := kube.Leaving{Node: "a", Done: true, Message: "removed x\nremoved y\n"}, kube.Leaving{Node: "b", Message: "it is at work"}
	ask := func(all int, err error, nodes ...kube.Leaving) func(context.Context) ([]kube.Leaving, int, error) {
		return func(context.Context) ([]kube.Leaving, int, error) { return nodes, all, err }
	}
	for name, test := range map[string]struct {
		ask        func(context.Context) ([]kube.Leaving, int, error)
		out, fails string
	}{
		"all are done":        {ask(1, nil, done), "node a: uninstalled\n  removed x\n  removed y\nall 1 nodes are uninstalled\n", ""},
		"one is silent":       {ask(2, nil, done, silent), "node a: uninstalled\n  removed x\n  removed y\nnode b: NOT uninstalled\n  it is at work\n", "1 of 2 nodes are not uninstalled: b;"},
		"one has no pod":      {ask(3, nil, done, silent), "node a: uninstalled\n  removed x\n  removed y\nnode b: NOT uninstalled\n  it is at work\n", "2 of 3 nodes are not uninstalled: b, 1 without a pod;"},
		"nobody can be asked": {ask(0, errors.New("no API")), "", "no API"},
		"there is no node":    {ask(0, nil), "all 0 nodes are uninstalled\n", ""},
	} {
		var out strings.Builder
		err := await(t.Context(), &out, 50*time.Millisecond, test.ask)
		if diff := cmp.Diff(test.out, out.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if (err == nil) != (test.fails == "") || err != nil && !strings.Contains(err.Error(), test.fails) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
