package nft

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// A transaction of which the kernel refuses any step leaves everything as it was, and the error names the step.
func TestApplyIsAtomic(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "atomic")
	table := open(t, n)
	before := ordinary(t)
	apply(t, table, before)
	number := generation(t, table)

	redirect := ruleset.Rule{Matches: []ruleset.Match{ruleset.L4{Protocol: ruleset.TCP}}, Statement: ruleset.Redirect{Port: 1}}
	accept := ruleset.Rule{Statement: ruleset.Accept{}}
	chain := func(c ruleset.Chain) ruleset.Ruleset {
		c.Name, c.Hook, c.Policy = "c", ruleset.Output, ruleset.PolicyAccept
		return ruleset.Ruleset{Chains: append(append([]ruleset.Chain(nil), before.Chains...), c)}
	}
	for name, tt := range map[string]struct {
		want  ruleset.Ruleset
		error string
	}{
		"a redirect in a filter chain": {
			chain(ruleset.Chain{Type: ruleset.Filter, Rules: []ruleset.Rule{accept, redirect}}),
			"cannot change table inet fairlead: rule 2 of chain c (meta l4proto tcp redirect to :1): " +
				"operation not supported: the kernel needs redirects (module nft_redir, Linux 5.2)"},
		"nat before conntrack": {
			chain(ruleset.Chain{Type: ruleset.NAT, Priority: -250}),
			"cannot change table inet fairlead: chain c: operation not supported: " +
				"the kernel needs nat chains of family inet (module nft_chain_nat, Linux 5.2)"},
		"a type that there is not": {
			chain(ruleset.Chain{Type: "fancy"}),
			"cannot change table inet fairlead: chain c: no such file or directory"},
		"a policy that we do not use": {
			ruleset.Ruleset{Chains: []ruleset.Chain{{Name: "c", Hook: ruleset.Output, Policy: "drop"}}},
			`chain c: cannot write a chain on hook "output" with policy "drop"`},
		"a hook that we do not use": {
			ruleset.Ruleset{Chains: []ruleset.Chain{{Name: "c", Hook: "input", Policy: ruleset.PolicyAccept}}},
			`chain c: cannot write a chain on hook "input" with policy "accept"`},
		"a condition that was only read": {
			chain(ruleset.Chain{Type: ruleset.Filter, Rules: []ruleset.Rule{{Matches: []ruleset.Match{ruleset.Foreign{Text: "[counter]"}}}}}),
			`rule 1 of chain c ([counter]): cannot write condition ruleset.Foreign{Text:"[counter]"}`},
		"no statement": {
			chain(ruleset.Chain{Type: ruleset.Filter, Rules: []ruleset.Rule{{}}}),
			"rule 1 of chain c (): cannot write statement <nil>"},
	} {
		err := table.Apply(context.Background(), tt.want)
		if err == nil || err.Error() != tt.error {
			t.Errorf("%s: got error\n%v\nwant\n%s", name, err, tt.error)
		}
		if diff := check(t, table, before); len(diff) > 0 {
			t.Errorf("%s: the table has changed:\n%s", name, diff)
		}
	}
	if now := generation(t, table); now != number {
		t.Errorf("the ruleset's number went from %d to %d", number, now)
	}
	apply(t, table, before) // the socket is in order
}

func TestApplyAgainAndAgain(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "again")
	table := open(t, n)
	want := ordinary(t)
	netlab.MustRun(t, n, "nft", "add table inet other; add chain inet other c; add rule inet other c counter")
	for range 50 {
		apply(t, table, want)
	}
	if got, wanted := netlab.NftList(t, n), want.String(); !strings.HasSuffix(got, wanted) || strings.Count(got, "table ") != 2 {
		t.Errorf("got\n%s", got)
	}
}

func TestRemove(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "remove")
	table := open(t, n)
	netlab.MustRun(t, n, "nft", "add table inet other")
	for range 2 {
		apply(t, table, ordinary(t))
		stands(t, table, true)
		for range 2 { // the second time there is nothing
			if err := table.Remove(context.Background()); err != nil {
				t.Fatal(err)
			}
			if got := netlab.NftList(t, n); got != "table inet other {\n}\n" {
				t.Errorf("got\n%s", got)
			}
			stands(t, table, false)
		}
	}
}

func stands(t *testing.T, table *Table, want bool) {
	t.Helper()
	if got, err := table.Stands(t.Context()); got != want || err != nil {
		t.Errorf("the table stands: %t, %v", got, err)
	}
}

// A table that belongs to another process's socket cannot be replaced; the error says why.
func TestTableOfAnotherOwner(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "owned")
	table, other := open(t, n), open(t, n)
	const flagOwner = 2
	b := appendNumber(named(unix.NFTA_TABLE_NAME, ruleset.Table), unix.NFTA_TABLE_FLAGS, flagOwner)
	if err := other.run(context.Background(), []step{{message: request(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, b)}}); err != nil {
		t.Fatal(err)
	}
	err := table.Apply(context.Background(), ordinary(t))
	if err == nil || !strings.Contains(err.Error(), "operation not permitted: the table belongs to a process that set the flag owner") {
		t.Errorf("got %v", err)
	}
	if diff := check(t, table, ordinary(t)).String(); !strings.Contains(diff, "table inet fairlead added: `flag owner`") {
		t.Errorf("got %s", diff)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	apply(t, table, ordinary(t))
}

func TestWithoutPrivilege(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "unprivileged")
	table := open(t, n)
	n.Do(t, func() { // on a thread of its own, whose capabilities it gives back
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var full, less [2]unix.CapUserData
		if err := unix.Capget(&header, &full[0]); err != nil {
			t.Error(err)
			return
		}
		less = full
		less[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err := unix.Capset(&header, &less[0]); err != nil {
			t.Error(err)
			return
		}
		err := table.Apply(context.Background(), ordinary(t))
		if err := unix.Capset(&header, &full[0]); err != nil {
			t.Error(err)
		}
		if err == nil || !strings.Contains(err.Error(), "operation not permitted: CAP_NET_ADMIN is needed") {
			t.Errorf("got %v", err)
		}
	})
	apply(t, table, ordinary(t))
}

// IPv6 off by sysctl: the rules for it do no harm, and a config without it leaves them out.
func TestNamespaceWithoutIPv6(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "v4only")
	if err := n.Sysctl("net/ipv6/conf/all/disable_ipv6", "1"); err != nil {
		t.Fatal(err)
	}
	table := open(t, n)
	for _, v6 := range []bool{true, false} {
		want := build(t, ruleset.Config{CaptureDNS: true, IPv4: true, IPv6: v6}, ruleset.FormFull)
		apply(t, table, want)
		if diff := check(t, table, want); len(diff) > 0 {
			t.Error(diff)
		}
		if got := netlab.NftList(t, n); got != want.String() || strings.Contains(got, "ip6") != v6 {
			t.Errorf("got\n%s", got)
		}
	}
}

func TestGeneration(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "generation")
	table := open(t, n)
	last := generation(t, table)
	moved := func(what string, want bool) {
		t.Helper()
		now := generation(t, table)
		if (now != last) != want {
			t.Errorf("%s: the number went from %d to %d", what, last, now)
		}
		last = now
	}
	moved("nothing", false)
	apply(t, table, ordinary(t))
	moved("Apply", true)
	check(t, table, ordinary(t))
	moved("Check", false)
	netlab.MustRun(t, n, "nft", "list", "ruleset")
	moved("nft list", false)
	netlab.MustRun(t, n, "nft", "add", "table", "ip", "other")
	moved("another table", true)
	netlab.MustRun(t, n, "iptables", "-A", "INPUT", "-j", "ACCEPT")
	moved("the app's iptables", true)
	netlab.MustRun(t, n, "nft", "flush", "ruleset")
	moved("nft flush", true)
	if err := table.Remove(context.Background()); err != nil {
		t.Fatal(err)
	}
	moved("Remove of nothing", false)
}

func TestClosedAndCancelled(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "closed")
	table := open(t, n)
	cancelled, cancel := context.WithCancel(context.Background())
	cancel()
	all := func(ctx context.Context, want error) {
		t.Helper()
		_, checked := table.Check(ctx, ordinary(t))
		for name, err := range map[string]error{
			"Apply": table.Apply(ctx, ordinary(t)), "Remove": table.Remove(ctx), "Check": checked,
		} {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", name, err, want)
			}
		}
	}
	all(cancelled, context.Canceled)
	if got := netlab.NftList(t, n); got != "" {
		t.Errorf("a cancelled call wrote\n%s", got)
	}
	for range 2 {
		if err := table.Close(); err != nil {
			t.Fatal(err)
		}
	}
	all(context.Background(), os.ErrClosed)
	if _, err := table.Generation(); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("Generation: %v", err)
	}
	h, err := n.Handle.Dup()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(h); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Open with a closed handle: %v", err)
	}
}

// Many users of one Table, and many Tables of one namespace, get in nobody's way.
func TestAllAtOnce(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "parallel")
	shared := open(t, n)
	want := ordinary(t)
	var work sync.WaitGroup
	for range 4 {
		own := open(t, n)
		work.Go(func() {
			for range 20 {
				err := own.Apply(context.Background(), want)
				_, checked := shared.Check(context.Background(), want)
				_, numbered := shared.Generation()
				if err := errors.Join(err, checked, numbered, shared.Apply(context.Background(), want)); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	work.Wait()
	if diff := check(t, shared, want); len(diff) > 0 {
		t.Error(diff)
	}
	if got := netlab.NftList(t, n); got != want.String() {
		t.Errorf("got\n%s", got)
	}
}

func TestRemedies(t *testing.T) {
	for _, tt := range []struct {
		step  step
		errno unix.Errno
		want  string
	}{
		{step{needs: "x"}, unix.ENOENT, ": the kernel needs x"},
		{step{needs: "x"}, unix.EOPNOTSUPP, ": the kernel needs x"},
		{step{needs: "x"}, unix.EAFNOSUPPORT, ": the kernel needs x"},
		{step{needs: "x"}, unix.EINVAL, ""},
		{step{}, unix.ENOENT, ""},
		{step{needs: "x"}, unix.E2BIG, ": too many chains stand on that hook in this network namespace"},
	} {
		if got := tt.step.remedy(tt.errno); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.errno, got, tt.want)
		}
	}
	if got := remedy(unix.EOPNOTSUPP); got != ": the kernel has no nf_tables (module nf_tables)" {
		t.Errorf("no nf_tables: %q", got)
	}
	ct := "connection tracking (module nft_ct)"
	for want, rule := range map[string]ruleset.Rule{
		ct: {Matches: []ruleset.Match{ruleset.Tracked{}}, Statement: ruleset.Accept{}},
		"redirects (module nft_redir, Linux 5.2)": {Statement: ruleset.Redirect{Port: 1}},
		"": {Statement: ruleset.Drop{}},
	} {
		if got := ruleNeeds(rule); got != want {
			t.Errorf("%s needs %q, want %q", rule, got, want)
		}
	}
	if got := chainNeeds(ruleset.Chain{Type: ruleset.Route}); got != "route chains of family inet (Linux 5.2)" {
		t.Errorf("a route chain needs %q", got)
	}
}
