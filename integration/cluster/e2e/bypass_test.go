//go:build e2e

package e2e

import (
	"context"
	"errors"
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

// A trial is captures on all nodes of a cluster, in each of their boots, and what is known
// of its pods.
type trial struct {
	roster   judge.Roster
	captures []*judge.Capture
	watch    func() // has the roster read which pods there are, until unwatch or the verdict
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
	tr.watch = func() { tr.unwatch = tr.read(t, c) }
	tr.watch()
	for _, n := range c.Nodes {
		if err := tr.capture(t, n); err != nil {
			t.Fatal(err)
		}
	}
	return tr
}

// capture begins to capture on a node, which has another network namespace in each boot.
func (tr *trial) capture(t *testing.T, n *cluster.Node) error {
	t.Helper()
	h, err := n.Netns(t.Context())
	if err != nil {
		return err
	}
	capture, err := judge.Start(n.Name, h, "eth0")
	if err := errors.Join(err, h.Close()); err != nil {
		return err
	}
	t.Cleanup(func() { _, _ = capture.Stop() }) // fails if the test has stopped it
	tr.captures = append(tr.captures, capture)
	return nil
}

// read has the roster read which pods there are, until it is told to end.
func (tr *trial) read(t *testing.T, c *cluster.Cluster) (end func()) {
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
	end = sync.OnceFunc(func() {
		cancel()
		<-done
		_ = cmd.Wait() // it was killed
	})
	t.Cleanup(end)
	return end
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
		recordings = join(recordings, recording)
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

// allTagged is a verdict for which something was seen of every captured pod.
func (tr *trial) allTagged(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	v := tr.verdict(t, c)
	for pod, n := range v.Tagged {
		if n == 0 {
			t.Errorf("nothing was seen of %s, which was to be judged", pod)
		}
	}
	if len(v.Tagged) == 0 {
		t.Error("no captured pod was there to be judged")
	}
}

// join adds a recording to those there are: of a node that was booted there are several.
func join(all []judge.Recording, r judge.Recording) []judge.Recording {
	for i := range all {
		if all[i].Node != r.Node {
			continue
		}
		all[i].Untagged = append(all[i].Untagged, r.Untagged...)
		all[i].Lost += r.Lost
		for addr, n := range r.Tagged {
			all[i].Tagged[addr] += n
		}
		return all
	}
	return append(all, r)
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
