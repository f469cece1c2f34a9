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
	made := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f := openDrainFile(socket)
	if f.state() != nil || f.uninstalled() {
		t.Error("it is drained from the first")
	}
	if err := f.set(false, made); err != nil {
		t.Fatal(err)
	}
	next := openDrainFile(socket)
	if d := next.state(); d == nil || d.Uninstalled || time.Since(d.Since) > time.Hour || !d.Installation.Equal(made) {
		t.Errorf("the next agent knows %+v", d)
	}
	if err := errors.Join(next.set(true, made), next.set(false, time.Time{})); err != nil {
		t.Fatal(err)
	}
	if d := openDrainFile(socket).state(); !d.Uninstalled || !d.Installation.Equal(made) {
		t.Errorf("a drain takes an uninstallation back, or whose it was: %+v", d)
	}
	var asked drained
	if ended, err := next.end(func(d drained) bool { asked = d; return false }); ended || err != nil || next.state() == nil || !asked.Uninstalled {
		t.Errorf("it was ended though it is not over: %t, %v, %+v", ended, err, asked)
	}
	if ended, err := next.end(func(drained) bool { return true }); !ended || err != nil || next.state() != nil || openDrainFile(socket).state() != nil {
		t.Errorf("it did not end: %t, %v", ended, err)
	}
}

// Whether it was another installation that was told is asked of the API's clock, as long as
// that is known.
func TestWhenADrainIsOver(t *testing.T) {
	at := func(hour int) time.Time {
		if hour == 0 {
			return time.Time{}
		}
		return time.Date(2026, 1, 2, hour, 0, 0, 0, time.UTC)
	}
	const none, over, goesOn = 0, true, false
	for name, test := range map[string]struct {
		since, told, installation, promised int
		want                                bool
	}{
		"the same":                               {10, 9, 9, 9, goesOn},
		"the same, and the node's clock lags":    {8, 9, 9, 9, goesOn},
		"another":                                {10, 9, 11, 11, over},
		"another, and the node's clock is ahead": {12, 9, 11, 11, over},
		"told without an agent":                  {10, none, 9, 9, goesOn},
		"told without an agent, another":         {10, none, 11, 11, over},
		"nobody says":                            {10, none, none, none, goesOn},
		"not known now":                          {10, 9, none, none, goesOn},
		"not known now, but promised":            {10, 9, none, 11, over},
	} {
		d := drained{Since: at(test.since), Installation: at(test.told)}
		if got := d.over(at(test.installation), at(test.promised)); got != test.want {
			t.Errorf("%s: over %t", name, got)
		}
	}
}

// A file that cannot be read is there even so: the node stays drained, whatever installation
// comes, until somebody says otherwise.
func TestBrokenDrainFile(t *testing.T) {
	for name, text := range map[string]string{"half": "{", "nothing": "", "no time": "{}"} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "drained"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		a := &agent{drained: openDrainFile(filepath.Join(dir, "agent.sock"))}
		if d := a.drained.state(); d == nil || d.over(time.Now(), time.Now()) {
			t.Errorf("%s: it is taken for none, or one that is over: %+v", name, d)
		}
		problem := a.drainProblem()
		for _, want := range []string{"cannot read " + a.drained.path + ": ", "fairlead drain --undo ends it"} {
			if !strings.Contains(problem, want) {
				t.Errorf("%s: status says %q, without %q", name, problem, want)
			}
		}
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
			if err := errors.Join(os.MkdirAll(filepath.Join(dir, "ns"), 0o700), os.Symlink("pid:[4026531836]", filepath.Join(dir, "ns", "pid")), os.WriteFile(filepath.Join(dir, "comm"), []byte(comm+"\n"), 0o600)); err != nil {
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

// Whoever finds the Job of a helm that was killed reads how what it has begun ends.
func TestAwaitNamesWhatGoesOn(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	t.Setenv("POD_NAMESPACE", "system")
	out, err := run(t.Context(), "await", "some-set")
	if want := "kubectl -n system delete daemonset some-set\n"; err == nil || !strings.Contains(out, want) {
		t.Errorf("it does not say %q: %v\n%s", want, err, out)
	}
}
