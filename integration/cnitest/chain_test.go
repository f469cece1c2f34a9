package cnitest

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

var versions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

var sameAddr = cmpopts.EquateComparable(netip.Addr{})

// A sandbox's whole life, in each version of the specification.
func TestLife(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			n := newNode(t, version)
			agent := startAgent(t, n.socket, always(nil))
			want := n.attachment()
			want.IPs = []netip.Addr{netip.MustParseAddr("10.1.2.3")}

			result, err := n.AddNetworkList(t.Context(), n.list, n.sandbox)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(agentapi.Request{Version: 1, Add: &want}, agent.askedOnce(t), sameAddr); diff != "" {
				t.Errorf("ADD (-want +got):\n%s", diff)
			}
			if run := n.last(t); run.stdout != string(run.prevResult) {
				t.Errorf("prevResult's bytes changed:\n%s\n%s", run.prevResult, run.stdout)
			}
			current, err := types100.GetResult(result)
			if err != nil {
				t.Fatal(err)
			}
			if result.Version() != version || len(current.IPs) != 1 || current.Interfaces[0].Sandbox != n.netns.Path {
				t.Errorf("the runtime has %+v", result)
			}

			err = n.CheckNetworkList(t.Context(), n.list, n.sandbox)
			if version == "0.3.1" {
				if !errors.Is(err, libcni.ErrorCheckNotSupp) {
					t.Errorf("CHECK in %s: %v", version, err)
				}
			} else {
				if err != nil {
					t.Errorf("CHECK: %v", err)
				}
				if diff := cmp.Diff(agentapi.Request{Version: 1, Check: &want}, agent.askedOnce(t), sameAddr); diff != "" {
					t.Errorf("CHECK (-want +got):\n%s", diff)
				}
			}

			if err := n.DelNetworkList(t.Context(), n.list, n.sandbox); err != nil {
				t.Fatal(err)
			}
			want.IPs = nil
			if diff := cmp.Diff(agentapi.Request{Version: 1, Del: &want}, agent.askedOnce(t), sameAddr); diff != "" {
				t.Errorf("DEL (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDelAgainAndAgain(t *testing.T) {
	n := newNode(t, "1.0.0")
	agent := startAgent(t, n.socket, always(nil))
	if err := n.add(t.Context()); err != nil {
		t.Fatal(err)
	}
	agent.asked()
	n.sandbox.NetNS = ""
	for range 2 {
		if err := n.DelNetworkList(t.Context(), n.list, n.sandbox); err != nil {
			t.Fatal(err)
		}
		want := n.attachment()
		want.Netns = ""
		if diff := cmp.Diff(agentapi.Request{Version: 1, Del: &want}, agent.askedOnce(t), sameAddr); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	agent.stop()
	if err := n.DelNetworkList(t.Context(), n.list, n.sandbox); err != nil {
		t.Errorf("without an agent: %v", err)
	}
	agent = startAgent(t, n.socket, always(&agentapi.Error{Code: agentapi.CodeKernel, Message: "cannot release"}))
	if err := n.DelNetworkList(t.Context(), n.list, n.sandbox); err != nil {
		t.Errorf("with an agent that fails: %v", err)
	}
	agent.askedOnce(t)
}

func TestStatus(t *testing.T) {
	n := newNode(t, "1.1.0", `"orphanAfter":"876000h"`)
	agent := startAgent(t, n.socket, always(nil))
	fails(t, n.GetStatusNetworkList(t.Context(), n.list), types.ErrPluginNotAvailable, agentapi.ReadyFile(n.socket), "run fairlead uninstall, or take fairlead-cni out of", "the file 02-fairlead.conflist, fairlead.conf in a directory there, or its entry")
	if err := agentapi.MarkReady(n.socket); err != nil {
		t.Fatal(err)
	}
	agent.stop() // ready once since boot is enough
	if err := n.GetStatusNetworkList(t.Context(), n.list); err != nil {
		t.Error(err)
	}
	if requests := agent.asked(); len(requests) > 0 {
		t.Errorf("the agent was asked %v", requests)
	}
}

// The configuration was left on a node where no agent starts any more.
func TestStatusOfAnOrphan(t *testing.T) {
	n := newNode(t, "1.1.0", `"orphanAfter":"1ns"`)
	if err := n.GetStatusNetworkList(t.Context(), n.list); err != nil {
		t.Error(err)
	}
	fails(t, n.add(t.Context()), agentapi.CodeNoAgent, "is not running") // a pod does not start even so
	lock, err := agentapi.Lock(n.socket)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	fails(t, n.GetStatusNetworkList(t.Context(), n.list), types.ErrPluginNotAvailable, agentapi.ReadyFile(n.socket)) // one has started
}

// A list below 1.1.0 has no STATUS, and one that asks for none has none.
func TestStatusNotAsked(t *testing.T) {
	for version, fields := range map[string][]string{"1.0.0": {`"orphanAfter":"876000h"`}, "1.1.0": {`"orphanAfter":"876000h"`, `"status":"never"`}} {
		n := newNode(t, version, fields...)
		if err := n.GetStatusNetworkList(t.Context(), n.list); err != nil {
			t.Errorf("version %s: %v", version, err)
		}
	}
}

func TestGarbageCollection(t *testing.T) {
	n := newNode(t, "1.1.0")
	agent := startAgent(t, n.socket, always(nil))
	if err := n.add(t.Context()); err != nil {
		t.Fatal(err)
	}
	agent.asked()
	valid := []types.GCAttachment{{ContainerID: n.sandbox.ContainerID, IfName: "eth0"}}
	if err := n.GCNetworkList(t.Context(), n.list, &libcni.GCArgs{ValidAttachments: valid}); err != nil {
		t.Fatal(err)
	}
	want := agentapi.Request{Version: 1, GC: &agentapi.GCRequest{Valid: []string{n.sandbox.ContainerID}}}
	if diff := cmp.Diff(want, agent.askedOnce(t), sameAddr); diff != "" {
		t.Errorf("with all attachments valid (-want +got):\n%s", diff)
	}
	if err := n.GCNetworkList(t.Context(), n.list, &libcni.GCArgs{}); err != nil {
		t.Fatal(err)
	}
	// libcni deletes what it remembers itself; the agent may know more.
	del := n.attachment()
	all := []agentapi.Request{{Version: 1, Del: &del}, {Version: 1, GC: &agentapi.GCRequest{Valid: []string{}}}}
	if diff := cmp.Diff(all, agent.asked(), sameAddr); diff != "" {
		t.Errorf("with none valid (-want +got):\n%s", diff)
	}
}

func TestValidation(t *testing.T) {
	for _, version := range versions {
		n := newNode(t, version)
		capabilities, err := n.ValidateNetworkList(t.Context(), n.list)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"io.kubernetes.cri.pod-annotations"}, capabilities); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestTheRuntimeSeesTheAgentsError(t *testing.T) {
	for _, code := range []uint{
		agentapi.CodeBadRequest, agentapi.CodeNoAgent, agentapi.CodeNoProxy, agentapi.CodeProxyRefused,
		agentapi.CodeKernel, agentapi.CodePodUnknown, agentapi.CodeNamespace, agentapi.CodeInternal,
	} {
		n := newNode(t, "1.0.0")
		startAgent(t, n.socket, always(&agentapi.Error{Code: code, Message: "it is so", Details: "because; do this"}))
		fails(t, n.add(t.Context()), code, `plugin type="fairlead-cni" failed (add)`, "pod shop/web-", "it is so; because; do this")
		fails(t, n.CheckNetworkList(t.Context(), n.list, n.sandbox), types.ErrInvalidNetworkConfig, "no prevResult") // nothing was cached
	}
}

func TestWithoutPrimary(t *testing.T) {
	n := newNode(t, "1.0.0")
	agent := startAgent(t, n.socket, always(nil))
	n.list.Plugins = n.list.Plugins[1:]
	fails(t, n.add(t.Context()), types.ErrInvalidNetworkConfig, "must stand after the plugin that makes the interface")
	if requests := agent.asked(); len(requests) > 0 {
		t.Errorf("the agent was asked %v", requests)
	}
}
