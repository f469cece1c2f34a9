//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/cluster/judge"
)

// A pod with this label bypasses the proxy on purpose.
const (
	bypassLabel  = "bypass"
	bypassLabels = "{bypass: on-purpose}"
)

// A trial is captures on all nodes of a cluster, and what is known of its pods.
type trial struct {
	roster   judge.Roster
	captures []*judge.Capture
	unwatch  func() // may be called again
}

// startTrial begins to capture. Pods are to be captured in the namespace mesh.
func startTrial(t *testing.T, c *cluster.Cluster) *trial {
	t.Helper()
	tr := &trial{roster: judge.Roster{
		Captured: func(namespace string, labels map[string]string) bool {
			return namespace == "mesh" && labels["istio.io/dataplane-mode"] != "none" && labels[bypassLabel] == ""
		},
		OnPurpose: func(_ string, labels map[string]string) bool { return labels[bypassLabel] != "" },
	}}
	tr.watch(t, c)
	for _, n := range c.Nodes {
		h, err := n.Netns(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		capture, err := judge.Start(n.Name, h, "eth0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = capture.Stop() }) // fails if the test has stopped it
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
		tr.captures = append(tr.captures, capture)
	}
	return tr
}

// watch has the roster read which pods there are, until the verdict.
func (tr *trial) watch(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cmd, err := c.KubectlCommand(ctx, "get", "pods", "--all-namespaces", "--watch", "--output-watch-events", "--output=json")
	if err != nil {
		t.Fatal(err)
	}
	events, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := tr.roster.Read(events); ctx.Err() == nil {
			t.Errorf("nobody tells any more which pods there are: %v", err)
		}
	}()
	tr.unwatch = sync.OnceFunc(func() {
		cancel()
		<-done
		_ = cmd.Wait() // it was killed
	})
	t.Cleanup(tr.unwatch)
}

// bypass has the pods that are there for it bypass the proxy, from all their addresses.
func (tr *trial) bypass(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	pods, err := list[apiPod](t, c, "pods", "-A", "-l", bypassLabel)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		ns := inPod(t, c, p)
		node, err := c.Node(p.Spec.NodeName)
		if err != nil {
			t.Fatal(err)
		}
		for i, ip := range p.Status.PodIPs {
			from := netip.AddrPortFrom(netip.MustParseAddr(ip.IP), 1)
			if err := judge.Send(ns.Handle, "eth0", from, netip.AddrPortFrom(node.Addrs[i], 9)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// verdict ends the captures and judges. It fails the test if any captured pod has bypassed
// the proxy, or might have.
func (tr *trial) verdict(t *testing.T, c *cluster.Cluster) judge.Verdict {
	t.Helper()
	tr.bypass(t, c)
	var recordings []judge.Recording
	for _, capture := range tr.captures {
		recording, err := capture.Stop()
		if err != nil {
			t.Fatal(err)
		}
		recordings = append(recordings, recording)
	}
	eventually(t, "pods that the judge does not know", "", func() (string, error) {
		pods, err := list[apiPod](t, c, "pods", "-A")
		var unknown strings.Builder
		for _, p := range pods {
			if !p.Spec.HostNetwork && !tr.knows(p) {
				fmt.Fprintf(&unknown, "%s ", p)
			}
		}
		return unknown.String(), err
	})
	tr.unwatch()
	v := judge.Judge(recordings, tr.roster.Pods())
	t.Logf("what left the pods:\n%s", v)
	if err := v.Err(); err != nil {
		t.Error(err)
	}
	return v
}

// knows says whether the roster has a pod with the addresses that the API shows.
func (tr *trial) knows(p apiPod) bool {
	return !slices.ContainsFunc(p.Status.PodIPs, func(ip struct{ IP string }) bool {
		return !slices.ContainsFunc(tr.roster.Pods(), func(known judge.Pod) bool {
			return known.Namespace == p.Metadata.Namespace && known.Name == p.Metadata.Name &&
				slices.Contains(known.Addrs, netip.MustParseAddr(ip.IP))
		})
	})
}
