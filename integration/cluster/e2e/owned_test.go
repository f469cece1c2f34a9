//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// The primary's list is rewritten in every way that others are known to have, while the
// agent is there, while it is not, while the API is not, and while an ADD waits; meanwhile
// pods' sandboxes die and are made again, and new pods come. Not one goes past the proxy,
// and the node can be used throughout. Whoever undoes our own list is named.
func TestPrimaryRewritten(t *testing.T) {
	netlab.Kernel(t)
	c := startLoaded(t, 1)
	install(t, c)
	tr := startMeshTrial(t, c)
	o := owner{c.Nodes[0], onNodeShell(t, c.Nodes[0], "cat "+primaryList)}
	for _, step := range []struct {
		name string
		run  func(*testing.T, *cluster.Cluster, owner, *trial)
	}{
		{"with the agent", rewrittenWithAgent},
		{"without the agent", rewrittenWithoutAgent},
		{"without the API", rewrittenWithoutAPI},
		{"while ADDs wait for a proxy", rewrittenWhileWaiting},
		{"and nothing has bypassed", func(t *testing.T, c *cluster.Cluster, _ owner, tr *trial) { tr.allTagged(t, c) }},
		{"our own list is undone", ourListUndone},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, c, o, tr); agree(t, c) }) {
			t.Log(trouble(t, c))
			break // the next ones stand on it
		}
	}
	tr.unwatch()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// The lists that stand in the runtime's directory: the cluster's, and ours.
const (
	primaryList = "/etc/cni/net.d/10-bridge.conflist"
	ourList     = "/etc/cni/net.d/02-fairlead.conflist"
)

// An owner is whoever writes a node's primary list.
type owner struct {
	n    *cluster.Node
	text string // as it was at first
}

// Scripts that write a list anew; $1 is the new text. The first two leave the file's owner
// and its mode what they are.
const (
	inItsPlace = `printf %s "$1" 1<>LIST`
	overwrite  = `printf %s "$1" >LIST`
	byRename   = `printf %s "$1" >LIST.new; mv LIST.new LIST`
)

// rewrites are ways to write a list anew. Between two halves there is none, or none that can
// be read.
var rewrites = []struct{ name, first, then string }{
	{name: "in place", first: inItsPlace},
	{name: "by a rename", first: byRename},
	{name: "moved in from elsewhere", first: `printf %s "$1" >/etc/cni/elsewhere; mv /etc/cni/elsewhere LIST`},
	{name: "truncated, then written", first: `: >LIST`, then: overwrite},
	{name: "removed, then put back", first: `rm LIST`, then: overwrite},
}

// marked is the owner's text with something new in it.
func (o owner) marked(mark string) string {
	return strings.Replace(o.text, `"name": "pods",`, `"name": "pods", `+mark+`,`, 1)
}

func mark(n int) string { return `"rewritten": "` + strconv.Itoa(n) + `"` }

func (o owner) write(t *testing.T, how, text string) {
	t.Helper()
	onNodeShell(t, o.n, strings.ReplaceAll(how, "LIST", primaryList), text)
}

// keepWriting writes the list in all ways, ever anew, until stop is called, which leaves
// it as it was at first.
func (o owner) keepWriting(t *testing.T) (stop func()) {
	t.Helper()
	var all strings.Builder
	for _, way := range rewrites {
		fmt.Fprintf(&all, "%s\nsleep 0.1\n%s\nsleep 0.1\nset -- \"$2\" \"$1\"\n", way.first, way.then)
	}
	end := background(t, o.n, strings.ReplaceAll(all.String(), "LIST", primaryList), o.marked(mark(8)), o.marked(mark(9)))
	return func() {
		t.Helper()
		end()
		o.write(t, byRename, o.text)
	}
}

// background repeats a script in a node until it is ended. One at a time does so.
func background(t *testing.T, n *cluster.Node, script string, args ...string) (end func()) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	const going = "/run/in-the-background"
	cmd, err := n.Command(ctx, append([]string{"sh", "-euc", ": >" + going + "; while [ -e " + going + " ]; do\n" + script + "\ndone", "sh"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		_, err := n.Run(ctx, "rm", going)
		if err := errors.Join(err, cmd.Wait()); err != nil {
			t.Errorf("what was to go on in the background: %v", err)
		}
	})
	t.Cleanup(end)
	return end
}

func rewrittenWithAgent(t *testing.T, c *cluster.Cluster, o owner, _ *trial) {
	old := []string{addStaticAsker(t, o.n, "static-up"), "old-up"}
	var fresh []string
	applyAskers(t, c, o.n, old[1:]...)
	waitAskers(t, c, 0, old...)
	for i, way := range rewrites {
		text := o.marked(mark(i))
		o.write(t, way.first, text)
		if way.then != "" {
			name := fmt.Sprintf("new-up-%d", i)
			applyAskers(t, c, o.n, name)
			waitAskers(t, c, 0, name) // while there is no primary
			fresh = append(fresh, name)
			o.write(t, way.then, text)
		}
		eventually(t, "what our list is made of, after the primary was written "+way.name, mark(i), func() (string, error) {
			out, err := o.n.Run(t.Context(), "grep", "-o", `"rewritten": "[0-9]*"`, ourList)
			return strings.TrimSpace(out), err
		})
		if now := onNodeShell(t, o.n, "cat "+primaryList); now != text {
			t.Errorf("the primary, written %s, is now %q, want %q", way.name, now, text)
		}
	}
	stop := o.keepWriting(t)
	killSandboxes(t, o.n, old...)
	applyAskers(t, c, o.n, "new-up")
	waitAskers(t, c, 1, old...)
	waitAskers(t, c, 0, append(fresh, "new-up")...)
	if p := problems(t, c); strings.Contains(p, "again and again") {
		t.Errorf("the agent takes what happens to the primary for a fight: %s", p)
	}
	stop()
}

// Without an agent none of the pods starts, and each says why.
func rewrittenWithoutAgent(t *testing.T, c *cluster.Cluster, o owner, _ *trial) {
	static := addStaticAsker(t, o.n, "static-down")
	applyAskers(t, c, o.n, "old-down")
	waitAskers(t, c, 0, "old-down", static)
	takeAway(t, c, "fairlead")
	stop := o.keepWriting(t)
	killSandboxes(t, o.n, "old-down", static)
	applyAskers(t, c, o.n, "new-down")
	for _, pod := range []string{"old-down", static, "new-down"} {
		described(t, c, "mesh", pod, append([]string{`plugin type="fairlead-cni" failed (add): pod mesh/` + pod}, withoutAgent...)...)
	}
	bringBack(t, c, "fairlead")
	waitAskers(t, c, 1, "old-down", static)
	waitAskers(t, c, 0, "new-down")
	stop()
}

// Without the API the agent knows the pods that it has seen, even if it and the proxy are
// started again meanwhile. One that it has not seen, which is a static one, has to wait.
func rewrittenWithoutAPI(t *testing.T, c *cluster.Cluster, o owner, tr *trial) {
	first := []string{"old-api", addStaticAsker(t, o.n, "static-api")}
	second := []string{"older-api", addStaticAsker(t, o.n, "static-older-api")}
	applyAskers(t, c, o.n, first[0], second[0])
	waitAskers(t, c, 0, slices.Concat(first, second)...)
	_, before := apps(t, o.n, "", slices.Concat(first, second)...)
	tr.unwatch()
	if err := c.StopAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop := o.keepWriting(t)
	late := addStaticAsker(t, o.n, "static-late")
	comeBack := func(pods []string) {
		t.Helper()
		killSandboxes(t, o.n, pods...)
		eventually(t, "which apps are back", strings.Join(pods, " ")+" ", func() (string, error) {
			names, _ := apps(t, o.n, before, append(pods, late)...)
			return names, nil
		})
	}
	comeBack(first)
	killContainers(t, o.n, "agent", "proxy")
	comeBack(second)
	if err := c.StartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	tr.watch()
	waitAskers(t, c, 1, slices.Concat(first, second)...)
	waitAskers(t, c, 0, late)
	stop()
}

// While ADDs wait for a proxy and the lists change, the runtime goes on answering. containerd
// takes a changed list in only when no ADD is under way, and answers nobody who comes
// meanwhile; so it is by the bound of our ADD, which is a promise, that an answer takes no
// longer. After 30 seconds without one the kubelet calls the runtime down.
func rewrittenWhileWaiting(t *testing.T, c *cluster.Cluster, o owner, _ *trial) {
	const most = 10 * time.Second // all that the plugin may take
	applyAskers(t, c, o.n, "old-waiting")
	waitAskers(t, c, 0, "old-waiting")
	takeAway(t, c, "nodeproxy")
	killSandboxes(t, o.n, "old-waiting")
	fresh := []string{"new-waiting-0", "new-waiting-1", "new-waiting-2"}
	applyAskers(t, c, o.n, fresh...)
	waits := func() bool {
		_, err := o.n.Run(t.Context(), "pgrep", "-x", "fairlead-cni")
		return err == nil
	}
	eventually(t, "whether an ADD waits", "true", func() (string, error) { return strconv.FormatBool(waits()), nil })
	stop := o.keepWriting(t)
	asked, longest := 0, time.Duration(0)
	for ; asked < 3 || waits(); asked++ {
		begun := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), most)
		ready, err := o.n.NetworkReady(ctx)
		cancel()
		if err != nil || !ready {
			t.Fatalf("the runtime says after %v that its network is ready: %t, %v", time.Since(begun), ready, err)
		}
		longest = max(longest, time.Since(begun))
	}
	t.Logf("the runtime has answered %d times, at the latest after %v", asked, longest)
	described(t, c, "mesh", fresh[0], "not captured: no node proxy is connected to the agent")
	bringBack(t, c, "nodeproxy")
	waitAskers(t, c, 1, "old-waiting")
	waitAskers(t, c, 0, fresh...)
	stop()
}

// Who undoes our own list again and again is named, and what starts in the gaps is captured
// late.
func ourListUndone(t *testing.T, c *cluster.Cluster, o owner, _ *trial) {
	stop := background(t, o.n, "cat "+primaryList+" >"+ourList+"; sleep 0.2")
	undone(t, c, "another program (the owner of 10-bridge.conflist, bridge, perhaps) undoes what is written to "+ourList+
		", again and again (trying once in 10s from now on): have it leave 02-fairlead.conflist alone")
	applyAskers(t, c, o.n, "new-undone")
	waitFor(t, c, "condition=fairlead.io/Captured", "-n", "mesh", "pod/new-undone")
	stop()
}

// undone waits until the agent says what is wanted of a fight, and is not ready for it.
func undone(t *testing.T, c *cluster.Cluster, want string) {
	t.Helper()
	eventually(t, "what the agent complains of", want, func() (string, error) { return problems(t, c), nil })
	eventually(t, "whether the agent is ready", "false", func() (string, error) {
		return c.Kubectl(t.Context(), "-n", system, "get", "pods", "-l", "app.kubernetes.io/name=fairlead", "-o", "jsonpath={.items[*].status.containerStatuses[0].ready}")
	})
}

// problems are what the one agent complains of.
func problems(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	pods, err := list[apiPod](t, c, "pods", "-n", system)
	if err != nil {
		t.Fatal(err)
	}
	for _, agents := range podsOf(pods, "fairlead") {
		_, all, err := askAgent(t, c, agents[0])
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(all, "\n")
	}
	return "there is no agent"
}

// takeAway has no node run one of our DaemonSets, until bringBack.
func takeAway(t *testing.T, c *cluster.Cluster, chart string) {
	t.Helper()
	selectNodes(t, c, chart, `"has-this"`)
	waitFor(t, c, "delete", "pods", "-n", system, "-l", "app.kubernetes.io/name="+chart)
}

func bringBack(t *testing.T, c *cluster.Cluster, chart string) {
	t.Helper()
	selectNodes(t, c, chart, "null")
	rolledOut(t, c, "daemonset/"+chart, system)
}

func selectNodes(t *testing.T, c *cluster.Cluster, chart, value string) {
	t.Helper()
	kubectl(t, c, "patch", "daemonset/"+chart, "-n", system, "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"no-node":`+value+`}}}}}`)
}
