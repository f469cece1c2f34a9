package nodeproxy_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/integration/nodeproxy"
)

// listening says whether something in ns listens where proxies do.
func listening(ns *netlab.NS) bool {
	l, err := ns.Listen("[::]:15001")
	if err != nil {
		return true
	}
	_ = l.Close() // it was free
	return false
}

// listeners returns what is listened on in a namespace, one "tcp 15001 [::]" a line.
func listeners(t *testing.T, ns *netlab.NS) string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(netlab.MustRun(t, ns, "ss", "-Hltun")) {
		if f := strings.Fields(line); len(f) > 4 {
			at := strings.LastIndexByte(f[4], ':')
			lines = append(lines, fmt.Sprintf("%s %s %s\n", f[0], f[4][at+1:], f[4][:at]))
		}
	}
	return sorted(lines)
}

func TestListenersInThePod(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, nodeproxy.Config{DNS: nameServers(t, "10.0.0.10")})
	l := n.acceptSynced()
	both, off := netlab.NewNS(t, "both"), netlab.NewNS(t, "off")
	if err := off.Sysctl("net/ipv6/conf/all/disable_ipv6", "1"); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		ns   *netlab.NS
		want string
	}{
		{both, `
tcp 15001 *
tcp 15006 *
tcp 15008 *
tcp 15053 127.0.0.1
tcp 15053 [::1]
udp 15053 127.0.0.1
udp 15053 [::1]`},
		{off, `
tcp 15001 0.0.0.0
tcp 15006 0.0.0.0
tcp 15008 0.0.0.0
tcp 15053 127.0.0.1
udp 15053 127.0.0.1`},
	} {
		l.add(test.ns.Name, test.ns)
		if got := listeners(t, test.ns); got != test.want[1:] {
			t.Errorf("listeners in %s:\n%s\nwant:%s", test.ns.Name, got, test.want)
		}
	}
}

func TestWithoutDNSNobodyListensForIt(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, nodeproxy.Config{})
	app := netlab.NewNS(t, "app")
	n.acceptSynced().add("uid0", app)
	if got := listeners(t, app); strings.Contains(got, "15053") || !strings.Contains(got, "15008") {
		t.Errorf("listeners:\n%s", got)
	}
}

func TestADuplicateAddChangesNothing(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	client, server := p.pair(p.app, p.peer, "10.0.0.2:80")
	wantAlive(t, client, server)
	before := fmt.Sprintf("%+v", p.workload("uid0"))
	again := add("uid0")
	again.GetAdd().WorkloadInfo.Name = "another name"
	dup, err := p.app.Handle.Dup()
	if err != nil {
		t.Fatal(err)
	}
	p.link.sendRequest(again, dup)
	if text := p.link.answer(); text != "" {
		t.Errorf("nacked: %s", text)
	}
	_ = dup.Close() // the proxy has its own
	if after := fmt.Sprintf("%+v", p.workload("uid0")); after != before {
		t.Errorf("from %s\nto   %s", before, after)
	}
	wantAlive(t, client, server)
}

func TestAnotherNamespaceReplacesTheWorkload(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	client, server := p.pair(p.app, p.peer, "10.0.0.2:80")
	next := netlab.NewNS(t, "next")
	p.link.add("uid0", next)
	wantReset(t, client)
	wantReset(t, server)
	if listening(p.app) || !listening(next) {
		t.Errorf("listening in the old namespace: %t, in the new one: %t", listening(p.app), listening(next))
	}
	if got, want := p.workload("uid0").Netns, next.Handle.ID().String(); got != want {
		t.Errorf("the workload is in %s, not %s", got, want)
	}
}

func TestWhatCannotListenIsTriedAgain(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, nodeproxy.Config{DNS: nameServers(t, "10.0.0.10"), Retry: 5 * time.Millisecond})
	l := n.acceptSynced()
	taken, lame, down := netlab.NewNS(t, "taken"), netlab.NewNS(t, "lame"), netlab.NewNS(t, "down")
	squatter, err := taken.Listen("0.0.0.0:15006")
	if err != nil {
		t.Fatal(err)
	}
	netlab.MustRun(t, lame, "ip", "address", "del", "::1/128", "dev", "lo")
	netlab.MustRun(t, down, "ip", "link", "set", "lo", "down")
	l.nackedAdd("taken", taken, "cannot listen on tcp [::]:15006 in the pod: address already in use")
	l.nackedAdd("lame", lame, "cannot listen on udp [::1]:15053 in the pod: cannot assign requested address")
	l.nackedAdd("down", down, "[::1]:15053")
	fine := netlab.NewNS(t, "fine")
	l.add("fine", fine) // the connection has not suffered

	n.wantUnready("workload taken is pending: cannot listen on tcp [::]:15006")
	_ = squatter.Close()
	n.wantUnready("workload down is pending")
	netlab.MustRun(t, lame, "ip", "address", "add", "::1/128", "dev", "lo")
	netlab.MustRun(t, down, "ip", "link", "set", "lo", "up")
	n.wantReady()
	for _, ns := range []*netlab.NS{taken, lame, down, fine} {
		if got := n.workload(ns.Name); got.State != "Up" || got.Error != "" || !listening(ns) {
			t.Errorf("%s: %+v", ns.Name, got)
		}
	}
}

func TestWhatCannotListenOpensNothing(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, nodeproxy.Config{})
	taken := netlab.NewNS(t, "taken")
	squatter, err := taken.Listen("[::]:15008")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = squatter.Close() })
	n.acceptSynced().nackedAdd("taken", taken, "cannot listen on tcp [::]:15008")
	if got := listeners(t, taken); got != "tcp 15008 *" {
		t.Errorf("listeners:\n%s", got)
	}
}

func TestDelCutsConnections(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{DNS: nameServers(t, "10.0.0.2")})
	out, outPeer := p.pair(p.app, p.peer, "10.0.0.2:80")
	in, inPeer := p.pair(p.peer, p.app, "10.0.0.1:80")
	undecided := p.dial(p.peer, "10.0.0.1:15008")
	// Traffic both ways, more than anybody reads.
	broken := make(chan error, 4)
	for _, c := range []*net.TCPConn{out, outPeer, in, inPeer} {
		go func() {
			_, err := io.Copy(c, endless{})
			broken <- err
		}()
	}
	p.link.wantAck(del("uid0"))
	if listening(p.app) {
		t.Error("the proxy listens after Del was acked")
	}
	for range 4 {
		if err := <-broken; !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("a connection ended with %v, want a reset", err)
		}
	}
	wantReset(t, undecided)
	if got := p.proxy.State(); len(got.WorkloadState) > 0 || got.Relayed.Outbound != 1 || got.Relayed.Inbound != 1 {
		t.Errorf("left: %+v", got)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// A connection attempt that is under way does not hold up its end.
func TestDelWhileDialling(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{DNS: nameServers(t, "10.0.0.99")})
	netlab.MustRun(t, p.app, "ip", "neighbour", "add", "10.0.0.99", "lladdr", "02:00:00:00:00:99", "dev", "eth0")
	c := p.dial(p.app, "10.0.0.99:80")
	query := p.dialUDP(p.app, "10.0.0.99:53")
	if _, err := query.Write([]byte("0123456789ab")); err != nil {
		t.Fatal(err)
	}
	netlab.Eventually(t, func() error {
		open := p.workload("uid0").Connections.Outbound
		if len(open) != 1 || open[0].OriginalDst.String() != "10.0.0.99:80" {
			return fmt.Errorf("open: %v", open)
		}
		return nil
	})
	p.link.wantAck(del("uid0"))
	wantReset(t, c)
}

func TestTheSnapshotStopsWhatItDoesNotName(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, nodeproxy.Config{})
	l := n.acceptSynced()
	all := map[string]*netlab.NS{}
	for _, uid := range []string{"added", "kept", "deleted", "unnamed"} {
		all[uid] = netlab.NewNS(t, uid)
		l.add(uid, all[uid])
	}
	_ = l.conn.Close()
	l = n.accept()
	for uid, ns := range all {
		if !listening(ns) {
			t.Errorf("%s has ended with the connection", uid)
		}
	}
	l.wantAck(keep("kept"))
	l.add("added", all["added"])
	l.wantAck(keep("deleted"))
	l.wantAck(del("deleted"))
	if listening(all["deleted"]) || !listening(all["unnamed"]) {
		t.Error("before the snapshot only what is deleted ends")
	}
	l.wantAck(snapshot())
	for uid, ns := range all {
		if want := uid == "added" || uid == "kept"; listening(ns) != want {
			t.Errorf("%s is served: %t", uid, !want)
		}
	}
	n.wantReady()
}

func TestConnectionsOutliveTheAgent(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	client, server := p.pair(p.app, p.peer, "10.0.0.2:80")
	_ = p.agent.Close()
	_ = p.link.conn.Close()
	p.wantUnready("not connected to the agent")
	wantAlive(t, client, server)
	netlab.ServeEcho(t, p.peer, "peer", "tcp", "10.0.0.2:81")
	netlab.Ask(t, p.app, "tcp", "10.0.0.2:81")
	p.listen()
	l := p.accept()
	l.wantAck(keep("uid0"))
	l.wantAck(snapshot())
	wantAlive(t, client, server)
}

func TestTwoProxiesListenInOnePod(t *testing.T) {
	netlab.Kernel(t)
	cfg := nodeproxy.Config{DNS: nameServers(t, "10.0.0.10")}
	p, other := newPod(t, cfg), newNode(t, cfg)
	netlab.ServeEcho(t, p.peer, "peer", "tcp", "10.0.0.2:80")
	other.acceptSynced().add("uid0", p.app)
	p.stop()
	if err := <-p.ended; err != nil {
		t.Error(err)
	}
	netlab.Ask(t, p.app, "tcp", "10.0.0.2:80")
	if got := other.proxy.State().Relayed.Outbound; got != 1 {
		t.Errorf("the second proxy has relayed %d connections", got)
	}
}

func TestDrain(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{Drain: time.Hour})
	client, server := p.pair(p.app, p.peer, "10.0.0.2:80")
	p.stop()
	p.link.wantClosed()
	netlab.Eventually(t, func() error {
		if listening(p.app) {
			return errors.New("the proxy still listens")
		}
		return nil
	})
	p.wantUnready("ending")
	wantAlive(t, client, server)
	_ = client.Close()
	if got, err := io.ReadAll(server); len(got) > 0 || err != nil {
		t.Errorf("the server read %q, %v", got, err)
	}
	_ = server.Close()
	if err := <-p.ended; err != nil { // long before an hour has passed
		t.Errorf("the proxy ended with %v", err)
	}
}

func TestDrainIsBounded(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{Drain: time.Millisecond})
	client, server := p.pair(p.app, p.peer, "10.0.0.2:80")
	p.stop()
	if err := <-p.ended; err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
	wantReset(t, client)
	wantReset(t, server)
}

func TestAFatalErrorCutsConnections(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{Drain: time.Hour})
	client, server := p.pair(p.app, p.peer, "10.0.0.2:80")
	p.link.wantNack(snapshot(), nil, "second snapshot")
	p.wantEnd("second snapshot")
	wantReset(t, client)
	wantReset(t, server)
}

func TestFaultNack(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, nodeproxy.Config{Retry: time.Millisecond, Faults: nodeproxy.Faults{Nack: "boom", UID: "sick"}})
	l := n.acceptSynced()
	sick, well := netlab.NewNS(t, "sick"), netlab.NewNS(t, "well")
	l.nackedAdd("sick", sick, "boom")
	l.add("well", well)
	if listening(sick) || !listening(well) {
		t.Errorf("listening in sick: %t, in well: %t", listening(sick), listening(well))
	}
	n.wantUnready("workload sick is pending: boom")
	n.proxy.SetFaults(nodeproxy.Faults{Nack: "bang"})
	n.wantUnready("workload sick is pending: bang")
	l.nackedAdd("third", well, "bang")
	n.proxy.SetFaults(nodeproxy.Faults{})
	n.wantReady()
	if !listening(sick) {
		t.Error("the workload is not served after the fault")
	}
}

// wantAlive sends a byte each way.
func wantAlive(t *testing.T, a, b *net.TCPConn) {
	t.Helper()
	for range 2 {
		var got [1]byte
		if _, err := a.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Read(got[:]); err != nil || got[0] != 'x' {
			t.Fatalf("read %q, %v", got, err)
		}
		a, b = b, a
	}
}
