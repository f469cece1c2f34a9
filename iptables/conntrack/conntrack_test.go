package conntrack

import (
	"bufio"
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
)

func TestMain(m *testing.M) { netlab.Main(m, 10) }

// A lab is a pod with somebody on the other side, and a stand-in for the proxy.
type lab struct {
	pod, peer *netlab.NS
	table     *Table
}

const (
	dns4, dns6 = "10.0.0.2:53", "[fd00::2]:53"
	web4, web6 = "10.0.0.2:80", "[fd00::2]:80"
)

func newLab(t *testing.T) *lab {
	t.Helper()
	netlab.CheckLeaks(t)
	l := &lab{pod: netlab.NewNS(t, "pod"), peer: netlab.NewNS(t, "peer")}
	netlab.Connect(t, netlab.Port{NS: l.pod, Addrs: netlab.Prefixes("10.0.0.1/24", "fd00::1/64")},
		netlab.Port{NS: l.peer, Addrs: netlab.Prefixes("10.0.0.2/24", "fd00::2/64")})
	for _, addr := range []string{dns4, dns6} {
		netlab.ServeEcho(t, l.peer, "upstream", "udp", addr)
	}
	for _, addr := range []string{web4, web6} {
		netlab.ServeEcho(t, l.peer, "upstream", "tcp", addr)
	}
	for _, addr := range []string{"127.0.0.1:15053", "[::1]:15053"} {
		netlab.ServeEcho(t, l.pod, "proxy", "udp", addr)
	}
	netlab.ServeEcho(t, l.pod, "proxy", "tcp", "[::]:15001")
	// Conntrack works, as it does in a pod with any rules of its own.
	l.nft(t, `add table inet t
		add chain inet t zones { type filter hook output priority -300; }
		add chain inet t out { type nat hook output priority -100; }
		add rule inet t zones meta mark 0x539 udp dport 53 ct zone set 1`)
	l.table = tableOf(t, l.pod)
	return l
}

func tableOf(t *testing.T, n *netlab.NS) *Table {
	t.Helper()
	conn, err := nlconn.Open(n.Handle, unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return New(conn)
}

func (l *lab) nft(t *testing.T, commands string) {
	t.Helper()
	netlab.MustRun(t, l.pod, "nft", commands)
}

func (l *lab) capture(t *testing.T) {
	t.Helper()
	l.nft(t, `add rule inet t out meta mark 0x539 accept
		add rule inet t out udp dport 53 redirect to :15053
		add rule inet t out tcp dport 80-90 redirect to :15001`)
}

func (l *lab) release(t *testing.T) {
	t.Helper()
	l.nft(t, "flush chain inet t out")
}

// deletes runs one of the Table's methods and compares what it says it deleted.
func deletes(t *testing.T, method func(context.Context) (int, error), want int) {
	t.Helper()
	if got, err := method(t.Context()); got != want || err != nil {
		t.Errorf("deleted %d entries, %v; want %d", got, err, want)
	}
}

// count is how many entries the table has that pick picks.
func (l *lab) count(t *testing.T, pick func(entry) bool) int {
	t.Helper()
	entries, err := l.table.list(t.Context(), pick)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// A client is a connected socket that an app keeps using.
type client struct{ net.Conn }

func (l *lab) dial(t *testing.T, network, addr string, options ...netlab.Option) client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := l.pod.Dial(ctx, network, addr, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return client{conn}
}

// asks sends a datagram and checks who answers.
func (c client) asks(t *testing.T, want string) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write([]byte("query")); err != nil {
		t.Fatal(err)
	}
	c.hears(t, want)
}

func (c client) hears(t *testing.T, want string) {
	t.Helper()
	reply, err := netlab.ReadReply(bufio.NewReaderSize(c, 65536))
	if err != nil || reply.Server != want {
		t.Errorf("%s: answered by %q, %v; want %s", c.RemoteAddr(), reply.Server, err, want)
	}
}

// The socket goes where it went before, rules or no rules, until its entry is gone.
func TestDNSSocketInUse(t *testing.T) {
	netlab.Kernel(t)
	l := newLab(t)
	clients := []client{l.dial(t, "udp", dns4), l.dial(t, "udp", dns6)}
	all := func(want string) {
		t.Helper()
		for _, c := range clients {
			c.asks(t, want)
		}
	}
	all("upstream")
	deletes(t, l.table.DeleteCaptured, 0)
	l.capture(t)
	all("upstream")
	deletes(t, l.table.DeleteUncaptured, 2)
	all("proxy")
	deletes(t, l.table.DeleteUncaptured, 0)
	for _, method := range []func(context.Context) (int, error){l.table.DeleteCaptured, l.table.DeleteCapturedDNS} {
		l.release(t)
		all("proxy")
		deletes(t, method, 2)
		all("upstream")
		deletes(t, method, 0)
		l.capture(t)
		deletes(t, l.table.DeleteUncaptured, 2)
		all("proxy")
	}
}

// A SYN that was lost before the capture is sent again after it.
func TestConnectionOnItsWay(t *testing.T) {
	netlab.Kernel(t)
	l := newLab(t)
	netlab.MustRun(t, l.peer, "nft", `add table inet t
		add chain inet t in { type filter hook input priority 0; }
		add rule inet t in tcp dport 81 drop`)
	for _, addr := range []string{"10.0.0.2:81", "[fd00::2]:81"} {
		type result struct {
			conn net.Conn
			err  error
		}
		done := make(chan result, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			conn, err := l.pod.Dial(ctx, "tcp", addr)
			done <- result{conn, err}
		}()
		netlab.Eventually(t, func() error {
			if l.count(t, entry.uncaptured) != 1 {
				return errors.New("the SYN has not been seen")
			}
			return nil
		})
		l.capture(t)
		deletes(t, l.table.DeleteUncaptured, 1)
		r := <-done
		if r.err != nil {
			t.Fatalf("%s: %v", addr, r.err)
		}
		client{r.conn}.hears(t, "proxy")
		_ = r.conn.Close()
		l.release(t)
	}
}

func TestEstablishedConnectionsAreLeftAlone(t *testing.T) {
	netlab.Kernel(t)
	l := newLab(t)
	established := []client{l.dial(t, "tcp", web4), l.dial(t, "tcp", web6)}
	other := l.dial(t, "udp", "10.0.0.2:54")
	_, _ = other.Write([]byte("nobody answers this"))
	before := l.count(t, func(entry) bool { return true })
	l.capture(t)
	deletes(t, l.table.DeleteUncaptured, 0)
	deletes(t, l.table.DeleteCaptured, 0)
	for _, c := range established {
		c.hears(t, "upstream")
	}
	if after := l.count(t, func(entry) bool { return true }); after != before {
		t.Errorf("%d entries, before there were %d", after, before)
	}
}

func TestCapturedTCPAtRelease(t *testing.T) {
	netlab.Kernel(t)
	l := newLab(t)
	l.capture(t)
	for _, addr := range []string{web4, web6} {
		l.dial(t, "tcp", addr).hears(t, "proxy")
	}
	deletes(t, l.table.DeleteUncaptured, 0)
	l.release(t)
	deletes(t, l.table.DeleteCapturedDNS, 0)
	deletes(t, l.table.DeleteCaptured, 2)
}

// Not redirected, but made to the proxy's port in the first place.
func TestConnectionToTheProxysOwnPortIsLeftAlone(t *testing.T) {
	netlab.Kernel(t)
	l := newLab(t)
	l.dial(t, "tcp", "127.0.0.1:15001").hears(t, "proxy")
	l.dial(t, "udp", "127.0.0.1:15053").asks(t, "proxy")
	deletes(t, l.table.DeleteCaptured, 0)
	deletes(t, l.table.DeleteUncaptured, 0)
}

func TestZones(t *testing.T) {
	netlab.Kernel(t)
	l := newLab(t)
	// The proxy's own query, in its zone, and the app's, of the same addresses and ports.
	const source = "10.0.0.1:40000"
	l.dial(t, "udp", dns4, netlab.Mark(0x539), netlab.From(source)).asks(t, "upstream")
	deletes(t, l.table.DeleteUncaptured, 0)
	if got := l.count(t, func(e entry) bool { return e.zone == 1 }); got != 1 {
		t.Errorf("%d entries in zone 1, want 1", got)
	}
	// An entry in another zone, for both directions or for one, is found and deleted there.
	for handle, zone := range []string{"ct zone set 7", "ct original zone set 8"} {
		l.nft(t, "flush chain inet t zones\nadd rule inet t zones udp dport 53 "+zone)
		app := l.dial(t, "udp", dns6)
		if _, err := app.Write([]byte("query")); err != nil {
			t.Fatal(err)
		}
		if got := l.count(t, func(e entry) bool { return e.zone == uint16(7+handle) }); got != 1 {
			t.Errorf("%s: %d entries in that zone, want 1", zone, got)
		}
		netlab.Eventually(t, func() error {
			if got := l.count(t, entry.uncaptured); got == 0 {
				return errors.New("no entry")
			}
			return nil
		})
		if got, err := l.table.DeleteUncaptured(t.Context()); got == 0 || err != nil {
			t.Errorf("%s: deleted %d, %v", zone, got, err)
		}
		if got := l.count(t, entry.uncaptured); got != 0 {
			t.Errorf("%s: %d entries are left", zone, got)
		}
	}
	if got := l.count(t, func(e entry) bool { return e.zone == 1 }); got != 1 {
		t.Errorf("%d entries in zone 1 are left, want 1", got)
	}
}

// What was listed and is gone is told apart from what cannot be deleted.
func TestEntryThatIsGone(t *testing.T) {
	netlab.Kernel(t)
	l := newLab(t)
	c := l.dial(t, "udp", dns4)
	c.asks(t, "upstream")
	entries, err := l.table.list(t.Context(), entry.uncaptured)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	deletes(t, l.table.DeleteUncaptured, 1)
	again := func() error {
		return l.table.conn.Request(t.Context(), subsystem|msgDelete, unix.NLM_F_ACK, entries[0].key, nil)
	}
	if err := again(); !errors.Is(err, unix.ENOENT) {
		t.Errorf("an entry that is gone: %v", err)
	}
}

// More entries than are remembered at a time are deleted all the same, up to an end.
func TestEntriesByTheThousand(t *testing.T) {
	netlab.Kernel(t)
	l := newLab(t)
	const all = rounds + 3
	for range all {
		l.dial(t, "udp", dns4).asks(t, "upstream")
	}
	before := l.count(t, entry.uncaptured)
	l.table.most = 1
	if n, err := l.table.DeleteUncaptured(t.Context()); before != all || n != rounds || err == nil || !strings.Contains(err.Error(), "there are still some after 16") {
		t.Errorf("of %d entries %d were deleted: %v", before, n, err)
	}
	l.table.most = 2
	deletes(t, l.table.DeleteUncaptured, all-rounds)
	deletes(t, l.table.DeleteUncaptured, 0)
}

func TestOtherNamespacesEntriesAreNotSeen(t *testing.T) {
	netlab.Kernel(t)
	l := newLab(t)
	l.dial(t, "udp", dns4).asks(t, "upstream")
	deletes(t, tableOf(t, l.peer).DeleteUncaptured, 0)
	deletes(t, l.table.DeleteUncaptured, 1)
}

func TestContextAndClose(t *testing.T) {
	netlab.Kernel(t)
	l := newLab(t)
	l.dial(t, "udp", dns4).asks(t, "upstream")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := l.table.DeleteUncaptured(ctx); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %d, %v", n, err)
	}
	if err := l.table.conn.Close(); err != nil {
		t.Error(err)
	}
	if _, err := l.table.DeleteCaptured(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if text := (entry{protocol: 17, dstPort: 53, zone: 3}).String(); !strings.Contains(text, "to port 53") {
		t.Errorf("an entry is shown as %s", text)
	}
}
