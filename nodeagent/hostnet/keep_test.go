package hostnet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// An agent's successor leaves what it finds, until it is told what to keep.
func TestRestart(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 4)
	first := open(t, config(n.host))
	stop := run(t, first)
	for i, uid := range []string{"gone", "kept", "known", "deleted"} {
		set(t, first, uid, podOf(i))
	}
	stop()
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	before := netlab.NftList(t, n.host)

	second := open(t, config(n.host))
	run(t, second)
	mode(t, second, AnyHostProcess)
	if got := netlab.NftList(t, n.host); got != before {
		t.Errorf("the successor has changed the table to:\n%s\nfrom:\n%s", got, before)
	}
	set(t, second, "known", podOf(2))
	remove(t, second, "deleted")
	if got, want := members(t, second), lines(
		"address 10.0.0.2 of pod gone", "address 10.0.0.3 of pod kept", "address 10.0.0.4 of pod known",
		"address fd00::2 of pod gone", "address fd00::3 of pod kept", "address fd00::4 of pod known",
		"guard at veth0 of pod gone", "guard at veth1 of pod kept", "guard at veth2 of pod known",
	); got != want {
		t.Errorf("before it is told:\n%s\nwant:\n%s", got, want)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	second.forgetRead("")
	if err := second.KeepOnly(over, []string{"kept"}); !errors.Is(err, context.Canceled) || second.settled {
		t.Errorf("KeepOnly after the end of its context: %v, settled %t", err, second.settled)
	}
	if err := second.KeepOnly(t.Context(), []string{"kept"}); err != nil {
		t.Fatal(err)
	}
	if got, want := members(t, second), lines(
		"address 10.0.0.3 of pod kept", "address 10.0.0.4 of pod known", "address fd00::3 of pod kept", "address fd00::4 of pod known",
		"guard at veth1 of pod kept", "guard at veth2 of pod known",
	); got != want {
		t.Errorf("after it is told:\n%s\nwant:\n%s", got, want)
	}
	remove(t, second, "kept")
	if got := second.Status(); got.Repairs != 0 {
		t.Errorf("repairs of what nobody changed: %+v", got)
	}
}

// The table of another version of ours is replaced, and its addresses stay.
func TestOlderVersion(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 2)
	for _, line := range []string{
		"add table inet fairlead", "add set inet fairlead probed4 { type ipv4_addr; }",
		`add element inet fairlead probed4 { 10.0.0.2 comment "web", 10.0.0.9 }`, "add set inet fairlead others { type inet_service; }",
		"add chain inet fairlead output { type filter hook output priority 0; policy accept; }", "add rule inet fairlead output tcp dport 1 drop",
		"add chain inet fairlead from-veth0 { type filter hook ingress device veth0 priority 3; }",
	} {
		netlab.MustRun(t, n.host, "nft", line)
	}
	e := open(t, config(n.host))
	set(t, e, "db", podOf(1))
	if got, want := members(t, e), lines(
		"address 10.0.0.2 of pod web", "address 10.0.0.3 of pod db", "address 10.0.0.9 of pod ", "address fd00::3 of pod db", "guard at veth1 of pod db",
	); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	asWanted(t, e)
	if err := e.KeepOnly(t.Context(), []string{"web"}); err != nil {
		t.Fatal(err)
	}
	if got, want := members(t, e), lines(
		"address 10.0.0.2 of pod web", "address 10.0.0.3 of pod db", "address fd00::3 of pod db", "guard at veth1 of pod db",
	); got != want {
		t.Errorf("after it is told:\n%s\nwant:\n%s", got, want)
	}
}

// damages are what somebody may do to our table, and what is said to be wrong then.
var damages = []struct{ name, nft, drift string }{
	{"everything flushed", "flush ruleset", "missing chain output: type filter hook 3 priority -151"},
	{"the table deleted", "delete table inet fairlead", "missing chain output: type filter hook 3 priority -151"},
	{"the table dormant", "add table inet fairlead { flags dormant; }", "not ours table: flags 0x1"},
	{"rules flushed", "flush chain inet fairlead postrouting", `missing chain postrouting: rule "health probes: their source"`},
	{"a rule put first", "insert rule inet fairlead postrouting accept", `not ours chain postrouting: rule ""`},
	{"a policy changed", "add chain inet fairlead output { policy drop; }", "not ours chain output: type filter hook 3 priority -151, policy drop"},
	{"a chain added", "add chain inet fairlead more", "not ours chain more: on no hook"},
	{"a counter added", "add counter inet fairlead more", "not ours table: 1 things more"},
	{"a set added", "add set inet fairlead more { type inet_service; }", "not ours set more"},
	{"an address deleted", "delete element inet fairlead probed4 { 10.0.0.2 }", "missing address 10.0.0.2 of pod web"},
	{"a set flushed", "flush set inet fairlead probed6", "missing address fd00::2 of pod web"},
	{"an address added", "add element inet fairlead probed4 { 10.9.9.9 }", "not wanted address 10.9.9.9 of pod "},
	{"a guard deleted", "delete chain inet fairlead from-veth0", "missing guard at veth0 of pod web"},
	{"a guard opened", "insert rule inet fairlead from-veth0 accept", "not ours chain from-veth0: type filter hook 5 priority -500"},
}

// Whatever somebody does to our table is seen and put right, in Run by the kernel's word
// alone: its sweep is an hour away.
func TestDamageIsRepaired(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 1)
	c := config(n.host)
	c.Watcher, c.Look = watcher(t), time.Hour
	e := open(t, c)
	run(t, e)
	set(t, e, "web", podOf(0))
	if err := e.KeepOnly(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	netlab.MustRun(t, n.host, "nft", "add table inet others")
	netlab.MustRun(t, n.host, "nft", "add chain inet others output { type nat hook output priority -100; }")
	asWanted(t, e)
	ours := netlab.MustRun(t, n.host, "nft", "list", "table", "inet", "fairlead")
	netlab.MustRun(t, n.host, "nft", "flush", "table", "inet", "fairlead")
	asWanted(t, e) // so Run listens by now
	first := e.Status().Repairs
	for i, d := range damages {
		netlab.MustRun(t, n.host, "nft", d.nft)
		netlab.Eventually(t, func() error {
			s := e.Status()
			if s.Repairs != first+i+1 || s.Problem != "" || !strings.HasPrefix(s.By, "nft (pid ") ||
				!slices.ContainsFunc(s.Drift, func(line string) bool { return strings.HasPrefix(line, d.drift) }) {
				return fmt.Errorf("%s: status %+v, want repair %d of %q by nft", d.name, s, first+i+1, d.drift)
			}
			return nil
		})
		asWanted(t, e)
		if got := netlab.MustRun(t, n.host, "nft", "list", "table", "inet", "fairlead"); got != ours {
			t.Errorf("%s: afterwards:\n%s\nwant:\n%s", d.name, got, ours)
		}
	}
}

// Without the kernel's word it is the sweep that sees. Whoever wants to know is told.
func TestSweep(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 1)
	c := config(n.host)
	c.Sweep = 10 * time.Millisecond
	told := make(chan string, 100)
	c.Changed = func(s Status) {
		told <- fmt.Sprintf("%s, %d repairs, problem %q", s.Kubelet.Mode, s.Repairs, s.Problem)
	}
	e := open(t, c)
	stop := run(t, e)
	set(t, e, "web", podOf(0))
	netlab.MustRun(t, n.host, "nft", "flush", "ruleset")
	asWanted(t, e)
	stop()
	close(told)
	if got, want := slices.Compact(slices.Collect(all(told))), []string{`any host process, 0 repairs, problem ""`, `any host process, 1 repairs, problem ""`}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

func all(told <-chan string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for s := range told {
			if !yield(s) {
				return
			}
		}
	}
}

// More pods than a node has fit into one transaction.
func TestManyPods(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 0)
	e := open(t, config(n.host))
	const pods = 600
	for i := range pods {
		v6 := netip.MustParseAddr("fd00::").As16()
		v6[14], v6[15] = byte(i>>8), byte(i)
		set(t, e, fmt.Sprintf("8f2d7c1e-0000-4000-8000-%012d", i), Pod{Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), netip.AddrFrom16(v6)}})
	}
	before := members(t, e)
	netlab.MustRun(t, n.host, "nft", "flush", "ruleset")
	e.forgetRead("")
	if err := e.apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := members(t, e); got != before || strings.Count(got, "\n") != 2*pods-1 {
		t.Errorf("%d lines, want %d", strings.Count(got, "\n"), 2*pods-1)
	}
}

// Remove leaves other tables as they were, and nothing of ours, for good.
func TestRemove(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := newNode(t, 1)
	for _, line := range []string{"add table ip nat", "add chain ip nat postrouting { type nat hook postrouting priority 100; }", "add rule ip nat postrouting masquerade"} {
		netlab.MustRun(t, n.host, "nft", line)
	}
	before := netlab.NftList(t, n.host)
	e := open(t, config(n.host))
	run(t, e)
	set(t, e, "web", podOf(0))
	mode(t, e, AnyHostProcess)
	for range 2 {
		if err := e.Remove(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(e.Set(t.Context(), "web", podOf(0)), e.Delete(t.Context(), "web")); err != nil {
		t.Errorf("calls after Remove: %v", err)
	}
	e.turn(t.Context())
	if drift, err := e.Check(t.Context()); drift != nil || err != nil {
		t.Errorf("Check after Remove: %q, %v", drift, err)
	}
	if got := netlab.NftList(t, n.host); got != before {
		t.Errorf("after Remove:\n%s\nwant:\n%s", got, before)
	}
}

// In the other modes there is no table, and one that is left goes.
func TestWithoutSNAT(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 1)
	for probes, want := range map[Probes]Mode{HostIP: HostAddress, Off: NoProbes} {
		earlier := open(t, config(n.host))
		set(t, earlier, "web", podOf(0))
		e := open(t, Config{Host: n.host.Handle, Probes: probes})
		run(t, e)
		asWanted(t, e)
		set(t, e, "web", podOf(0))
		if got := e.Status(); got.Kubelet != (Kubelet{Mode: want}) {
			t.Errorf("%s: %+v", probes, got)
		}
		if got := netlab.NftList(t, n.host); got != "" {
			t.Errorf("%s: there is a table:\n%s", probes, got)
		}
	}
}

// Many pods at once share transactions, and each has what it asked for when it is told so.
func TestManyAtOnce(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 1)
	e := open(t, config(n.host))
	var group errgroup.Group
	for i := range 60 {
		group.Go(func() error {
			uid, addr := fmt.Sprintf("pod-%d", i), netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})
			if err := e.Exempt(t.Context(), uid, n.pods[0].Handle, []netip.Addr{addr, netip.MustParseAddr("fe80::1")}); err != nil {
				return err
			}
			if got := members(t, e); !strings.Contains(got, fmt.Sprintf("address %s of pod %s\n", addr, uid)) {
				return fmt.Errorf("%s is not exempt when it was said to be:\n%s", uid, got)
			}
			if i%2 == 0 {
				return e.Delete(t.Context(), uid)
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := e.KeepOnly(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	asWanted(t, e)
	if got := strings.Count(members(t, e), "address "); got != 30 {
		t.Errorf("%d addresses are left, want 30:\n%s", got, members(t, e))
	}
}

// That somebody does not wait any more for his change is no problem of the table's: the
// change is made later.
func TestGivenUp(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 1)
	e := open(t, config(n.host))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Set(over, "web", podOf(0)); !errors.Is(err, context.Canceled) {
		t.Fatalf("given up: %v", err)
	}
	if problem := e.Status().Problem; problem != "" {
		t.Errorf("a problem: %s", problem)
	}
	run(t, e)
	netlab.Eventually(t, func() error {
		if got := members(t, e); !strings.Contains(got, "of pod web") {
			return fmt.Errorf("not there yet: %q", got)
		}
		return nil
	})
}
