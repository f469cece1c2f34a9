package nodeproxy

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
)

// newServers starts servers in one namespace, one after the other.
func newServers(t *testing.T, ns *netlab.NS, count int) []*server {
	t.Helper()
	env := environment{
		dns: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")}, log: slog.New(slog.DiscardHandler),
		relayed: new(counters), untagged: new(atomic.Uint64), refuse: func(string) error { return nil },
	}
	var servers []*server
	for range count {
		s, err := startServer(ns.Handle, env)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.close)
		servers = append(servers, s)
	}
	return servers
}

// Whichever places the sockets of those that share a port have, what comes there goes
// to another one than that which steers.
func TestSteer(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	ns := netlab.NewNS(t, "pod")
	for _, test := range []struct {
		gone    []int
		leaving int
	}{
		{nil, 0}, {nil, 1}, {nil, 2},
		{[]int{0}, 1}, {[]int{0}, 2}, // the last has taken the first one's place
	} {
		t.Run(fmt.Sprintf("of 3 %v have gone and %d is leaving", test.gone, test.leaving), func(t *testing.T) {
			servers := newServers(t, ns, 3)
			for _, i := range test.gone {
				servers[i].close()
			}
			s := servers[test.leaving]
			for _, l := range s.listeners {
				if l.direction != hbone && l.udp == nil {
					continue
				}
				if err := s.steer(t.Context(), l, 3-len(test.gone)); err != nil {
					t.Fatal(err)
				}
				if back, err := s.comesBack(t.Context(), l); back || err != nil {
					t.Errorf("what comes to %s comes to the one that is leaving: %t, %v", l.port, back, err)
				}
			}
			for range 20 {
				conn, err := ns.Dial(t.Context(), "tcp", "127.0.0.1:15008")
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
			}
			if got := arrived(t, servers, 20); got[test.leaving] != 0 {
				t.Errorf("of 20 connections each has got %v", got)
			}
		})
	}
}

// When another one goes while what comes is being turned away, it is turned away anew.
func TestTurnAwayWhileAnotherGoes(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	ns := netlab.NewNS(t, "pod")
	servers := newServers(t, ns, 3)
	s := servers[0]
	l := s.listeners[slices.IndexFunc(s.listeners, func(l *listener) bool { return l.direction == hbone })]
	done := make(chan error)
	go func() { done <- s.turnAway(t.Context(), l) }()
	netlab.Eventually(t, func() error { // the place that is tried is the last
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.probes) == 0 {
			return errors.New("it has not begun")
		}
		return nil
	})
	servers[1].close() // so that there is no such place any more
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for range 20 {
		conn, err := ns.Dial(t.Context(), "tcp", "127.0.0.1:15008")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	if got := arrived(t, servers, 20); got[2] != 20 {
		t.Errorf("of 20 connections each has got %v", got)
	}
}

// arrived waits until so many connections have been accepted, and counts each server's.
func arrived(t *testing.T, servers []*server, want int) []int {
	t.Helper()
	var got []int
	netlab.Eventually(t, func() error {
		got = nil
		sum := 0
		for _, s := range servers {
			s.mu.Lock()
			got = append(got, len(s.conns))
			s.mu.Unlock()
			sum += got[len(got)-1]
		}
		if sum != want {
			return fmt.Errorf("of %d connections each has got %v", want, got)
		}
		return nil
	})
	return got
}

// Those that share a port are counted, for each port by itself.
func TestSharing(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	ns := netlab.NewNS(t, "pod")
	conn, err := nlconn.Open(ns.Handle, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	var first *server
	for want := 1; want <= 3; want++ {
		s := newServers(t, ns, 1)[0]
		if first == nil {
			first = s
		}
		for _, l := range first.listeners {
			if got, err := l.sharing(t.Context(), conn); err != nil || got != want {
				t.Errorf("%d sockets share %s (%v), want %d", got, l.port, err, want)
			}
		}
	}
}
