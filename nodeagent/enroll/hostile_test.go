package enroll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// One worker, and a pod that makes as much work as it can: all others start, are
// repaired, released and captured, and status answers. When it is over, that pod too
// is as it should be.
func TestAHostilePodHoldsUpNobody(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := startNode(t, 1)
	web, api := n.pod("web"), n.pod("api")
	hostile := n.hostile("hostile")
	for _, name := range []string{"web", "api", "hostile"} {
		n.label(name, true)
		n.start(name)
	}
	if err := differs(n.states(), "api Captured OK, web Captured OK"); err != nil {
		t.Fatal(err)
	}
	whole := kernelText(t, web)

	hostile.rage(t)
	n.eventually(func() error { // it is said of it, and who does it
		p := n.report("hostile")
		if p.State != status.Bypassing || p.Reason != status.RulesFought || !strings.Contains(p.Message, "by "+ownName(t)+" (pid ") {
			return fmt.Errorf("%s (%s): %s", p.State, p.Reason, p.Message)
		}
		return nil
	})
	for _, step := range []struct {
		what string
		do   func()
	}{
		{"a pod starts", func() {
			n.pod("late")
			n.label("late", true)
			n.start("late")
		}},
		{"another's rules are put back", func() {
			netlab.MustRun(t, web, "nft", "flush", "ruleset")
			n.eventually(func() error { return differs(kernelText(t, web), whole) })
		}},
		{"one is released", func() {
			n.label("api", false)
			n.eventually(func() error {
				return differs(n.states(), "api NotCaptured NotLabelled, late Captured OK, web Captured OK")
			})
			if text := kernelText(t, api); strings.Contains(text, "fairlead") || strings.Contains(text, "32764") {
				t.Errorf("left over in api:\n%s", text)
			}
		}},
		{"and captured again", func() {
			n.label("api", true)
			n.eventually(func() error { return differs(n.states(), "api Captured OK, late Captured OK, web Captured OK") })
		}},
	} {
		before := hostile.changes.Load()
		step.do()
		n.eventually(func() error { // it rages on
			if hostile.changes.Load() == before {
				return errors.New("the hostile pod has changed nothing meanwhile")
			}
			return nil
		})
		t.Logf("%s, while the hostile pod made %d changes", step.what, hostile.changes.Load()-before)
	}

	hostile.rest()
	n.eventually(func() error {
		p := n.report("hostile")
		return differs(fmt.Sprintln(p.State, p.Reason, p.Rules.State, p.OldConnections), fmt.Sprintln(status.Captured, status.OK, "full", status.OldConnections{Known: true}))
	})
	ours := func(pod *netlab.NS) string { return netlab.MustRun(t, pod, "nft", "list", "table", "inet", "fairlead") }
	if err := differs(ours(hostile.NS), ours(web)); err != nil {
		t.Errorf("our table in the hostile pod: %v", err)
	}
	if theirs := netlab.MustRun(t, hostile.NS, "nft", "list", "table", "inet", "hostile"); strings.Count(theirs, "accept") != hostileRules {
		t.Errorf("of the hostile pod's own table %d rules are left, not %d", strings.Count(theirs, "accept"), hostileRules)
	}
}

func differs(got, want string) error {
	if got == want {
		return nil
	}
	return fmt.Errorf("got\n%s\nwant\n%s", got, want)
}

// ownName is what the kernel calls this process, and each of its threads.
func ownName(t *testing.T) string {
	t.Helper()
	name, err := os.ReadFile("/proc/self/comm")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(name))
}

// A node is a Reconciler on the real kernel. Its world is source, proxy and records.
type node struct {
	*world
	peer *netlab.NS
}

func startNode(t *testing.T, workers int) *node {
	t.Helper()
	policy, err := config.Default().Policy()
	if err != nil {
		t.Fatal(err)
	}
	n := &node{peer: netlab.NewNS(t, "peer"), world: &world{
		t: t, answer: proxylink.Acked,
		objects: map[string]intent.Pod{}, records: map[string]Record{}, held: map[string]proxylink.State{},
	}}
	listen(t, n.peer, "0.0.0.0:80")
	o := opener(t)
	n.r, err = New(Config{
		Policy: policy, Source: n, Proxies: n, Probes: noProbes{}, Records: n,
		Find: o.Finder.Told, Gone: sandbox.Place.Gone, Open: o.Open, Search: n.search,
		ProbeIPv4: ruleset.DefaultProbeIPv4, ProbeIPv6: ruleset.DefaultProbeIPv6,
		PodWait: time.Minute, ProxyWait: time.Minute, AckWait: time.Minute,
		ReleaseGrace: 10 * time.Millisecond, DrainTimeout: time.Minute, SweepInterval: time.Second,
		Workers: workers, Metrics: NewMetrics(prometheus.NewRegistry()), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- n.r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-n.r.Adopted()
	return n
}

// pod makes a pod's namespace, in which the proxy listens already.
func (n *node) pod(name string) *netlab.NS {
	n.t.Helper()
	pod := netlab.NewNS(n.t, name)
	for _, addr := range []string{"[::]:15001", "[::]:15006", "[::]:15008", "127.0.0.1:15053", "[::1]:15053"} {
		listen(n.t, pod, addr, netlab.Mark(int(ruleset.ProxyMark)))
	}
	for _, addr := range []string{"127.0.0.1:15053", "[::1]:15053"} {
		packet(n.t, pod, addr)
	}
	return pod
}

func (n *node) label(name string, ambient bool) {
	p := intent.Pod{Namespace: "shop", Name: name, Labels: map[string]string{}}
	if ambient {
		p.Labels[intent.LabelMode] = intent.ModeAmbient
	}
	n.mu.Lock()
	n.objects["shop/"+name] = p
	n.mu.Unlock()
	n.r.Wake("")
}

// start has the runtime start a pod.
func (n *node) start(name string) {
	n.t.Helper()
	if err := n.add(name, name); err != nil {
		n.t.Fatalf("%s does not start: %v", name, err)
	}
}

func (n *node) report(name string) status.Pod {
	for _, p := range n.r.Report() {
		if p.Name == name {
			return p
		}
	}
	return status.Pod{}
}

// states are those of all pods but the hostile one.
func (n *node) states() string {
	var all []string
	for _, p := range n.r.Report() {
		if p.Name != "hostile" {
			all = append(all, fmt.Sprint(p.Name, " ", p.State, " ", p.Reason))
		}
	}
	return strings.Join(all, ", ")
}

// eventually is netlab's with the patience that is needed beside a hostile pod, who is
// answered at a pause of up to 10 seconds himself.
func (n *node) eventually(check func() error) {
	n.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); ; <-tick.C {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("still not after a minute: %v", err)
		}
	}
}

// A hostile pod has rules and sockets by the thousand, and changes what is ours in a
// loop.
type hostile struct {
	*netlab.NS
	changes atomic.Int64
	stop    chan struct{}
	loops   sync.WaitGroup
	conns   []io.Closer
}

const (
	hostileRules   = 20_000
	hostileSockets = 1_000 // of each: listening, dialled, accepted
)

func (n *node) hostile(name string) *hostile {
	n.t.Helper()
	h := &hostile{NS: n.pod(name), stop: make(chan struct{})}
	netlab.Connect(n.t, netlab.Port{NS: h.NS, Addrs: netlab.Prefixes("10.0.0.1/24")}, netlab.Port{NS: n.peer, Addrs: netlab.Prefixes("10.0.0.2/24")})
	n.t.Cleanup(func() {
		h.rest()
		for _, c := range h.conns {
			_ = c.Close() // the agent has reset some
		}
	})
	return h
}

// rage begins all of it.
func (h *hostile) rage(t *testing.T) {
	t.Helper()
	h.fill(t)
	for i := range hostileSockets {
		addr := fmt.Sprintf("127.0.0.1:%d", 20_000+i)
		l, err := h.Listen(addr)
		if err != nil {
			t.Fatal(err)
		}
		h.conns = append(h.conns, l, h.dial(t, addr))
		accepted, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		h.conns = append(h.conns, accepted)
	}
	h.loop(t, unix.NETLINK_NETFILTER, changeRules)
	h.loop(t, unix.NETLINK_ROUTE, changeRouting)
	for range hostileSockets / 10 { // some through the proxy, some past it
		conn, err := h.Dial(t.Context(), "tcp", "10.0.0.2:80")
		switch {
		case err == nil:
			h.conns = append(h.conns, conn)
		case !errors.Is(err, unix.ECONNABORTED) && !errors.Is(err, unix.ECONNRESET): // as the agent makes one fail
			t.Fatal(err)
		}
	}
}

func (h *hostile) dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := h.Dial(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// fill gives the pod a table of its own.
func (h *hostile) fill(t *testing.T) {
	t.Helper()
	var commands strings.Builder
	fmt.Fprintln(&commands, "add table inet hostile; add chain inet hostile many; add chain inet hostile loop")
	for i := range hostileRules {
		fmt.Fprintf(&commands, "add rule inet hostile many tcp dport %d accept\n", i+1)
	}
	file := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(file, []byte(commands.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	netlab.MustRun(t, h.NS, "nft", "-f", file)
}

// loop makes the changes, over a socket of the pod's own, until the pod rests.
func (h *hostile) loop(t *testing.T, protocol int, change func(*nlconn.Conn) error) {
	t.Helper()
	conn, err := nlconn.Open(h.Handle, protocol)
	if err != nil {
		t.Fatal(err)
	}
	h.loops.Go(func() {
		defer func() { _ = conn.Close() }() // nothing is expected of it
		for {
			select {
			case <-h.stop:
				return
			default:
			}
			if err := change(conn); err != nil {
				t.Error(err)
				return
			}
			h.changes.Add(1)
		}
	})
}

// rest ends the loops. It may be called again.
func (h *hostile) rest() {
	select {
	case <-h.stop:
	default:
		close(h.stop)
	}
	h.loops.Wait()
}

// changeRules adds a rule to our table, and one to the pod's own, and deletes all of
// their chains.
func changeRules(c *nlconn.Conn) error {
	for _, kind := range []uint16{unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE} {
		for table, chain := range map[string]string{ruleset.Table: "nat-output", "hostile": "loop"} {
			m := nlconn.Message{Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | kind}
			if kind == unix.NFT_MSG_NEWRULE {
				m.Flags = unix.NLM_F_CREATE
			}
			m.Payload = nlconn.AppendText(nlconn.NetfilterHeader(unix.NFPROTO_INET), unix.NFTA_RULE_TABLE, table)
			m.Payload = nlconn.AppendText(m.Payload, unix.NFTA_RULE_CHAIN, chain)
			if _, err := c.Batch(context.Background(), unix.NFNL_SUBSYS_NFTABLES, []nlconn.Message{m}); err != nil {
				return fmt.Errorf("cannot change a rule of table %s: %w", table, err)
			}
		}
	}
	return nil
}

// changeRouting takes our ip rule away and puts it back. The agent may do so first.
func changeRouting(c *nlconn.Conn) error {
	// FRA_PRIORITY, FRA_FWMARK, FRA_FWMASK; FR_ACT_TO_TBL
	const priority, mark, mask, toTable = 6, 10, 16, 1
	rule := []byte{unix.AF_INET, 0, 0, 0, ruleset.RouteTable, 0, 0, toTable, 0, 0, 0, 0}
	rule = nlconn.AppendUint32(rule, priority, ruleset.RoutePriority)
	rule = nlconn.AppendUint32(rule, mark, ruleset.ConnMark)
	rule = nlconn.AppendUint32(rule, mask, ruleset.MarkMask)
	err := c.Request(context.Background(), unix.RTM_DELRULE, unix.NLM_F_ACK, rule, nil)
	if err == nil || errors.Is(err, unix.ENOENT) {
		err = c.Request(context.Background(), unix.RTM_NEWRULE, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL, rule, nil)
	}
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}
