package nodeproxy_test

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/integration/nodeproxy"
	"github.com/fairlead-mesh/fairlead/iptables/route"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// Addresses of the pod and of the peer it is cabled to.
var (
	podAddrs  = map[string]string{"IPv4": "10.0.0.1", "IPv6": "fd00::1"}
	peerAddrs = map[string]string{"IPv4": "10.0.0.2", "IPv6": "fd00::2"}
)

func at(addr string, port int) string {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(port)).String()
}

// A pod is a captured pod that the proxy serves as uid0, and a peer outside.
type pod struct {
	*node
	link      *link
	app, peer *netlab.NS
}

// newPod captures a pod. prepare is done to it before the proxy comes.
func newPod(t *testing.T, cfg nodeproxy.Config, prepare ...func(app *netlab.NS)) *pod {
	t.Helper()
	if cfg.DNSTimeout == 0 {
		cfg.DNSTimeout = patience // name servers in tests answer, if slowly on a busy machine
	}
	n := newNode(t, cfg)
	p := &pod{node: n, app: netlab.NewNS(t, "pod"), peer: netlab.NewNS(t, "peer")}
	netlab.Connect(t,
		netlab.Port{NS: p.app, Addrs: netlab.Prefixes("10.0.0.1/24", "fd00::1/64")},
		netlab.Port{NS: p.peer, Addrs: netlab.Prefixes("10.0.0.2/24", "fd00::2/64")})
	for _, do := range prepare {
		do(p.app)
	}
	redirect(t, p.app)
	p.link = n.acceptSynced()
	p.link.add("uid0", p.app)
	return p
}

// redirect installs the rules and the routes of a captured pod.
func redirect(t *testing.T, app *netlab.NS) {
	t.Helper()
	rules, err := ruleset.Build(ruleset.Config{CaptureDNS: true, IPv4: true, IPv6: true, Form: ruleset.FormFull})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "rules.nft")
	if err := os.WriteFile(path, []byte(rules.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	netlab.MustRun(t, app, "nft", "-f", path)
	router, err := route.Open(app.Handle)
	if err != nil {
		t.Fatal(err)
	}
	if err := router.Apply(t.Context(), route.Config{IPv4: true, IPv6: true}); err != nil {
		t.Fatal(err)
	}
	if err := router.Close(); err != nil {
		t.Fatal(err)
	}
}

// wantRelayed fails the test unless the workload, and the proxy, have relayed that.
func (p *pod) wantRelayed(want nodeproxy.Relayed) {
	p.t.Helper()
	if got := p.workload("uid0").Relayed; got != want {
		p.t.Errorf("uid0 relayed %+v, want %+v", got, want)
	}
	if got := p.proxy.State().Relayed; got != want {
		p.t.Errorf("the proxy relayed %+v, want %+v", got, want)
	}
}

// wantIdle waits until no connection of the pod's is open.
func (p *pod) wantIdle() {
	p.t.Helper()
	netlab.Eventually(p.t, func() error {
		open := p.workload("uid0").Connections
		if len(open.Inbound)+len(open.Outbound) > 0 {
			return fmt.Errorf("open: %+v", open)
		}
		return nil
	})
}

func sorted(lines []string) string {
	slices.Sort(lines)
	return strings.TrimSpace(strings.Join(lines, ""))
}
