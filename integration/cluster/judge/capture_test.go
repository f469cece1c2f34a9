package judge

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func TestMain(m *testing.M) { netlab.Main(m, 3) }

// A node is a switch with a pod a, and one b, and an uplink.
type node struct{ pods, a, b, outside *netlab.NS }

func newNode(t *testing.T) node {
	t.Helper()
	n := node{a: netlab.NewNS(t, "a"), b: netlab.NewNS(t, "b"), outside: netlab.NewNS(t, "outside")}
	n.pods = netlab.NewSwitch(t, "node",
		netlab.Port{NS: n.a, Addrs: netlab.Prefixes("10.0.0.1/24", "fd00::1/64")},
		netlab.Port{NS: n.b, Addrs: netlab.Prefixes("10.0.0.2/24", "fd00::2/64")})
	if err := n.pods.Plug("uplink", netlab.Port{NS: n.outside, Addrs: netlab.Prefixes("10.0.0.3/24", "fd00::3/64")}); err != nil {
		t.Fatal(err)
	}
	return n
}

// tagged is the reference proxy's tag on a socket.
func tagged(fd int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TOS, tag)
	if domain, e := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN); e != nil || domain == unix.AF_INET {
		return err
	}
	return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TCLASS, tag)
}

// kinds tells what was recorded, without the ports that the kernel chose and the times.
func kinds(t *testing.T, segments []Segment) string {
	t.Helper()
	const own = 1000
	port := func(a netip.AddrPort) string {
		if a.Port() < own {
			return a.String()
		}
		return netip.AddrPortFrom(a.Addr(), 0).String()
	}
	var lines []string
	for _, s := range segments {
		if s.Time.IsZero() {
			t.Errorf("%+v has no time", s)
		}
		lines = append(lines, port(s.From)+" "+port(s.To)+" "+s.What)
	}
	slices.Sort(lines)
	return strings.Join(slices.Compact(lines), "\n") + "\n"
}

// What has the tag is told from what has not, whoever of two pods sends it, and a pod
// from what is outside.
func TestCapture(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := newNode(t)
	c, err := Start("node", n.pods.Handle, "uplink")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []struct{ a, b, outside string }{{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, {"[fd00::1]", "[fd00::2]", "[fd00::3]"}} {
		netlab.ServeEcho(t, n.b, "tagged", "tcp", f.b+":80", tagged)
		netlab.ServeEcho(t, n.b, "plain", "tcp", f.b+":81")
		netlab.Ask(t, n.a, "tcp", f.b+":80", tagged)
		netlab.Ask(t, n.a, "tcp", f.b+":81")
		netlab.Ask(t, n.outside, "tcp", f.b+":80")
		netlab.ServeEcho(t, n.b, "datagrams", "udp", f.b+":82")
		netlab.Ask(t, n.a, "udp", f.b+":82")
		if err := Send(n.a.Handle, "eth0", netip.MustParseAddrPort(f.a+":7"), netip.MustParseAddrPort(f.b+":9")); err != nil {
			t.Fatal(err)
		}
	}
	got, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	const want = `10.0.0.1:0 10.0.0.2:81 a SYN
10.0.0.1:0 10.0.0.2:81 payload
10.0.0.1:7 10.0.0.2:9 a SYN
10.0.0.2:81 10.0.0.1:0 a SYN that answers
10.0.0.2:81 10.0.0.1:0 payload
[fd00::1]:0 [fd00::2]:81 a SYN
[fd00::1]:0 [fd00::2]:81 payload
[fd00::1]:7 [fd00::2]:9 a SYN
[fd00::2]:81 [fd00::1]:0 a SYN that answers
[fd00::2]:81 [fd00::1]:0 payload
`
	if diff := cmp.Diff(want, kinds(t, got.Untagged)); diff != "" || got.Lost != 0 {
		t.Errorf("lost %d; untagged (-want +got):\n%s", got.Lost, diff)
	}
	for _, from := range []string{"10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"} {
		if got.Tagged[netip.MustParseAddr(from)] < 2 { // a SYN, and something
			t.Errorf("%d tagged segments from %s, want 2 and more", got.Tagged[netip.MustParseAddr(from)], from)
		}
	}
	// The bridge hands them on to the node, with other addresses where the node translates.
	if sent := slices.DeleteFunc(slices.Clone(got.Untagged), func(s Segment) bool { return s.From.Port() != 7 }); len(sent) != 2 {
		t.Errorf("two segments were seen as %v", sent)
	}
	if len(got.Tagged) != 4 {
		t.Errorf("tagged segments from %v, want a and b alone", got.Tagged)
	}
	if _, err := c.Stop(); err == nil {
		t.Error("a second stop went well")
	}
}

// A pod that comes while the capture runs, and has gone when its packets are looked at.
func TestCaptureOfAPodThatComesAndGoes(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t)
	c, err := listen("node", n.pods.Handle, buffer, []string{"uplink"})
	if err != nil {
		t.Fatal(err)
	}
	late := netlab.NewNS(t, "late")
	if err := n.pods.Plug("late", netlab.Port{NS: late, Addrs: netlab.Prefixes("10.0.0.4/24")}); err != nil {
		t.Fatal(err)
	}
	netlab.ServeEcho(t, n.b, "plain", "tcp", "10.0.0.2:81")
	netlab.Ask(t, late, "tcp", "10.0.0.2:81")
	netlab.MustRun(t, n.pods, "ip", "link", "delete", "late")
	c.start()
	got, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	const want = `10.0.0.2:81 10.0.0.4:0 a SYN that answers
10.0.0.2:81 10.0.0.4:0 payload
10.0.0.4:0 10.0.0.2:81 a SYN
10.0.0.4:0 10.0.0.2:81 payload
`
	if diff := cmp.Diff(want, kinds(t, got.Untagged)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// What the kernel had to drop is counted.
func TestCaptureThatCannotFollow(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t)
	c, err := listen("node", n.pods.Handle, 1, nil) // the kernel makes the least it can of that
	if err != nil {
		t.Fatal(err)
	}
	const sent = 1000
	for range sent {
		if err := Send(n.a.Handle, "eth0", netip.MustParseAddrPort("10.0.0.1:7"), netip.MustParseAddrPort("10.0.0.2:9")); err != nil {
			t.Fatal(err)
		}
	}
	c.start()
	got, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	// A bridge, too, has shown each of them to the kernel.
	if got.Lost == 0 || len(got.Untagged) == 0 || len(got.Untagged)+got.Lost < sent {
		t.Errorf("of %d segments %d were seen and %d lost", sent, len(got.Untagged), got.Lost)
	}
}
