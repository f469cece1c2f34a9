package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// dials is set for a process that is to be a proxy: the path of the socket.
const dials = "FAIRLEAD_TEST_DIALS"

// beProxy says hello and then nothing more, until the agent ends the connection.
func beProxy(socket string) error {
	proxy, err := ztunnelproto.Dial(context.Background(), socket)
	if err != nil {
		return err
	}
	defer closeQuietly(proxy)
	if err := proxy.Send(&ztunnelproto.ZdsHello{Version: ztunnelproto.Version_V1}, nil); err != nil {
		return err
	}
	for {
		namespace, err := proxy.Receive(&ztunnelproto.WorkloadRequest{})
		if err != nil {
			return nil
		}
		if namespace != nil {
			closeQuietly(namespace)
		}
	}
}

// No ADD can have a connected proxy's own network namespace captured.
func TestAddOfAProxysNamespaceIsRefused(t *testing.T) {
	_, c, file := inCluster(t)
	a, _ := runAgent(t, file)
	netlab.Eventually(t, a.ready)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(dials, c.ProxySocket)
	ns := netlab.NewNS(t, "proxy")
	proxy, err := ns.Start(t.TempDir(), "proxy", self)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Kill)
	netlab.Eventually(t, func() error {
		if got, want := fmt.Sprint(a.proxyPIDs()), fmt.Sprintf("[%d]", proxy.PID()); got != want {
			return fmt.Errorf("the proxies are %s, want %s", got, want)
		}
		return nil
	})
	attachment := web
	attachment.Netns = ns.Path
	answer, err := agentapi.Client{Socket: c.File("agent.sock")}.Call(t.Context(), agentapi.Request{Version: agentapi.Version, Add: &attachment})
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("the network namespace of a connected proxy (process %d)", proxy.PID())
	if e := answer.Error; e == nil || e.Code != agentapi.CodeNamespace || !strings.Contains(e.Error(), want) {
		t.Errorf("ADD: %v, want code %d and %q", e, agentapi.CodeNamespace, want)
	}
}

// The connections of the kubelet's probes, as the configuration has their addresses, are none
// that bypass a proxy.
func TestProbesDoNotBypass(t *testing.T) {
	netlab.Kernel(t)
	_, file := settings(t, "probeAddresses: {ipv4: 169.254.7.9, ipv6: 'fd16::9'}")
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	a, err := newAgent(c, t.TempDir(), false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Addr{netip.MustParseAddr("169.254.7.9"), netip.MustParseAddr("fd16::9")}
	if diff := cmp.Diff(want, a.opener.Exempt, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("exempt are (-want +got):\n%s", diff)
	}
}
