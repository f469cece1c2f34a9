package route_test

import (
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/route"
)

func TestFamilies(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "pod")
	for _, disabled := range []string{"0", "1"} {
		if err := n.Sysctl("net/ipv6/conf/all/disable_ipv6", disabled); err != nil {
			t.Fatal(err)
		}
		if ipv4, ipv6, err := route.Families(n.Handle); !ipv4 || !ipv6 || err != nil {
			t.Errorf("disable_ipv6=%s: %t, %t, %v", disabled, ipv4, ipv6, err)
		}
	}
}

func TestIPv6SwitchedOffEverywhere(t *testing.T) {
	netlab.Kernel(t)
	n, r := pod(t)
	if err := n.Sysctl("net/ipv6/conf/all/disable_ipv6", "1"); err != nil {
		t.Fatal(err)
	}
	apply(t, r, both)
	rule6 := strings.SplitAfter(ours6, "\n")[0]
	wantState(t, n, ours4+rule6)
	if report := check(t, r, both); len(report.Drift) != 0 {
		t.Errorf("there is nothing to route: %q", report.Drift)
	}
	if err := n.Sysctl("net/ipv6/conf/all/disable_ipv6", "0"); err != nil {
		t.Fatal(err)
	}
	if report := check(t, r, both); len(report.Drift) != 1 {
		t.Errorf("switched on again: %q", report.Drift)
	}
	apply(t, r, both)
	wantState(t, n, ours4+ours6)
}

func TestIPv6SwitchedOffOnLoopbackAlone(t *testing.T) {
	netlab.Kernel(t)
	n, r := pod(t)
	ip(t, n, "link add eth0 type bridge")
	if err := n.Sysctl("net/ipv6/conf/lo/disable_ipv6", "1"); err != nil {
		t.Fatal(err)
	}
	const remedy = "net.ipv6.conf.lo.disable_ipv6=0"
	if err := r.Apply(t.Context(), both); err == nil || !strings.Contains(err.Error(), remedy) || !strings.Contains(err.Error(), "eth0") {
		t.Errorf("Apply: %v", err)
	}
	if _, err := r.Check(t.Context(), both); err == nil || !strings.Contains(err.Error(), remedy) {
		t.Errorf("Check: %v", err)
	}
	if err := r.Remove(t.Context()); err != nil {
		t.Errorf("Remove: %v", err)
	}
}

func loopbackUp(t *testing.T, n *netlab.NS) bool {
	t.Helper()
	return strings.Contains(ip(t, n, "link show lo"), "LOOPBACK,UP")
}

func TestEnsureLoopbackBringsItUp(t *testing.T) {
	netlab.Kernel(t)
	n, r := pod(t)
	ip(t, n, "link set lo down")
	if err := r.Apply(t.Context(), both); err == nil || !strings.Contains(err.Error(), "lo is down") {
		t.Errorf("Apply with lo down: %v", err)
	}
	if report := check(t, r, both); len(report.Drift) == 0 || report.Drift[0] != route.LoopbackDown {
		t.Errorf("Check with lo down: %q", report.Drift)
	}
	for range 2 { // the second time it is up
		if err := r.EnsureLoopback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !loopbackUp(t, n) {
			t.Fatal("lo is down")
		}
	}
	if addrs := ip(t, n, "addr show lo"); !strings.Contains(addrs, "127.0.0.1/8") || !strings.Contains(addrs, "::1/128") {
		t.Errorf("lo lacks an address: %s", addrs)
	}
	apply(t, r, both)
	wantState(t, n, ours4+ours6)
}
