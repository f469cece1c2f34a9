package cnitest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// hang answers nothing as long as the plugin waits.
func hang(ctx context.Context, _ agentapi.Peer, _ agentapi.Request) *agentapi.Error {
	<-ctx.Done()
	return killed
}

func TestAgentAbsent(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1.0.0")
	startAgent(t, n.socket, always(nil)).stop()
	seen := time.Date(2031, 5, 6, 7, 8, 9, 0, time.UTC)
	if err := errors.Join(os.WriteFile(agentapi.LockFile(n.socket), nil, 0o600), os.Chtimes(agentapi.LockFile(n.socket), seen, seen)); err != nil {
		t.Fatal(err)
	}
	fails(t, n.add(t.Context()), agentapi.CodeNoAgent, n.socket, "connection refused", "is not running (last seen 2031-05-06T07:08:09Z)", "kube-system")
	if log := n.log(); !strings.Contains(log, "code=100") {
		t.Errorf("cni.log does not tell:\n%s", log)
	}
}

func TestAgentNeverStarted(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1.0.0")
	fails(t, n.add(t.Context()), agentapi.CodeNoAgent, n.socket, "no such file", "is not running", "if none is meant to run here any more, run fairlead uninstall")
}

func TestPodsThatMayStartWithoutTheAgent(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1.0.0")
	var all errgroup.Group
	for _, namespace := range []string{"kube-system", "fairlead-system"} {
		sandbox := n.newSandbox(namespace, "free-"+namespace)
		all.Go(func() error {
			_, err := n.AddNetworkList(t.Context(), n.list, sandbox)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Error(err)
	}
}

func TestAgentComesLate(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1.0.0")
	added := make(chan error, 1)
	go func() { added <- n.add(t.Context()) }()
	waitForPlugin(t, n.sandbox.ContainerID)
	agent := startAgent(t, n.socket, always(nil))
	if err := <-added; err != nil {
		t.Fatal(err)
	}
	agent.askedOnce(t)
}

// waitForPlugin waits until the plugin of a container has begun to use the
// network: then Go has made its poller.
func waitForPlugin(t *testing.T, containerID string) {
	t.Helper()
	netlab.Eventually(t, func() error {
		processes, err := os.ReadDir("/proc")
		if err != nil {
			return err
		}
		for _, p := range processes {
			environ, err := os.ReadFile("/proc/" + p.Name() + "/environ")
			if err != nil || !strings.Contains(string(environ), "CNI_CONTAINERID="+containerID+"\x00") {
				continue
			}
			fds, err := os.ReadDir("/proc/" + p.Name() + "/fd")
			if err != nil {
				continue // it has just ended
			}
			for _, fd := range fds {
				if target, err := os.Readlink("/proc/" + p.Name() + "/fd/" + fd.Name()); err == nil && target == "anon_inode:[eventpoll]" {
					return nil
				}
			}
		}
		return fmt.Errorf("no plugin for container %s uses the network", containerID)
	})
}

func TestAgentKilledInTheMiddle(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1.0.0")
	dying := make(chan *agent, 1)
	dead := make(chan struct{})
	first := startAgent(t, n.socket, func(context.Context, agentapi.Peer, agentapi.Request) *agentapi.Error {
		a := <-dying
		if err := a.listener.Close(); err != nil {
			t.Error(err)
		}
		close(dead)
		return killed
	})
	dying <- first
	added := make(chan error, 1)
	go func() { added <- n.add(t.Context()) }()
	<-dead
	second := startAgent(t, n.socket, always(nil))
	if err := <-added; err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first.askedOnce(t), second.askedOnce(t), sameAddr); diff != "" {
		t.Errorf("asked again with a difference:\n%s", diff)
	}
}

func TestAgentHangs(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1.0.0")
	gone := make(chan error, 1)
	startAgent(t, n.socket, func(ctx context.Context, p agentapi.Peer, r agentapi.Request) *agentapi.Error {
		if r.Add != nil {
			checkMemory(t, p.PID)
			<-ctx.Done()
			gone <- context.Cause(ctx)
		}
		return hang(ctx, p, r)
	})
	fails(t, n.add(t.Context()), agentapi.CodeNoAgent, "does not answer", n.socket, "deadline exceeded")
	if err := <-gone; !errors.Is(err, agentapi.ErrPeerGone) {
		t.Errorf("the agent sees %v", err)
	}
	if err := n.DelNetworkList(t.Context(), n.list, n.sandbox); err != nil {
		t.Errorf("DEL: %v", err)
	}
}

// checkMemory holds a plugin that has asked to its budget.
func checkMemory(t *testing.T, pid int32) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Error(err)
		return
	}
	for line := range strings.Lines(string(status)) {
		var kib int
		if n, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); n == 1 && err == nil {
			t.Logf("the plugin has used %d KiB", kib)
			if kib > 10<<10 {
				t.Errorf("the plugin has used %d KiB, more than 10 MiB", kib)
			}
			return
		}
	}
	t.Errorf("no VmHWM in\n%s", status)
}

func TestAgentSeesThatTheRuntimeKilledThePlugin(t *testing.T) {
	t.Parallel()
	n := newNode(t, "1.0.0")
	ctx, kill := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	startAgent(t, n.socket, func(ctx context.Context, _ agentapi.Peer, _ agentapi.Request) *agentapi.Error {
		kill()
		<-ctx.Done()
		gone <- context.Cause(ctx)
		return killed
	})
	if err := n.add(ctx); err == nil {
		t.Error("a killed ADD succeeded")
	}
	if err := <-gone; !errors.Is(err, agentapi.ErrPeerGone) {
		t.Errorf("the agent sees %v", err)
	}
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	const pods = 40
	n := newNode(t, "1.0.0")
	agent := startAgent(t, n.socket, always(nil))
	var all errgroup.Group
	for i := range pods {
		sandbox := n.newSandbox("shop", fmt.Sprintf("many-%d", i))
		all.Go(func() error {
			_, err := n.AddNetworkList(t.Context(), n.list, sandbox)
			return err
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := len(agent.asked()); got != pods {
		t.Errorf("the agent was asked %d times", got)
	}
	log := n.log()
	for i := range pods {
		if want := fmt.Sprintf("pod=shop/many-%d ", i); strings.Count(log, want) != 1 {
			t.Errorf("cni.log has %d lines of %s", strings.Count(log, want), want)
		}
	}
}
