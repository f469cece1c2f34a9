package netlab_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) != "" {
		helper() // the program that TestIsolate… runs
	}
	netlab.Main(m, 15)
}

func pair(t *testing.T) (a, b *netlab.NS) {
	t.Helper()
	a, b = netlab.NewNS(t, "a"), netlab.NewNS(t, "b")
	netlab.Connect(t,
		netlab.Port{NS: a, Addrs: netlab.Prefixes("10.0.0.1/24", "fd00::1/64")},
		netlab.Port{NS: b, Addrs: netlab.Prefixes("10.0.0.2/24", "fd00::2/64")})
	return a, b
}

func TestMainGivesPrivateNamespaces(t *testing.T) {
	netlab.Kernel(t)
	if pid := os.Getpid(); pid != 1 {
		t.Errorf("pid %d, want 1, of a PID namespace", pid)
	}
	if self, err := os.Readlink("/proc/self"); err != nil || self != "1" {
		t.Errorf("/proc is another PID namespace's: it calls this process %s, %v", self, err)
	}
	run, err := filepath.Glob("/var/run/*")
	if err != nil || strings.Join(run, " ") != "/var/run/netns /var/run/tmp" {
		t.Errorf("/var/run holds %v, %v", run, err)
	}
	if dir := t.TempDir(); !strings.HasPrefix(dir, "/run/tmp/") {
		t.Errorf("temporary files go to %s, which outlives the test", dir)
	}
}

func TestEchoAcrossACable(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	a, b := pair(t)
	for _, network := range []string{"tcp", "udp"} {
		for server, client := range map[string]string{"10.0.0.2:7": "10.0.0.1", "[fd00::2]:7": "fd00::1"} {
			netlab.ServeEcho(t, b, network+" echo", network, server)
			got := netlab.Ask(t, a, network, server)
			want := netlab.Reply{
				Server: network + " echo",
				Peer:   netip.AddrPortFrom(netip.MustParseAddr(client), got.Peer.Port()),
				Local:  netip.MustParseAddrPort(server),
			}
			if got != want {
				t.Errorf("%s %s: got %+v, want %+v", network, server, got, want)
			}
		}
	}
}

func TestEchoOnLoopback(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "alone")
	for _, addr := range []string{"127.0.0.1:7", "[::1]:8"} {
		netlab.ServeEcho(t, n, "lo", "tcp", addr)
		if got := netlab.Ask(t, n, "tcp", addr); got.Local != netip.MustParseAddrPort(addr) {
			t.Errorf("%s: reached %+v", addr, got)
		}
	}
}

func TestSwitchAndRoutes(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	var ports []netlab.Port
	for name, addr := range map[string]string{"a": "10.0.0.1/24", "b": "10.0.0.2/24", "c": "10.0.0.3/24"} {
		ports = append(ports, netlab.Port{NS: netlab.NewNS(t, name), Addrs: netlab.Prefixes(addr)})
	}
	netlab.NewSwitch(t, "switch", ports...)
	for _, server := range ports {
		addr := netip.AddrPortFrom(server.Addrs[0].Addr(), 7).String()
		netlab.ServeEcho(t, server.NS, server.NS.Name, "tcp", addr)
		for _, client := range ports {
			got := netlab.Ask(t, client.NS, "tcp", addr)
			if got.Server != server.NS.Name || got.Peer.Addr() != client.Addrs[0].Addr() {
				t.Errorf("%s asked %s and got %+v", client.NS.Name, addr, got)
			}
		}
	}
	far := netip.MustParsePrefix("10.9.0.0/16")
	if err := ports[0].NS.AddRoute(far, ports[1].Addrs[0].Addr()); err != nil {
		t.Fatal(err)
	}
	if got := netlab.MustRun(t, ports[0].NS, "ip", "route", "get", "10.9.1.1"); !strings.Contains(got, "via "+ports[1].Addrs[0].Addr().String()) {
		t.Errorf("the route is not used: %s", got)
	}
}

func TestRedirectedConnectionTellsItsOriginalDestination(t *testing.T) {
	netlab.Kernel(t)
	a, b := pair(t)
	netlab.MustRun(t, a, "nft", `add table inet t
		add chain inet t out { type nat hook output priority -100; }
		add rule inet t out tcp dport 80 meta mark != 0x539 redirect to :15001`)
	if list := netlab.NftList(t, a); !strings.Contains(list, "redirect to :15001") {
		t.Errorf("nft lists %q", list)
	}
	for _, addr := range []string{"10.0.0.2:80", "[fd00::2]:80"} {
		netlab.ServeEcho(t, b, "server", "tcp", addr)
	}
	netlab.ServeEcho(t, a, "proxy", "tcp", "[::]:15001")
	for _, addr := range []string{"10.0.0.2:80", "[fd00::2]:80"} {
		got := netlab.Ask(t, a, "tcp", addr)
		if got.Server != "proxy" || got.OriginalDst != netip.MustParseAddrPort(addr) {
			t.Errorf("%s unmarked: %+v", addr, got)
		}
		if got := netlab.Ask(t, a, "tcp", addr, netlab.Mark(0x539)); got.Server != "server" || got.OriginalDst.IsValid() {
			t.Errorf("%s marked: %+v", addr, got)
		}
	}
}

func TestSocketOptions(t *testing.T) {
	netlab.Kernel(t)
	a, b := pair(t)
	if err := b.AddRoute(netip.MustParsePrefix("192.0.2.0/24"), netip.MustParseAddr("10.0.0.1")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"one", "two"} {
		netlab.ServeEcho(t, b, name, "udp", "10.0.0.2:7", netlab.ReusePort, netlab.Device("eth0"))
	}
	got := netlab.Ask(t, a, "udp", "10.0.0.2:7", netlab.From("10.0.0.1:999"))
	if got.Peer != netip.MustParseAddrPort("10.0.0.1:999") {
		t.Errorf("the server saw %s", got.Peer)
	}
	netlab.MustRun(t, a, "ip", "route", "add", "local", "192.0.2.9", "dev", "lo")
	netlab.ServeEcho(t, b, "server", "tcp", "10.0.0.2:80")
	if got := netlab.Ask(t, a, "tcp", "10.0.0.2:80", netlab.From("192.0.2.9:0")); got.Peer.Addr() != netip.MustParseAddr("192.0.2.9") {
		t.Errorf("the server saw %s", got.Peer)
	}
}

func TestDialFails(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	a, _ := pair(t)
	if _, err := a.Dial(t.Context(), "tcp", "10.0.0.2:1"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	netlab.MustRun(t, a, "ip", "neigh", "add", "10.0.0.77", "lladdr", "02:00:00:00:00:77", "dev", "eth0")
	if _, err := a.Dial(ctx, "tcp", "10.0.0.77:80"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody answers: %v", err)
	}
	if _, err := a.Dial(t.Context(), "tcp", "name:80"); err == nil {
		t.Error("a name was dialled")
	}
	if _, err := a.Listen("10.0.0.9:80"); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("somebody else's address: %v", err)
	}
}

func TestPathIsTheNamespace(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "pod")
	h, err := netns.Open(n.Path)
	if err != nil {
		t.Fatal(err)
	}
	if h.ID() != n.Handle.ID() {
		t.Errorf("%s is %s, want %s", n.Path, h.ID(), n.Handle.ID())
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if err := n.Unmount(); err != nil {
		t.Fatal(err)
	}
	if _, err := netns.Open(n.Path); err == nil {
		t.Errorf("%s is still a namespace", n.Path)
	}
	if _, err := os.Stat(n.Path); err != nil {
		t.Errorf("the plain file is gone: %v", err)
	}
}

func TestNamesAreFreeAgain(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	for range 2 {
		n, err := netlab.Create("again")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := netlab.Create("again"); !errors.Is(err, os.ErrExist) {
			t.Errorf("the name was given twice: %v", err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
}

// recorder is a testing.TB that notes failures, and runs its clean-up when told.
type recorder struct {
	testing.TB
	failed  []string
	cleanup []func()
}

func (r *recorder) Errorf(format string, args ...any) { r.failed = append(r.failed, format) }
func (r *recorder) Cleanup(fn func())                 { r.cleanup = append(r.cleanup, fn) }

func TestCheckLeaksSeesAForgottenSocket(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "leaky")
	r := &recorder{TB: t}
	netlab.CheckLeaks(r)
	conn, err := n.ListenPacket("127.0.0.1:7")
	if err != nil {
		t.Fatal(err)
	}
	r.cleanup[0]()
	if len(r.failed) != 1 {
		t.Errorf("with a forgotten socket: %v", r.failed)
	}
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	r.failed = nil
	r.cleanup[0]()
	if len(r.failed) != 0 {
		t.Errorf("with it closed: %v", r.failed)
	}
}
