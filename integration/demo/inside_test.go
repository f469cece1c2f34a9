package demo

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// Each thing that a capture puts into a namespace is seen there.
func TestTraces(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "pod")
	find := func() []string {
		t.Helper()
		found, err := traces(n)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := find(); len(found) > 0 {
		t.Errorf("in an untouched namespace: %q", found)
	}
	n.Do(t, func() {
		conn := &nftables.Conn{}
		conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "other"})
		if err := conn.Flush(); err != nil {
			t.Error(err)
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families() {
			if err := netlink.RuleAdd(returnRule(family)); err != nil {
				t.Error(err)
			}
			everything := map[int]string{unix.AF_INET: "0.0.0.0/0", unix.AF_INET6: "::/0"}[family]
			dst, err := netlink.ParseIPNet(everything)
			if err == nil {
				err = netlink.RouteAdd(&netlink.Route{
					LinkIndex: lo.Attrs().Index, Dst: dst, Table: routeTable,
					Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
				})
			}
			if err != nil {
				t.Errorf("%s: %v", everything, err)
			}
		}
	})
	netlab.ServeEcho(t, n, "hbone", "tcp", fmt.Sprintf("[::]:%d", hbonePort))
	netlab.ServeEcho(t, n, "dns", "udp", fmt.Sprintf("127.0.0.1:%d", dnsPort))
	netlab.ServeEcho(t, n, "app", "tcp", "0.0.0.0:15999")
	found := find()
	for _, want := range []string{
		"nft table other", "IPv4 rule 32764: fwmark 0x111, table 100", "IPv6 rule 32764: fwmark 0x111, table 100",
		"IPv4 route in table 100", "IPv6 route in table 100", "listener on 15008", "listener on 15053",
	} {
		if !slices.ContainsFunc(found, func(s string) bool { return strings.HasPrefix(s, want) }) {
			t.Errorf("%q is not in %q", want, found)
		}
	}
	if len(found) != 7 {
		t.Errorf("found %d things: %q", len(found), found)
	}
}

// A web server tells tagged clients from others, and a cut from an answer.
func TestWeb(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "pod")
	w, err := serveWeb(n)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	for _, addr := range []string{"127.0.0.1", "::1"} {
		to := netip.AddrPortFrom(netip.MustParseAddr(addr), webPort)
		c, err := converse(t.Context(), n, to)
		if err != nil {
			t.Fatal(err)
		}
		if c.Tagged || c.Peer != c.local() {
			t.Errorf("the server saw %+v of %s", c.greeting, c.local())
		}
		for range 3 {
			if err := c.say(); err != nil {
				t.Error(err)
			}
		}
		w.reset()
		if err := c.say(); err == nil {
			t.Error("a connection that was reset goes on")
		}
		c.close()

		conn, err := n.Dial(t.Context(), "tcp", to.String(), tag)
		if err != nil {
			t.Fatal(err)
		}
		c = &conversation{conn: conn}
		if err := c.greet(); err != nil || !c.Tagged {
			t.Errorf("a tagged client: %+v, %v", c.greeting, err)
		}
		c.close()
	}
}

// tag is what the reference proxy sets on its sockets.
func tag(fd int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TCLASS, proxyTag<<2); err == nil {
		return nil
	}
	return unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TOS, proxyTag<<2)
}
