package hostnet

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// A pod that sends from the probes' source to its neighbour on the bridge gets through
// without the exemption's guard, and not with it.
func TestSpoofedSource(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 2)
	e := open(t, config(n.host))
	// -e: there may be no br_netfilter at all.
	netlab.MustRun(t, n.host, "sysctl", "-qe", "-w", "net.bridge.bridge-nf-call-iptables=0", "net.bridge.bridge-nf-call-ip6tables=0")
	for _, test := range []struct{ family, source, own, target string }{
		{"IPv4", "169.254.7.127:0", "10.0.0.2:0", "10.0.0.3:7000"},
		{"IPv6", "[fd16:9254:7127:1337:ffff:ffff:ffff:ffff]:0", "[fd00::2]:0", "[fd00::3]:7000"},
	} {
		t.Run(test.family, func(t *testing.T) {
			sink, err := n.pods[1].ListenPacket(test.target)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = sink.Close() }()
			if err := sink.SetDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			heard := func() string { return heard(t, n.pods[0], sink, test.target, test.source, test.own) }
			if got, want := heard(), test.source+" "+test.own; got != want {
				t.Fatalf("without a guard %s was heard, want %s", got, want)
			}
			set(t, e, "spoofer", podOf(0))
			if got := heard(); got != test.own {
				t.Errorf("with a guard %s was heard, want %s", got, test.own)
			}
			remove(t, e, "spoofer")
		})
	}
}

// heard sends from the addresses, the pod's own last, so that it is known when all has
// come, and returns those that came.
func heard(t *testing.T, pod *netlab.NS, sink net.PacketConn, target, source, own string) string {
	t.Helper()
	for _, from := range []string{source, own} {
		conn, err := pod.Dial(t.Context(), "udp", target, netlab.From(from))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprint(conn, from); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
	var all []string
	buf := make([]byte, 100)
	for !slices.Contains(all, own) {
		size, _, err := sink.ReadFrom(buf)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(buf[:size]))
	}
	return strings.Join(all, " ")
}

// What comes to the host from the probes' source is dropped, from whatever pod: what is
// routed comes by here, and what is bridged where br_netfilter has it so.
func TestSourceOfAnUnknownPod(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 2)
	e := open(t, config(n.host))
	sink, err := n.host.ListenPacket("10.0.0.1:7000")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sink.Close() }()
	if err := sink.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	const spoofed, own = "169.254.7.127:0", "10.0.0.2:0"
	netlab.MustRun(t, n.host, "sysctl", "-qw", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.bridge.rp_filter=0")
	if got, want := heard(t, n.pods[0], sink, "10.0.0.1:7000", spoofed, own), spoofed+" "+own; got != want {
		t.Fatalf("without our table %s was heard, want %s", got, want)
	}
	set(t, e, "other", podOf(1))
	if got := heard(t, n.pods[0], sink, "10.0.0.1:7000", spoofed, own); got != own {
		t.Errorf("with our table %s was heard, want %s", got, own)
	}
}

// An interface is found from its pod, and its guard goes with it.
func TestLinkVanishes(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 3)
	c := config(n.host)
	c.Watcher = watcher(t)
	e := open(t, c)
	for i, pod := range n.pods {
		got, err := e.links(t.Context(), pod.Handle)
		if want := podOf(i).Links; err != nil || !slices.Equal(got, want) {
			t.Errorf("the interfaces of pod %d: %q, %v; want %q", i, got, err, want)
		}
	}
	// The other end of a pair may be anywhere, under any number.
	elsewhere := netlab.NewNS(t, "elsewhere")
	index, _, _ := strings.Cut(netlab.MustRun(t, n.host, "ip", "-o", "link", "show", "veth1"), ":")
	netlab.MustRun(t, elsewhere, "ip", "link", "add", "x", "index", index, "type", "veth", "peer", "name", "eth1", "netns", n.pods[0].Name)
	if got, err := e.links(t.Context(), n.pods[0].Handle); err != nil || !slices.Equal(got, podOf(0).Links) {
		t.Errorf("the interfaces of a pod with a pair to elsewhere: %q, %v", got, err)
	}
	alone := netlab.NewNS(t, "alone")
	if got, err := e.links(t.Context(), alone.Handle); err != nil || got != nil {
		t.Errorf("the interfaces of a pod without any: %q, %v", got, err)
	}

	run(t, e)
	for i := range n.pods {
		set(t, e, fmt.Sprintf("pod-%d", i), podOf(i))
	}
	netlab.MustRun(t, n.host, "ip", "link", "delete", "veth0")
	netlab.MustRun(t, n.host, "nft", "flush", "ruleset") // so that all guards have to be put back
	asWanted(t, e)
	netlab.MustRun(t, n.host, "ip", "link", "delete", "veth1")
	set(t, e, "late", Pod{Addrs: podOf(2).Addrs[:1], Links: podOf(2).Links})
	remove(t, e, "pod-0")
	remove(t, e, "pod-1")
	e.forgetRead("")
	e.turn(t.Context())
	if got, want := members(t, e), lines("address 10.0.0.4 of pod late", "address fd00::4 of pod pod-2", "guard at veth2 of pod late"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	asWanted(t, e)
	if s := e.Status(); s.Unguarded != "" || s.Problem != "" {
		t.Errorf("status %+v", s)
	}
}

// A kernel before 6.16 refuses a guard at an interface that is not there, and one before
// 5.10 any.
func TestRefusedGuards(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 2)
	e := open(t, config(n.host))
	set(t, e, "web", podOf(0))
	set(t, e, "db", podOf(1))
	step := step{what: "the guard at interface veth0", guard: "veth0"}

	e.fresh = false
	if err := e.failed(step, unix.ENOENT); !errors.Is(err, errStale) || len(e.pods.links) != 2 {
		t.Errorf("perhaps the table has gone: %v, guards wanted %v", err, e.pods.links)
	}
	e.fresh = true
	if err := e.failed(step, unix.ENOENT); !errors.Is(err, errStale) {
		t.Errorf("the interface has gone: %v", err)
	}
	set(t, e, "web", Pod{Addrs: podOf(0).Addrs})
	if got, want := members(t, e), lines("address 10.0.0.2 of pod web", "address 10.0.0.3 of pod db", "address fd00::2 of pod web",
		"address fd00::3 of pod db", "guard at veth1 of pod db"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if err := e.failed(step, unix.ENOMEM); err == nil || errors.Is(err, errStale) || e.Status().Unguarded != "" {
		t.Errorf("what passes: %v, unguarded: %q", err, e.Status().Unguarded)
	}
	if err := e.failed(step, unix.EOPNOTSUPP); !errors.Is(err, errStale) {
		t.Errorf("no interface can have one: %v", err)
	}
	set(t, e, "web", podOf(0))
	if got, want := members(t, e), lines("address 10.0.0.2 of pod web", "address 10.0.0.3 of pod db", "address fd00::2 of pod web",
		"address fd00::3 of pod db"); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if got, want := e.Status().Unguarded, "the guard at interface veth0: operation not supported (Linux 5.10 has ingress chains of family inet)"; got != want {
		t.Errorf("unguarded: %q, want %q", got, want)
	}
}
