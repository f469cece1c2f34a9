package sockets

import (
	"context"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// wantProxied waits until the kernel has come to count what it should: the last
// packets of a connection may still be on their way.
func wantProxied(t *testing.T, c *Conn, want int) {
	t.Helper()
	netlab.Eventually(t, func() error {
		got, err := c.Proxied(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got != want {
			return fmt.Errorf("%d proxied connections, want %d", got, want)
		}
		return nil
	})
}

func TestProxiedByFamilyAndPort(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "pod")
	c := open(t, n)
	wantProxied(t, c, 0)
	count := 0
	for _, port := range []string{"15001", "15006", "15008"} {
		l := listen(t, n, "[::]:"+port, netlab.ReusePort)
		wantProxied(t, c, count) // a listener is no connection
		for _, addr := range []string{"127.0.0.1:" + port, "[::1]:" + port} {
			accepted(t, n, l, addr)
			count++
			wantProxied(t, c, count)
		}
	}
	accepted(t, n, listen(t, n, "127.0.0.2:15001", netlab.ReusePort), "127.0.0.2:15001") // a socket of IPv4
	count++
	wantProxied(t, c, count)
	for _, port := range []string{"15000", "15003", "15009", "80"} { // 15003 passes the filter in the kernel
		accepted(t, n, listen(t, n, "127.0.0.1:"+port), "127.0.0.1:"+port)
	}
	wantProxied(t, c, count)
}

// The pod is a client of somebody else's port of that number.
func TestConnectionToThePortElsewhereIsNotProxied(t *testing.T) {
	netlab.Kernel(t)
	a, b := netlab.NewNS(t, "a"), netlab.NewNS(t, "b")
	netlab.Connect(t, netlab.Port{NS: a, Addrs: netlab.Prefixes("10.0.0.1/24")},
		netlab.Port{NS: b, Addrs: netlab.Prefixes("10.0.0.2/24")})
	listen(t, b, "[::]:15008")
	conn, err := a.Dial(t.Context(), "tcp", "10.0.0.2:15008")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	wantProxied(t, open(t, b), 1)
	wantProxied(t, open(t, a), 0)
}

// pair is one proxied connection.
func pair(t *testing.T) (c *Conn, app, proxy *net.TCPConn) {
	t.Helper()
	n := netlab.NewNS(t, "pod")
	app, proxy = accepted(t, n, listen(t, n, "[::]:15001"), "127.0.0.1:15001")
	c = open(t, n)
	wantProxied(t, c, 1)
	return c, app, proxy
}

func TestNotYetAcceptedIsProxied(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "pod")
	listen(t, n, "[::]:15001")
	conn, err := n.Dial(t.Context(), "tcp", "127.0.0.1:15001")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	wantProxied(t, open(t, n), 1)
}

func TestClosedByTheAppIsProxiedUntilTheProxyClosesToo(t *testing.T) {
	netlab.Kernel(t)
	c, app, proxy := pair(t)
	if err := app.Close(); err != nil {
		t.Fatal(err)
	}
	wantProxied(t, c, 1)
	if err := proxy.Close(); err != nil {
		t.Fatal(err)
	}
	wantProxied(t, c, 0)
}

func TestHalfClosedByTheProxyIsProxied(t *testing.T) {
	netlab.Kernel(t)
	c, app, proxy := pair(t)
	if err := proxy.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := app.Read(make([]byte, 1)); err == nil {
		t.Fatal("the app read something")
	}
	wantProxied(t, c, 1)
	if _, err := app.Write([]byte("still getting through")); err != nil {
		t.Fatal(err)
	}
	if _, err := proxy.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	if err := app.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	wantProxied(t, c, 0) // only TIME_WAIT is left
}

// FIN_WAIT2 without an owner lasts a minute, or until the app closes.
func TestGivenUpByTheProxyIsNotProxied(t *testing.T) {
	netlab.Kernel(t)
	for _, timeout := range []string{"60", "61"} { // beyond a minute the kernel keeps it in another form
		n := netlab.NewNS(t, "pod"+timeout)
		if err := n.Sysctl("net/ipv4/tcp_fin_timeout", timeout); err != nil {
			t.Fatal(err)
		}
		app, proxy := accepted(t, n, listen(t, n, "[::]:15001"), "127.0.0.1:15001")
		c := open(t, n)
		wantProxied(t, c, 1)
		if err := proxy.Close(); err != nil {
			t.Fatal(err)
		}
		wantProxied(t, c, 0)
		if err := app.Close(); err != nil {
			t.Error(err)
		}
	}
}

// What the proxy has written and closed still needs the pod's rules on its way.
func TestUndeliveredDataIsProxied(t *testing.T) {
	netlab.Kernel(t)
	c, app, proxy := pair(t)
	// More than fits the app, which does not read.
	if err := proxy.SetWriteDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	block, written := make([]byte, 1<<20), 0
	for {
		size, err := proxy.Write(block)
		written += size
		if os.IsTimeout(err) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := proxy.Close(); err != nil {
		t.Fatal(err)
	}
	wantProxied(t, c, 1)
	for read := 0; read < written; {
		size, err := app.Read(block)
		if err != nil {
			t.Fatalf("after %d of %d bytes: %v", read, written, err)
		}
		read += size
	}
	wantProxied(t, c, 0)
}

func TestResetIsNotProxied(t *testing.T) {
	netlab.Kernel(t)
	c, _, proxy := pair(t)
	if err := proxy.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	if err := proxy.Close(); err != nil {
		t.Fatal(err)
	}
	wantProxied(t, c, 0)
}

func TestHalfOpenIsProxied(t *testing.T) {
	netlab.Kernel(t)
	a, b := netlab.NewNS(t, "a"), netlab.NewNS(t, "b")
	netlab.Connect(t, netlab.Port{NS: a, Addrs: netlab.Prefixes("10.0.0.1/24")},
		netlab.Port{NS: b, Addrs: netlab.Prefixes("10.0.0.2/24")})
	netlab.MustRun(t, b, "nft", `add table inet t
		add chain inet t out { type filter hook output priority 0; }
		add rule inet t out tcp sport 15006 drop`)
	listen(t, b, "0.0.0.0:15006")
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := a.Dial(ctx, "tcp", "10.0.0.2:15006")
		done <- err
	}()
	wantProxied(t, open(t, b), 1)
	cancel()
	if err := <-done; err == nil {
		t.Error("the connection was opened")
	}
}

func TestManyConnectionsAreAllCounted(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "pod")
	l := listen(t, n, "[::]:15001")
	c := open(t, n)
	const many = 400 // more than fits one datagram of the answer
	for range many / 2 {
		accepted(t, n, l, "127.0.0.1:15001")
		accepted(t, n, l, "[::1]:15001")
	}
	wantProxied(t, c, many)
}
