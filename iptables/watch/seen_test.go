package watch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// run executes a command line in a namespace.
func run(t testing.TB, n *netlab.NS, line string) {
	t.Helper()
	words := strings.Fields(line)
	netlab.MustRun(t, n, words[0], words[1:]...)
}

func TestRulesetChangesAreSeen(t *testing.T) {
	netlab.Kernel(t)
	w := start(t)
	n := netlab.NewNS(t, "a")
	run(t, n, "nft add table inet theirs; add chain inet theirs c")
	for _, tt := range []struct{ command, by string }{
		{"nft add rule inet theirs c accept", "nft"},
		{"nft flush chain inet theirs c", "nft"},
		{"iptables-nft -t nat -A OUTPUT -j ACCEPT", "iptables-nft"},
		{"ip6tables-nft -A INPUT -j ACCEPT", "ip6tables-nft"},
		{"nft add table ip unused", "nft"},
		{"nft flush ruleset", "nft"},
	} {
		watch, r := add(t, w, n.Handle)
		run(t, n, tt.command)
		r.wait(t, Ruleset, tt.by)
		if got := r.sum(); got.What != Ruleset || len(got.By) != 1 || got.By[0].Port == 0 {
			t.Errorf("%s: changes of %s by %+v", tt.command, got.What, got.By)
		}
		if err := watch.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestRouteChangesAreSeen(t *testing.T) {
	netlab.Kernel(t)
	w := start(t)
	n, peer := netlab.NewNS(t, "a"), netlab.NewNS(t, "b")
	netlab.Connect(t, netlab.Port{NS: n, Link: "eth0", Addrs: netlab.Prefixes("10.0.0.1/24", "fd00::1/64")},
		netlab.Port{NS: peer, Link: "eth0"})
	for _, tt := range []struct {
		command string
		want    What
	}{
		{"ip rule add fwmark 0x111/0xfff lookup 100 pref 32764", Rules},
		{"ip rule del pref 32764", Rules},
		{"ip -6 rule add fwmark 0x111/0xfff lookup 100 pref 32764", Rules},
		{"ip -6 rule del pref 32764", Rules},
		{"ip route add local default dev lo table 100", Routes},
		{"ip route flush table 100", Routes},
		{"ip -6 route add local default dev lo table 100", Routes},
		{"ip -6 route flush table 100", Routes},
		{"ip route add 10.9.0.0/16 via 10.0.0.2", Routes},
		{"ip addr del 127.0.0.1/8 dev lo", Addresses},
		{"ip addr del ::1/128 dev lo", Addresses},
		{"ip link set lo down", Links},
		{"ip link set lo up", Links | Addresses},
		{"ip link add x type bridge", Links},
		{"ip link set eth0 down", Links | Routes},
		{"ip link del eth0", Links},
	} {
		watch, r := add(t, w, n.Handle)
		run(t, n, tt.command)
		r.wait(t, tt.want, "")
		if got := r.sum(); got.What&Ruleset != 0 || got.By != nil {
			t.Errorf("%s: changes of %s by %+v", tt.command, got.What, got.By)
		}
		if err := watch.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The kernel tells of every object of a transaction, and of the transaction itself at
// the end only.
func TestLargeTransactionIsOneMessage(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "a")
	w, err := New() // does not run: what comes stays in the buffer
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Close() }()
	watch, _ := add(t, w, n.Handle)
	var batch strings.Builder
	batch.WriteString("add table ip t\n")
	for i := range 2000 {
		fmt.Fprintf(&batch, "add chain ip t c%d\n", i)
	}
	file := filepath.Join(t.TempDir(), "batch")
	if err := os.WriteFile(file, []byte(batch.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	run(t, n, "nft -f "+file)
	c, _ := watch.hear()
	if len(c.By) != 1 || c.By[0].Name != "nft" {
		t.Errorf("changes of %s by %+v", c.What, c.By)
	}
}

// Files under /proc are another way to change links, and the kernel's own doing is
// another still.
func TestChangesWithoutARequestAreSeen(t *testing.T) {
	netlab.Kernel(t)
	w := start(t)
	n, peer := netlab.NewNS(t, "a"), netlab.NewNS(t, "b")
	netlab.Connect(t, netlab.Port{NS: n, Link: "eth0"}, netlab.Port{NS: peer, Link: "eth0"})
	_, r := add(t, w, n.Handle)
	if err := n.Sysctl("net/ipv6/conf/lo/disable_ipv6", "1"); err != nil {
		t.Fatal(err)
	}
	r.wait(t, Addresses, "")
	run(t, peer, "ip link del eth0")
	r.wait(t, Links, "")
}

// The package says that it does not see them; if the kernel learns to tell, it may.
func TestLegacyTablesAreNotSeen(t *testing.T) {
	netlab.Kernel(t)
	w := start(t)
	n := netlab.NewNS(t, "a")
	_, r := add(t, w, n.Handle)
	run(t, n, "iptables-legacy -t nat -I OUTPUT -j ACCEPT")
	run(t, n, "ip6tables-legacy -t mangle -I OUTPUT -j ACCEPT")
	run(t, n, "nft add table ip after")
	r.wait(t, Ruleset, "nft")
	if got := r.sum(); got.What != Ruleset || len(got.By) != 1 {
		t.Errorf("changes of %s by %+v", got.What, got.By)
	}
}

func TestOwnChangesAreKnownByTheirPort(t *testing.T) {
	netlab.Kernel(t)
	w := start(t)
	n := netlab.NewNS(t, "a")
	ours := newChanger(t, n)
	port, err := ours.conn.Port()
	if err != nil {
		t.Fatal(err)
	}
	_, r := add(t, w, n.Handle)
	if err := ours.change(true); err != nil {
		t.Fatal(err)
	}
	r.wait(t, Ruleset, "")
	if by := r.sum().By; len(by) != 1 || by[0].Port != port {
		t.Errorf("by %+v, want port %d", by, port)
	}
	run(t, n, "nft flush ruleset")
	r.wait(t, Ruleset, "nft")
	if by := r.sum().By; len(by) != 2 || by[1].Port == port {
		t.Errorf("by %+v, the second from another port than %d", by, port)
	}
}

// A process in the pod may send to a group, and to us, what looks like the kernel's.
func TestForgedNotificationsAreDropped(t *testing.T) {
	netlab.Kernel(t)
	w := start(t)
	n := netlab.NewNS(t, "a")
	watch, r := add(t, w, n.Handle)
	for _, s := range watch.sockets {
		var forger int
		var err error
		n.Do(t, func() { forger, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, s.protocol) })
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(forger) }()
		address, err := unix.Getsockname(s.fd)
		if err != nil {
			t.Fatal(err)
		}
		forged := generation(t, 1, "forged")
		if s.protocol == unix.NETLINK_ROUTE {
			forged = notification(unix.RTM_NEWRULE, nil)
		}
		if err := unix.Sendto(forger, forged, 0, address); err != unix.ECONNREFUSED {
			t.Errorf("sent to the socket: %v", err)
		}
		for _, group := range s.groups {
			to := &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1 << (group - 1)}
			// The group gets it first, then the kernel as a request, which it refuses in an answer.
			if err := unix.Sendto(forger, forged, 0, to); err != nil {
				t.Errorf("sent to group %d: %v", group, err)
			}
		}
	}
	run(t, n, "nft add table ip after")
	r.wait(t, Ruleset, "nft")
	run(t, n, "ip link add x type bridge")
	r.wait(t, Links, "")
	if got := r.sum(); got.What&Rules != 0 || len(got.By) != 1 {
		t.Errorf("changes of %s by %+v", got.What, got.By)
	}
}
