package sockets

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func TestMain(m *testing.M) { netlab.Main(m, 45) }

func open(t testing.TB, n *netlab.NS) *Conn {
	t.Helper()
	c, err := Open(n.Handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func listen(t testing.TB, n *netlab.NS, addr string, options ...netlab.Option) net.Listener {
	t.Helper()
	l, err := n.Listen(addr, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() }) // fails only if the test has closed it
	return l
}

func listenUDP(t testing.TB, n *netlab.NS, addr string, options ...netlab.Option) *net.UDPConn {
	t.Helper()
	c, err := n.ListenPacket(addr, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // fails only if the test has closed it
	return c
}

func wantListeners(t *testing.T, c *Conn, want Listeners) {
	t.Helper()
	got, err := c.Listeners(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got.Identity = Identity{}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("listeners (-want +got):\n%s", diff)
	}
}

func v6Only(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 1) }

func TestAllListenersOfAProxy(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "pod")
	c := open(t, n)
	wantListeners(t, c, Listeners{})
	for _, port := range []string{"15001", "15006", "15008"} {
		listen(t, n, "[::]:"+port, netlab.ReusePort, netlab.Mark(0x539))
	}
	wantListeners(t, c, Listeners{Outbound: true, Inbound: true, HBONE: true})
	udp := listenUDP(t, n, "127.0.0.1:15053", netlab.ReusePort)
	wantListeners(t, c, Listeners{Outbound: true, Inbound: true, HBONE: true}) // TCP is missing
	listen(t, n, "127.0.0.1:15053", netlab.ReusePort)
	wantListeners(t, c, Listeners{Outbound: true, Inbound: true, HBONE: true, DNS: true})
	listen(t, n, "[::1]:15053", netlab.ReusePort)
	wantListeners(t, c, Listeners{Outbound: true, Inbound: true, HBONE: true, DNS: true}) // UDP is missing
	listenUDP(t, n, "[::1]:15053", netlab.ReusePort)
	wantListeners(t, c, Listeners{Outbound: true, Inbound: true, HBONE: true, DNS: true, DNS6: true})
	if err := udp.Close(); err != nil {
		t.Fatal(err)
	}
	wantListeners(t, c, Listeners{Outbound: true, Inbound: true, HBONE: true, DNS6: true})
}

// Sockets that are, or only look like, a listener on the outbound port.
func TestWhatIsAListener(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	bind := func(n *netlab.NS, addr string, options ...netlab.Option) *os.File {
		t.Helper()
		f, err := bound(n, unix.SOCK_STREAM, 0, addr, options...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() }) // nothing was written
		return f
	}
	for name, c := range map[string]struct {
		make func(t *testing.T, n *netlab.NS)
		want bool
	}{
		"all addresses":        {func(t *testing.T, n *netlab.NS) { listen(t, n, "[::]:15001") }, true},
		"all of IPv4":          {func(t *testing.T, n *netlab.NS) { listen(t, n, "0.0.0.0:15001") }, true},
		"all of IPv6":          {func(t *testing.T, n *netlab.NS) { listen(t, n, "[::]:15001", v6Only) }, true},
		"both, one by one":     {func(t *testing.T, n *netlab.NS) { listen(t, n, "0.0.0.0:15001"); listen(t, n, "[::]:15001", v6Only) }, true},
		"two of a group":       {func(t *testing.T, n *netlab.NS) { group(t, n, 2) }, true},
		"what is left of one":  {func(t *testing.T, n *netlab.NS) { _ = group(t, n, 2)[0].Close() }, true},
		"with one address too": {func(t *testing.T, n *netlab.NS) { listen(t, n, "127.0.0.1:15001", netlab.ReusePort); group(t, n, 1) }, true},
		"MPTCP": {func(t *testing.T, n *netlab.NS) {
			f, err := bound(n, unix.SOCK_STREAM, unix.IPPROTO_MPTCP, "[::]:15001")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = f.Close() })
			if err := unix.Listen(int(f.Fd()), 1); err != nil {
				t.Fatal(err)
			}
		}, true},
		"nobody":          {func(*testing.T, *netlab.NS) {}, false},
		"nobody any more": {func(t *testing.T, n *netlab.NS) { _ = listen(t, n, "[::]:15001").Close() }, false},
		"bound alone":     {func(_ *testing.T, n *netlab.NS) { bind(n, "[::]:15001") }, false},
		"on a device":     {func(t *testing.T, n *netlab.NS) { listen(t, n, "[::]:15001", netlab.Device("lo")) }, false},
		"on loopback":     {func(t *testing.T, n *netlab.NS) { listen(t, n, "127.0.0.1:15001"); listen(t, n, "[::1]:15001") }, false},
		"on other ports":  {func(t *testing.T, n *netlab.NS) { listen(t, n, "[::]:15000"); listen(t, n, "[::]:15002") }, false},
		"UDP":             {func(t *testing.T, n *netlab.NS) { listenUDP(t, n, "[::]:15001") }, false},
		"connected": {func(t *testing.T, n *netlab.NS) {
			conn, err := n.Dial(t.Context(), "tcp", listen(t, n, "127.0.0.1:80").Addr().String(), netlab.From("127.0.0.1:15001"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
		}, false},
		"accepted, listener gone": {func(t *testing.T, n *netlab.NS) {
			l := listen(t, n, "[::]:15001")
			accepted(t, n, l, "127.0.0.1:15001")
			_ = l.Close()
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := netlab.NewNS(t, "pod")
			c.make(t, n)
			wantListeners(t, open(t, n), Listeners{Outbound: c.want})
		})
	}
}

// group is some listeners of one SO_REUSEPORT group.
func group(t *testing.T, n *netlab.NS, size int) []net.Listener {
	t.Helper()
	var all []net.Listener
	for range size {
		all = append(all, listen(t, n, "[::]:15001", netlab.ReusePort))
	}
	return all
}

func TestWhatIsADNSListener(t *testing.T) {
	netlab.Kernel(t)
	for name, c := range map[string]struct {
		tcp, udp string
		connect  string // the UDP socket, to this
		want     Listeners
	}{
		"loopback":      {tcp: "127.0.0.1:15053", udp: "127.0.0.1:15053", want: Listeners{DNS: true}},
		"IPv6 loopback": {tcp: "[::1]:15053", udp: "[::1]:15053", want: Listeners{DNS6: true}},
		"all addresses": {tcp: "[::]:15053", udp: "[::]:15053", want: Listeners{DNS: true, DNS6: true}},
		"all of IPv4":   {tcp: "0.0.0.0:15053", udp: "0.0.0.0:15053", want: Listeners{DNS: true}},
		"mixed":         {tcp: "[::1]:15053", udp: "127.0.0.1:15053"},
		"other port":    {tcp: "127.0.0.1:15053", udp: "127.0.0.1:53"},
		"connected":     {tcp: "127.0.0.1:15053", udp: "127.0.0.1:15053", connect: "127.0.0.1:9"},
		"other address": {tcp: "127.0.0.2:15053", udp: "127.0.0.2:15053"},
	} {
		n := netlab.NewNS(t, strings.ReplaceAll(name, " ", "-"))
		listen(t, n, c.tcp)
		if c.connect == "" {
			listenUDP(t, n, c.udp)
		} else {
			conn, err := n.Dial(t.Context(), "udp", c.connect, netlab.From(c.udp))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
		}
		got, err := open(t, n).Listeners(t.Context())
		got.Identity = Identity{}
		if err != nil || got != c.want {
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
		}
	}
}

func TestOtherNamespacesListenersAreNotSeen(t *testing.T) {
	netlab.Kernel(t)
	a, b := netlab.NewNS(t, "a"), netlab.NewNS(t, "b")
	listen(t, a, "[::]:15001")
	wantListeners(t, open(t, b), Listeners{})
}

// As on a kernel that lacks the module for a protocol.
func TestProtocolThatTheKernelDoesNotTellAbout(t *testing.T) {
	netlab.Kernel(t)
	c := open(t, netlab.NewNS(t, "pod"))
	for range 2 {
		places := []place{{unix.IPPROTO_IGMP, netip.MustParseAddrPort("0.0.0.0:1")}}
		err := c.find(t.Context(), places, requests(places), make([]uint64, 1))
		if err == nil || !strings.Contains(err.Error(), "inet_diag") {
			t.Errorf("got %v, want an error that names the module", err)
		}
	}
}

func TestContextAndClose(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	c := open(t, netlab.NewNS(t, "pod"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Listeners(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Listeners with an ended context: %v", err)
	}
	if _, err := c.Proxied(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Proxied with an ended context: %v", err)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.Listeners(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Listeners after Close: %v", err)
	}
	if _, err := c.Proxied(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Proxied after Close: %v", err)
	}
}

// A kept socket asks of the namespace as it is, not as it was when it was opened.
func TestKeptSocketFollowsTheNamespace(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "pod")
	c := open(t, n)
	for range 20 {
		l := listen(t, n, "[::]:15001")
		wantListeners(t, c, Listeners{Outbound: true})
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		wantListeners(t, c, Listeners{})
	}
}

// bound opens and binds a socket, and does no more.
func bound(n *netlab.NS, kind, protocol int, addr string, options ...netlab.Option) (*os.File, error) {
	ap := netip.MustParseAddrPort(addr)
	var fd int
	err := n.Handle.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_INET6, kind|unix.SOCK_CLOEXEC, protocol)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, option := range options {
		err = errors.Join(err, option(fd))
	}
	err = errors.Join(err, unix.Bind(fd, &unix.SockaddrInet6{Port: int(ap.Port()), Addr: ap.Addr().As16()}))
	f := os.NewFile(uintptr(fd), addr)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func BenchmarkListeners(b *testing.B) {
	netlab.Kernel(b)
	n := netlab.NewNS(b, "pod")
	for _, port := range []string{"15001", "15006", "15008"} {
		listen(b, n, "[::]:"+port)
	}
	for _, addr := range []string{"127.0.0.1:15053", "[::1]:15053"} {
		listen(b, n, addr)
		listenUDP(b, n, addr)
	}
	c := open(b, n)
	for b.Loop() {
		if _, err := c.Listeners(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkProxied(b *testing.B) {
	netlab.Kernel(b)
	c := open(b, netlab.NewNS(b, "pod"))
	for b.Loop() {
		if _, err := c.Proxied(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// accepted dials a listener and returns both ends of the connection.
func accepted(t *testing.T, n *netlab.NS, l net.Listener, addr string) (app, proxy *net.TCPConn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	conn, err := n.Dial(ctx, "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // they fail only if the test has closed them
		_ = conn.Close()
		_ = peer.Close()
	})
	return conn.(*net.TCPConn), peer.(*net.TCPConn)
}
