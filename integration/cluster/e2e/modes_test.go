//go:build e2e

package e2e

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// One node, on which the agent crashes and is replaced, changes its mode, is uninstalled and
// comes again in another one. Whenever it has gone the node is as it was before, byte for
// byte.
func TestModes(t *testing.T) {
	netlab.Kernel(t)
	c := startLoaded(t, 1)
	apply(t, c, meshManifest)
	before := nodeState(t, c.Nodes[0])
	o := owner{c.Nodes[0], onNodeShell(t, c.Nodes[0], "cat "+primaryList)}
	leave := func(t *testing.T, c *cluster.Cluster, o owner) {
		uninstall(t, c)
		if diff := cmp.Diff(before, nodeState(t, o.n)); diff != "" {
			t.Errorf("the node is not as it was before (-before +after):\n%s", diff)
		}
		kubectl(t, c, "delete", "pods", "--all", "-n", "mesh", "--timeout="+patience.String())
	}
	const mode, grace = "cniMode=", "config.releaseGrace=1s"
	for _, step := range []struct {
		name string
		run  func(*testing.T, *cluster.Cluster, owner)
	}{
		{"install", func(t *testing.T, c *cluster.Cluster, _ owner) { install(t, c) }},
		{"an agent that crashes again and again", crashingAgent},
		{"a rolling update while a pod comes each second", rollingUpdate},
		{"from owned to chained", func(t *testing.T, c *cluster.Cluster, _ owner) {
			release(t, c, "upgrade", "fairlead", mode+"chained", grace)
		}},
		{"the primary is written anew, and chained again", chainedAgain},
		{"uninstall", leave},
		{"install as dropin", func(t *testing.T, c *cluster.Cluster, _ owner) {
			release(t, c, "install", "fairlead", mode+"dropin", grace)
		}},
		{"the primary is written anew, and the drop-in stands", droppedInStill},
		{"uninstall the drop-in", leave},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, c, o) }) {
			t.Log(trouble(t, c))
			break // the next ones stand on it
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// comes has a pod start, and sees that all are captured.
func comes(t *testing.T, c *cluster.Cluster, pod string) {
	t.Helper()
	applyAskers(t, c, c.Nodes[0], pod)
	waitAskers(t, c, 0, pod)
	agree(t, c)
}

// What may be needed to repair the agent starts; all else waits, and says for what.
func crashingAgent(t *testing.T, c *cluster.Cluster, _ owner) {
	const patch = `[{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": ["agent", "--config=/nowhere"]}]`
	kubectl(t, c, "patch", "daemonset/fairlead", "-n", system, "--type=json", "-p", patch)
	eventually(t, "what the agent waits for", "CrashLoopBackOff", func() (string, error) {
		return c.Kubectl(t.Context(), "-n", system, "get", "pods", "-l", "app.kubernetes.io/name=fairlead", "-o", "jsonpath={.items[*].status.containerStatuses[0].state.waiting.reason}")
	})
	applyPods(t, c, podOf("name: needed, namespace: kube-system"))
	waitFor(t, c, "condition=Ready", "-n", "kube-system", "pod/needed")
	refused(t, c, func() {
		kubectl(t, c, "rollout", "undo", "daemonset/fairlead", "-n", system)
		rolledOut(t, c, "daemonset/fairlead", system)
	}, withoutAgent...)
	kubectl(t, c, "delete", "pod", "-n", "kube-system", "needed")
}

// The agent is replaced, twice, and whenever one runs it finds another plugin than its own and puts
// its own there. No ADD is without a plugin that can be executed.
func rollingUpdate(t *testing.T, c *cluster.Cluster, o owner) {
	before := nodeState(t, o.n)
	end := background(t, o.n, `cp /opt/cni/bin/fairlead-cni /opt/cni/other; echo >>/opt/cni/other; mv /opt/cni/other /opt/cni/bin/fairlead-cni; sleep 0.2`)
	done := make(chan error, 1)
	go func() {
		var err error
		for n := 0; n < 2 && err == nil; n++ {
			err = rollout(t, c, "daemonset/fairlead", system)
		}
		done <- err
	}()
	var coming errgroup.Group // to create one may take longer than a second
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	create := func(number int) {
		manifest := strings.ReplaceAll(podOf(fmt.Sprintf("name: rolling-%d, namespace: mesh, labels: {app: rolling}", number)), "CONTAINER", container)
		coming.Go(func() error {
			cmd, err := c.KubectlCommand(t.Context(), "create", "--validate=false", "-f", "-")
			if err != nil {
				return err
			}
			cmd.Stdin = strings.NewReader(manifest)
			return cmd.Run()
		})
	}
	const most = 60 // a node has room for 110
	pods := 0
	for goesOn := true; goesOn; {
		if pods < most {
			create(pods)
			pods++
		}
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			goesOn = false
		case <-tick.C:
		}
	}
	if err := coming.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d pods have come meanwhile", pods)
	eventually(t, "whether the last agent has put its plugin there some times", "true", func() (string, error) {
		logs, err := c.Kubectl(t.Context(), "logs", "-n", system, "-l", "app.kubernetes.io/name=fairlead", "--tail=-1")
		return strconv.FormatBool(strings.Count(logs, "plugin binary written") >= 3), err
	})
	end()
	waitFor(t, c, "condition=Ready", "pods", "-n", "mesh", "-l", "app=rolling")
	agree(t, c)
	for _, message := range failedSandboxes(t, c) {
		if !strings.Contains(message, `plugin type="fairlead-cni" failed (add): pod mesh/`) {
			t.Errorf("a pod could not start: %s", message)
		}
	}
	kubectl(t, c, "delete", "pods", "-n", "mesh", "-l", "app=rolling")
	eventually(t, "the node after the rolling update", before, func() (string, error) { return nodeState(t, o.n), nil })
}

// failedSandboxes is what the kubelet says of sandboxes that it could not make.
func failedSandboxes(t *testing.T, c *cluster.Cluster) []string {
	t.Helper()
	type event struct{ Message string }
	events, err := list[event](t, c, "events", "-A", "--field-selector=reason=FailedCreatePodSandBox")
	if err != nil {
		t.Fatal(err)
	}
	var messages []string
	for _, e := range events {
		messages = append(messages, e.Message)
	}
	return messages
}

func chainedAgain(t *testing.T, c *cluster.Cluster, o owner) {
	comes(t, c, "chained")
	o.write(t, overwrite, o.text)
	eventually(t, "whether the plugin is in the list", "true", func() (string, error) {
		return strconv.FormatBool(strings.Contains(onNodeShell(t, o.n, "cat "+primaryList), "fairlead-cni")), nil
	})
	comes(t, c, "chained-again")
}

func droppedInStill(t *testing.T, c *cluster.Cluster, o owner) {
	comes(t, c, "dropped-in")
	o.write(t, overwrite, o.marked(mark(0)))
	comes(t, c, "dropped-in-still")
	o.write(t, overwrite, o.text)
}
