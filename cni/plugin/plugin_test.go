package plugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

// world is one execution of the plugin through the real skel, with a fake agent.
type world struct {
	*Plugin
	t              *testing.T
	stdout, stderr bytes.Buffer
	agent          agent
}

// agent answers the n-th call, counted from 0, and keeps what it was asked.
type agent struct {
	answer   func(ctx context.Context, n int) (*agentapi.Error, error)
	requests []agentapi.Request
}

func (a *agent) call(ctx context.Context, socket string, req agentapi.Request) (agentapi.Response, error) {
	a.requests = append(a.requests, req)
	if a.answer == nil {
		return agentapi.Response{Version: agentapi.Version}, nil
	}
	e, err := a.answer(ctx, len(a.requests)-1)
	return agentapi.Response{Version: agentapi.Version, Error: e}, err
}

var (
	errAbsent = fmt.Errorf("%w: dial unix agent.sock: connection refused", agentapi.ErrAbsent)
	errBroken = fmt.Errorf("%w (agent.sock)", agentapi.ErrBroken)
)

func always(e *agentapi.Error, err error) func(context.Context, int) (*agentapi.Error, error) {
	return func(context.Context, int) (*agentapi.Error, error) { return e, err }
}

// hang answers nothing before the caller gives up.
func hang(ctx context.Context, _ int) (*agentapi.Error, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

const (
	prevResult = `{ "cniVersion": "1.0.0", "interfaces": [{"name":"veth1"}, {"name":"eth0","sandbox":"/run/netns/cni-1"}],` +
		` "ips": [{"address":"10.1.2.3/24","interface":1}, {"address":"fd00::3/64"}, {"address":"10.1.2.1/24","interface":0}],` +
		"\n\t" + `"vendor": {"z": 1, "a": "<é>"} }`
	podArgsText = "K8S_POD_INFRA_CONTAINER_ID=c0ffee;K8S_POD_UID=6b1d-7;IgnoreUnknown=1;K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=shop"
)

func newWorld(t *testing.T, command string) *world {
	t.Helper()
	w := &world{t: t}
	w.Plugin = newPlugin(Plugin{
		getenv: os.Getenv, stdout: &w.stdout, stderr: &w.stderr,
		dispatch:   skel.PluginMainFuncsWithError,
		call:       w.agent.call,
		checkNetns: func(string) error { return nil },
		socket:     filepath.Join(t.TempDir(), "agent.sock"),
	})
	w.env("CNI_COMMAND", command)
	w.env("CNI_CONTAINERID", "c0ffee")
	w.env("CNI_NETNS", "/run/netns/cni-1")
	w.env("CNI_IFNAME", "eth0")
	w.env("CNI_PATH", "/opt/cni/bin")
	w.env("CNI_ARGS", podArgsText)
	w.input(w.conf(`"prevResult": ` + prevResult))
	return w
}

func (w *world) env(key, value string) { w.t.Setenv(key, value) }

// conf is a configuration with some more fields.
func (w *world) conf(fields ...string) string {
	return w.confVersion("1.0.0", fields...)
}

func (w *world) confVersion(version string, fields ...string) string {
	fields = append(fields, fmt.Sprintf(`"cniVersion":%q, "name":"net", "type":"fairlead-cni", "agentSocket":%q`, version, w.socket))
	return "{" + strings.Join(fields, ",") + "}"
}

func (w *world) input(conf string) {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "stdin")
	if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
		w.t.Fatal(err)
	}
	in, err := os.Open(file)
	if err != nil {
		w.t.Fatal(err)
	}
	before := os.Stdin
	os.Stdin, w.stdin = in, in
	w.t.Cleanup(func() {
		os.Stdin = before
		if err := in.Close(); err != nil {
			w.t.Error(err)
		}
	})
}

func (w *world) succeeds(stdout string) {
	w.t.Helper()
	if code := w.Run("test"); code != 0 {
		w.t.Errorf("exit code %d, want 0", code)
	}
	if diff := cmp.Diff(stdout, w.stdout.String()); diff != "" {
		w.t.Errorf("stdout (-want +got):\n%s", diff)
	}
}

// fails checks that there is one error with this code, and all of says in it.
func (w *world) fails(code uint, says ...string) types.Error {
	w.t.Helper()
	if exit := w.Run("test"); exit != 1 {
		w.t.Errorf("exit code %d, want 1", exit)
	}
	var e types.Error
	if err := json.Unmarshal(w.stdout.Bytes(), &e); err != nil {
		w.t.Fatalf("stdout is not one JSON object: %v\n%s", err, &w.stdout)
	}
	if e.Code != code {
		w.t.Errorf("code %d, want %d", e.Code, code)
	}
	for _, s := range says {
		if !strings.Contains(e.Error(), s) {
			w.t.Errorf("%q does not say %q", e.Error(), s)
		}
	}
	return e
}

func (w *world) asked(times int) {
	w.t.Helper()
	if n := len(w.agent.requests); n != times {
		w.t.Errorf("the agent was asked %d times, want %d", n, times)
	}
}

// logged returns the plugin's log.
func (w *world) logged() string {
	w.t.Helper()
	text, err := os.ReadFile(agentapi.LogFile(w.socket))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

func TestPanicIsAnError(t *testing.T) {
	t.Run("in the dispatcher", func(t *testing.T) {
		w := newWorld(t, "VERSION")
		w.dispatch = func(skel.CNIFuncs, version.PluginInfo, string) *types.Error { panic("no map") }
		w.fails(agentapi.CodeInternal, "fairlead-cni has a defect: no map", "cni.log")
		if log := w.logged(); !strings.Contains(log, "plugin_test.go") {
			t.Errorf("the stack is not in the log:\n%s", log)
		}
	})
	t.Run("in ADD", func(t *testing.T) {
		w := newWorld(t, "ADD")
		w.agent.answer = func(_ context.Context, n int) (*agentapi.Error, error) { return []*agentapi.Error{}[n], nil }
		w.fails(agentapi.CodeInternal, "index out of range")
	})
	t.Run("in DEL", func(t *testing.T) {
		w := newWorld(t, "DEL")
		w.agent.answer = func(context.Context, int) (*agentapi.Error, error) { panic(errors.New("x")) }
		w.succeeds("")
	})
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestResultThatCannotBePrintedIsAFailure(t *testing.T) {
	for _, command := range []string{"ADD", "unheard-of"} {
		w := newWorld(t, command)
		w.stdout, w.Plugin.stdout = bytes.Buffer{}, brokenPipe{}
		if code := w.Run("test"); code != 1 || !strings.Contains(w.stderr.String(), "broken pipe") {
			t.Errorf("%s: exit code %d, want 1, and the reason on stderr:\n%s", command, code, &w.stderr)
		}
	}
}

func TestStatus(t *testing.T) {
	w := newWorld(t, "STATUS")
	conf := w.confVersion("1.1.0", neverOrphaned)
	w.input(conf)
	w.fails(types.ErrPluginNotAvailable, agentapi.ReadyFile(w.socket), "check its pod", "run fairlead uninstall, or take fairlead-cni out of", "the file 02-fairlead.conflist, fairlead.conf in a directory there, or its entry")

	next := newWorld(t, "STATUS")
	if err := agentapi.MarkReady(w.socket); err != nil {
		t.Fatal(err)
	}
	next.input(conf)
	next.succeeds("")
	next.asked(0)
}

// No machine has been up for so long, and every one for the other.
const (
	neverOrphaned = `"orphanAfter":"876000h"`
	longOrphaned  = `"orphanAfter":"1ns"`
)

// A node on which no agent has started since it booted is an orphan after a while.
func TestStatusOfAnOrphan(t *testing.T) {
	w := newWorld(t, "STATUS")
	w.input(w.confVersion("1.1.0", longOrphaned))
	w.succeeds("")
	if log := w.logged(); !strings.Contains(log, "no agent has started") {
		t.Errorf("not logged:\n%s", log)
	}
}

// One has started, and is not ready: it is waited for.
func TestStatusWaitsForAnAgentThatHasStarted(t *testing.T) {
	w := newWorld(t, "STATUS")
	w.input(w.confVersion("1.1.0", longOrphaned))
	lock, err := agentapi.Lock(w.socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil { // and has ended
		t.Fatal(err)
	}
	w.fails(types.ErrPluginNotAvailable, agentapi.ReadyFile(w.socket))
}

func TestStatusNever(t *testing.T) {
	w := newWorld(t, "STATUS")
	w.input(w.confVersion("1.1.0", neverOrphaned, `"status":"never"`))
	w.succeeds("")
}

func TestStatusRefusesABadConfiguration(t *testing.T) {
	w := newWorld(t, "STATUS")
	w.input(w.confVersion("1.1.0", `"agentSokcet":"/x"`))
	w.fails(types.ErrInvalidNetworkConfig, "agentSokcet")
}

func TestGC(t *testing.T) {
	w := newWorld(t, "GC")
	w.input(w.confVersion("1.1.0", `"cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"},{"containerID":"b","ifname":"eth0"}]`))
	w.succeeds("")
	want := []agentapi.Request{{Version: 1, GC: &agentapi.GCRequest{Valid: []string{"a", "b"}}}}
	if diff := cmp.Diff(want, w.agent.requests); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Without the list of what is valid everything would be over.
func TestGCWithoutAttachments(t *testing.T) {
	w := newWorld(t, "GC")
	w.dispatch = func(f skel.CNIFuncs, _ version.PluginInfo, _ string) *types.Error { // skel does not pass it on
		err := f.GC(&skel.CmdArgs{StdinData: []byte(w.confVersion("1.1.0"))})
		e, _ := err.(*types.Error)
		return e
	}
	w.fails(types.ErrInvalidNetworkConfig, "cni.dev/valid-attachments")
	w.asked(0)
}

func TestGCWithoutAnAgent(t *testing.T) {
	for _, answer := range []func(context.Context, int) (*agentapi.Error, error){
		always(nil, errAbsent), always(&agentapi.Error{Message: "cannot"}, nil),
	} {
		w := newWorld(t, "GC")
		w.agent.answer = answer
		w.input(w.confVersion("1.1.0", `"cni.dev/valid-attachments":[]`))
		w.succeeds("")
		if log := w.logged(); !strings.Contains(log, "nothing is collected") {
			t.Errorf("not logged:\n%s", log)
		}
	}
}

func TestSuccessIsSilentOnStderr(t *testing.T) {
	w := newWorld(t, "ADD")
	w.succeeds(prevResult)
	if w.stderr.Len() > 0 {
		t.Errorf("stderr: %s", &w.stderr)
	}
	log := w.logged()
	if strings.Count(log, "\n") != 1 {
		t.Errorf("want one line:\n%s", log)
	}
	for _, fact := range []string{"command=ADD", "pod=shop/web-0", "container=c0ffee"} {
		if !strings.Contains(log, fact) {
			t.Errorf("the log does not say %s:\n%s", fact, log)
		}
	}
}

func TestNoLogIsNoReasonToFail(t *testing.T) {
	w := newWorld(t, "ADD")
	if err := os.Mkdir(agentapi.LogFile(w.socket), 0o700); err != nil {
		t.Fatal(err)
	}
	w.succeeds(prevResult)
}
