package nft

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// The table is replaced under open connections, from every form to every other: they go on, captured ones and ones that are
// older than the capture, and conntrack keeps each entry.
func TestReplacingTheFormKeepsConnections(t *testing.T) {
	netlab.Kernel(t)
	pod, peer := netlab.NewNS(t, "pod"), netlab.NewNS(t, "peer")
	netlab.Connect(t,
		netlab.Port{NS: pod, Addrs: netlab.Prefixes("10.0.0.5/24", "fd00::5/64")},
		netlab.Port{NS: peer, Addrs: netlab.Prefixes("10.0.0.9/24", "fd00::9/64")})
	proxy := netlab.Mark(int(ruleset.ProxyMark))
	var older, captured []*line
	for _, a := range []struct{ peer, proxy string }{{"10.0.0.9:80", "127.0.0.1:15001"}, {"[fd00::9]:80", "[::1]:15001"}} {
		netlab.ServeEcho(t, peer, "peer", "tcp", a.peer)
		netlab.ServeEcho(t, pod, "proxy", "tcp", a.proxy, proxy)
		older = append(older, dial(t, pod, a.peer, "peer"))
	}
	table := open(t, pod)
	config := ruleset.Config{CaptureDNS: true, IPv4: true, IPv6: true}
	apply(t, table, build(t, config, ruleset.FormMarks))
	speak(t, older) // conntrack meets them
	apply(t, table, build(t, config, ruleset.FormSYN))
	for _, a := range []string{"10.0.0.9:80", "[fd00::9]:80"} {
		captured = append(captured, dial(t, pod, a, "proxy"))
	}
	entries := conntrackIDs(t, pod)
	if len(entries) != 4 {
		t.Fatalf("%d conntrack entries: %v", len(entries), entries)
	}
	tour := []ruleset.Form{ruleset.FormMarks, ruleset.FormSYN, ruleset.FormFull, ruleset.FormMarks, ruleset.FormFull,
		ruleset.FormFull, ruleset.FormSYN, ruleset.FormSYN, ruleset.FormMarks, ruleset.FormMarks}
	for i, form := range tour {
		apply(t, table, build(t, config, form))
		speak(t, append(older, captured...))
		if now := conntrackIDs(t, pod); !slices.Equal(now, entries) {
			t.Errorf("step %d, form %s: conntrack entries were %v, are %v", i, form, entries, now)
		}
	}
	if err := table.Remove(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// An interface that leads out of the pod gains nothing by the name of one that does not.
func TestAnotherInterfaceIsCalledLoopback(t *testing.T) {
	netlab.Kernel(t)
	pod, peer := netlab.NewNS(t, "pod"), netlab.NewNS(t, "peer")
	netlab.Connect(t,
		netlab.Port{NS: pod, Link: "eth0", Addrs: netlab.Prefixes("10.0.0.5/24")},
		netlab.Port{NS: peer, Link: "eth0", Addrs: netlab.Prefixes("10.0.0.9/24")})
	netlab.ServeEcho(t, peer, "peer", "tcp", "10.0.0.9:80")
	netlab.ServeEcho(t, pod, "proxy", "tcp", "127.0.0.1:15001", netlab.Mark(int(ruleset.ProxyMark)))
	netlab.ServeEcho(t, pod, "app", "tcp", "10.0.0.5:80")
	table, want := open(t, pod), build(t, ruleset.Config{CaptureDNS: true, IPv4: true, IPv6: true}, ruleset.FormFull)
	apply(t, table, want)
	for _, rename := range [][2]string{{"lo", "inner"}, {"eth0", "lo"}} {
		netlab.MustRun(t, pod, "ip", "link", "set", rename[0], "down") // kernels before 6.2 ask for it
		netlab.MustRun(t, pod, "ip", "link", "set", rename[0], "name", rename[1])
		netlab.MustRun(t, pod, "ip", "link", "set", rename[1], "up")
	}
	if diff := check(t, table, want); len(diff) > 0 {
		t.Errorf("the rules are not as they were:\n%s", diff)
	}
	speak(t, []*line{dial(t, pod, "10.0.0.9:80", "proxy"), dial(t, pod, "10.0.0.5:80", "app")})
}

// line is an open connection to an echo server.
type line struct {
	conn   net.Conn
	reader *bufio.Reader
}

func dial(t *testing.T, from *netlab.NS, addr, server string) *line {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // of a test that is over
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	l := &line{conn, bufio.NewReader(conn)}
	reply, err := netlab.ReadReply(l.reader)
	if err != nil || reply.Server != server {
		t.Fatalf("%s was answered by %q, not by %q: %v", addr, reply.Server, server, err)
	}
	return l
}

// speak sends something over each connection and has it come back.
func speak(t *testing.T, lines []*line) {
	t.Helper()
	for _, l := range lines {
		if _, err := fmt.Fprintln(l.conn, "still there"); err != nil {
			t.Fatal(err)
		}
		echo := make([]byte, len("still there\n"))
		if _, err := io.ReadFull(l.reader, echo); err != nil {
			t.Fatalf("%s -> %s: %v", l.conn.LocalAddr(), l.conn.RemoteAddr(), err)
		}
	}
}

// conntrackIDs are the kernel's numbers of the entries of established TCP connections.
func conntrackIDs(t *testing.T, n *netlab.NS) []string {
	t.Helper()
	var ids []string
	for _, family := range []string{"ipv4", "ipv6"} {
		list := netlab.MustRun(t, n, "conntrack", "-L", "-f", family, "-p", "tcp", "-o", "id")
		for _, m := range regexp.MustCompile(`ESTABLISHED .* id=(\d+)`).FindAllStringSubmatch(list, -1) {
			ids = append(ids, m[1])
		}
	}
	slices.Sort(ids)
	return ids
}
