package sockets

import (
	"io"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// One socket in place of another is seen, whichever it is; connections are not.
func TestIdentityOfListeners(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "pod")
	c := open(t, n)
	identity := func() Identity {
		t.Helper()
		l, err := c.Listeners(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return l.Identity
	}
	places := []struct{ network, addr string }{
		{"tcp", "0.0.0.0:15001"}, {"tcp", "[::]:15001"}, {"tcp", "0.0.0.0:15006"}, {"tcp", "[::]:15006"}, {"tcp", "0.0.0.0:15008"},
		{"tcp", "[::]:15008"}, {"udp", "127.0.0.1:15053"}, {"tcp", "127.0.0.1:15053"}, {"udp", "[::1]:15053"}, {"tcp", "[::1]:15053"},
	}
	occupy := func(network, addr string) io.Closer {
		if network == "udp" {
			return listenUDP(t, n, addr)
		}
		if addr[0] == '[' {
			return listen(t, n, addr, v6Only)
		}
		return listen(t, n, addr)
	}
	held := make([]io.Closer, len(places))
	seen := map[Identity]string{identity(): "nobody"}
	changed := func(what string) {
		t.Helper()
		now := identity()
		if before, known := seen[now]; known {
			t.Errorf("%s: as before, when it was %s", what, before)
		}
		seen[now] = what
	}
	for i, p := range places {
		held[i] = occupy(p.network, p.addr)
		changed(p.network + " " + p.addr + " taken")
	}
	for i, p := range places {
		if err := held[i].Close(); err != nil {
			t.Fatal(err)
		}
		held[i] = occupy(p.network, p.addr)
		changed(p.network + " " + p.addr + " taken again")
	}
	before := identity()
	conn, err := n.Dial(t.Context(), "tcp", "127.0.0.1:15001")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if now := identity(); now != before {
		t.Errorf("a connection makes %v of %v", now, before)
	}
}
