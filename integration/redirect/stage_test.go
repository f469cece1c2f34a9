package redirect_test

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/conntrack"
	"github.com/fairlead-mesh/fairlead/iptables/nft"
	"github.com/fairlead-mesh/fairlead/iptables/route"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

func TestMain(m *testing.M) { netlab.Main(m, 15) }

// stage is a pod and what it talks to. On one switch: the pod, a peer, and the node, which is the pod's router and has the
// probes' source addresses. Behind the pod's interface k6t-eth0: a virtual machine.
type stage struct {
	t                   *testing.T
	pod, peer, node, vm *netlab.NS
	rules               *nft.Table
	routes              *route.Router
	entries             *conntrack.Table
}

// names of the addresses in both families, as the tables of tests have them.
var addresses = map[string][2]string{
	"pod":      {"10.0.0.5", "fd00::5"},
	"peer":     {"10.0.0.9", "fd00::9"},
	"node":     {"10.0.0.1", "fd00::1"},
	"vm":       {"10.1.0.2", "fd01::2"},
	"vm's pod": {"10.1.0.1", "fd01::1"},
	"loopback": {"127.0.0.1", "::1"},
	"any":      {"0.0.0.0", "::"},
	"probe":    {ruleset.DefaultProbeIPv4.String(), ruleset.DefaultProbeIPv6.String()},
}

// family is the index into addresses.
type family int

var families = []family{0, 1}

func (f family) String() string { return []string{"IPv4", "IPv6"}[f] }

// address is a name and a port, "peer:80", in one family.
func (f family) address(named string) string {
	name, port, _ := strings.Cut(named, ":")
	a, known := addresses[name]
	if !known {
		panic("no address is called " + name)
	}
	return netip.MustParseAddr(a[f]).String() + ":" + port
}

func (f family) endpoint(named string) string {
	name, port, _ := strings.Cut(named, ":")
	if a := addresses[name][f]; strings.Contains(a, ":") {
		return "[" + a + "]:" + port
	}
	return f.address(named)
}

// nameOf is the reverse.
func nameOf(a netip.Addr) string {
	for name, of := range addresses {
		if a.String() == of[0] || a.String() == of[1] {
			return name
		}
	}
	return a.String()
}

func prefixes(name string) []netip.Prefix {
	bits := [2]int{24, 64}
	if name == "probe" {
		bits = [2]int{32, 128}
	}
	var all []netip.Prefix
	for f, text := range addresses[name] {
		all = append(all, netip.PrefixFrom(netip.MustParseAddr(text), bits[f]))
	}
	return all
}

// newStage sets up the network, without any rules.
func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{t: t, pod: netlab.NewNS(t, "pod"), peer: netlab.NewNS(t, "peer"), node: netlab.NewNS(t, "node"), vm: netlab.NewNS(t, "vm")}
	netlab.NewSwitch(t, "switch",
		netlab.Port{NS: s.pod, Addrs: prefixes("pod")},
		netlab.Port{NS: s.peer, Addrs: prefixes("peer")},
		netlab.Port{NS: s.node, Addrs: append(prefixes("node"), prefixes("probe")...)})
	netlab.Connect(t,
		netlab.Port{NS: s.pod, Link: "k6t-eth0", Addrs: prefixes("vm's pod")},
		netlab.Port{NS: s.vm, Addrs: prefixes("vm")})
	for f, all := range []string{"0.0.0.0/0", "::/0"} {
		s.must(s.pod.AddRoute(netip.MustParsePrefix(all), netip.MustParseAddr(addresses["node"][f])))
		s.must(s.vm.AddRoute(netip.MustParsePrefix(all), netip.MustParseAddr(addresses["vm's pod"][f])))
	}
	var err error
	s.rules, err = nft.Open(s.pod.Handle)
	s.must(err)
	s.routes, err = route.Open(s.pod.Handle)
	s.must(err)
	s.entries = conntrack.New(s.rules.Netfilter())
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{s.rules, s.routes} {
			s.must(c.Close())
		}
	})
	return s
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// capture puts the pod's rules and routes in place.
func (s *stage) capture(c ruleset.Config, form ruleset.Form) {
	s.t.Helper()
	c.IPv4, c.IPv6, c.Form = true, true, form
	rs, err := ruleset.Build(c)
	s.must(err)
	s.must(s.routes.Apply(context.Background(), route.Config{IPv4: true, IPv6: true}))
	s.must(s.rules.Apply(context.Background(), rs))
}

// The proxy's socket options.
func proxySocket() []netlab.Option {
	return []netlab.Option{netlab.Mark(int(ruleset.ProxyMark)), netlab.Transparent}
}

// serve has everybody listen: the app, its peers, and what stands in for the proxy, each under its name.
func (s *stage) serve() {
	s.t.Helper()
	for _, port := range []string{":80", ":53", ":15008"} {
		netlab.ServeEcho(s.t, s.peer, "peer", "tcp", "[::]"+port)
	}
	netlab.ServeEcho(s.t, s.node, "node", "tcp", "[::]:80")
	netlab.ServeEcho(s.t, s.pod, "app", "tcp", "[::]:80")
	netlab.ServeEcho(s.t, s.pod, "app", "tcp", "[::]:53")
	netlab.ServeEcho(s.t, s.pod, "transparent", "tcp", "[::]:90", netlab.Transparent)
	for _, f := range families { // datagrams are answered from the address they were sent to
		netlab.ServeEcho(s.t, s.peer, "peer", "udp", f.endpoint("peer:53"))
		netlab.ServeEcho(s.t, s.peer, "peer", "udp", f.endpoint("peer:443"))
		netlab.ServeEcho(s.t, s.pod, "app", "udp", f.endpoint("pod:53"))
		netlab.ServeEcho(s.t, s.pod, "app", "udp", f.endpoint("pod:443"))
		netlab.ServeEcho(s.t, s.pod, "15053", "udp", f.endpoint("loopback:15053"), proxySocket()...)
		netlab.ServeEcho(s.t, s.pod, "15053", "tcp", f.endpoint("loopback:15053"), proxySocket()...)
	}
	s.serveProxy("15001", "15006", "15008")
}

func (s *stage) serveProxy(ports ...string) {
	s.t.Helper()
	for _, port := range ports {
		netlab.ServeEcho(s.t, s.pod, port, "tcp", "[::]:"+port, proxySocket()...)
	}
}

// ask has somebody open a connection, or send a datagram, and tells in words who answered.
func (s *stage) ask(from *netlab.NS, network, to string, options ...netlab.Option) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	reply, err := netlab.AskEcho(ctx, from, network, to, options...)
	if err != nil {
		return err.Error()
	}
	words := fmt.Sprintf("%s, from %s", reply.Server, nameOf(reply.Peer.Addr()))
	if reply.OriginalDst.IsValid() {
		words += fmt.Sprintf(", for %s:%d", nameOf(reply.OriginalDst.Addr()), reply.OriginalDst.Port())
	}
	return words
}
