package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

func foreign(t testing.TB, table *Table) string {
	t.Helper()
	found, err := table.Foreign(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	lines := make([]string, len(found))
	for i, f := range found {
		lines[i] = f.String()
	}
	return strings.Join(lines, "\n")
}

// What stands before ours, or takes packets out of connection tracking, is named; what stands behind is not.
func TestForeign(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "foreign")
	table := open(t, n)
	iptables := func(lines ...string) func(*testing.T) {
		return func(t *testing.T) {
			for _, line := range lines {
				words := strings.Fields(line)
				netlab.MustRun(t, n, words[0], words[1:]...)
			}
		}
	}
	nft := func(commands string) func(*testing.T) { return func(*testing.T) { feed(t, n, commands) } }
	const guardrail = ", as istio-cni leaves it if it is killed at its work: restart the pod"
	const notrack = ": notrack: packets without connection tracking are not redirected"
	for _, tt := range []struct {
		name string
		add  func(*testing.T)
		want string
	}{
		{"nothing", func(*testing.T) {}, ""},
		{"iptables' own chains", iptables(
			"iptables-nft -t nat -I OUTPUT -j ACCEPT", "iptables-nft -t nat -A PREROUTING -p tcp -j REDIRECT --to-ports 9",
			"ip6tables-nft -t nat -I OUTPUT -j ACCEPT", "iptables-nft -t mangle -A OUTPUT -j ACCEPT",
			"iptables-nft -t raw -A OUTPUT -j ACCEPT", "iptables-nft -t raw -A PREROUTING -p udp -j CT --zone 1"), ""},
		{"nat before ours", nft(`table ip evil { chain out { type nat hook output priority -199; }; chain in { type nat hook prerouting priority -102; tcp dport 80 accept; }; }
			table ip6 evil { chain out { type nat hook output priority -150; }; }
			table inet evil { chain same { type nat hook output priority -101; }; }`),
			`chain ip evil/out: type nat hook output priority -199, before ours (-101)
chain ip evil/in: type nat hook prerouting priority -102, before ours (-101)
chain ip6 evil/out: type nat hook output priority -150, before ours (-101)
chain inet evil/same: type nat hook output priority -101, before ours (-101)`},
		{"nat behind ours, or elsewhere", nft(`table inet fine { chain out { type nat hook output priority -100; }; chain in { type nat hook input priority -150; }
			chain post { type nat hook postrouting priority -199; }; chain pre { type nat hook prerouting priority 0; }; chain none { }; }`), ""},
		{"no nat", nft(`table inet fine { chain out { type filter hook output priority -400; }; chain route { type route hook output priority -350; }
			chain early { type filter hook output priority -199; }; }`), ""},
		{"other families", nft(`table bridge fine { chain out { type filter hook output priority -400; }; }
			table arp fine { chain out { type filter hook output priority -400; }; }`), ""},
		{"our name in another family", nft(`table ip fairlead { chain nat-output { type nat hook output priority -110; }; }`),
			"chain ip fairlead/nat-output: type nat hook output priority -110, before ours (-101)"},
		{"notrack", nft(`table inet evil { chain out { type filter hook output priority -300; tcp dport 80 counter notrack; udp dport 80 notrack; }
				chain pre { type filter hook prerouting priority -201; notrack; }; chain late { type filter hook output priority -200; notrack; }
				chain in { type filter hook input priority -300; notrack; }; chain out2 { type route hook output priority -250; notrack; }; }
			table ip evil { chain other { }; chain out { type filter hook output priority -500; jump other; }; }; add rule ip evil other notrack`),
			"chain inet evil/out" + notrack + "\nchain inet evil/pre" + notrack + "\nchain inet evil/out2" + notrack + "\nchain ip evil/other" + notrack},
		{"iptables' NOTRACK", iptables("iptables-nft -t raw -A OUTPUT -p tcp --dport 80 -j NOTRACK", "ip6tables-nft -t raw -A PREROUTING -j CT --notrack",
			"iptables-nft -t raw -N mine", "iptables-nft -t raw -A mine -j CT --notrack", "iptables-nft -t filter -A OUTPUT -j ACCEPT"),
			"chain ip raw/OUTPUT" + notrack + "\nchain ip raw/mine" + notrack + "\nchain ip6 raw/PREROUTING" + notrack},
		{"notrack where nothing is early", nft(`table inet fine { chain late { type filter hook output priority 0; notrack; }; }`), ""},
		{"names that would not print", func(t *testing.T) { oddNames(t, table) },
			`chain inet a\x1b[2J/\u00e9\xff: type nat hook output priority -150, before ours (-101)`},
		{"istio-cni's guardrails", iptables("iptables-nft -A INPUT -p tcp -j DROP", "iptables-nft -A INPUT -p udp -j DROP", "iptables-nft -A FORWARD -p udp -j DROP",
			"iptables-nft -A OUTPUT -j ACCEPT", "iptables-nft -A OUTPUT -p tcp -j DROP", "ip6tables-nft -A OUTPUT -p tcp -j DROP", "ip6tables-nft -A INPUT -p tcp --dport 80 -j DROP",
			"ip6tables-nft -A FORWARD -p icmp -j DROP", "iptables-nft -t mangle -A INPUT -p tcp -j DROP", "iptables-nft -N MINE", "iptables-nft -A MINE -p tcp -j DROP"),
			"chain ip filter/INPUT: it begins with a rule that drops all tcp" + guardrail + "\nchain ip filter/FORWARD: it begins with a rule that drops all udp" + guardrail +
				"\nchain ip6 filter/OUTPUT: it begins with a rule that drops all tcp" + guardrail},
		{"guardrails by nft", nft(`table ip filter { chain INPUT { type filter hook input priority 0; meta l4proto tcp drop; }; chain OUTPUT { meta l4proto udp accept; }; }
			table inet filter { chain INPUT { type filter hook input priority 0; meta l4proto tcp drop; }; }`),
			"chain ip filter/INPUT: it begins with a rule that drops all tcp" + guardrail},
	} {
		netlab.MustRun(t, n, "nft", "flush", "ruleset")
		for _, when := range []string{"without ours", "behind ours"} {
			if when == "behind ours" {
				apply(t, table, ordinary(t))
			} else {
				tt.add(t)
			}
			if got := foreign(t, table); got != tt.want {
				t.Errorf("%s, %s: got\n%s\nwant\n%s", tt.name, when, got, tt.want)
			}
		}
	}
}

// Old versions of iptables write NOTRACK itself, others CT with a flag.
func TestUntracks(t *testing.T) {
	target := func(name string, info ...byte) []byte {
		data := nlconn.AppendAttr(nlconn.AppendText(nil, targetName, name), targetInfo, info)
		return nlconn.AppendAttr(nlconn.AppendText(nil, unix.NFTA_EXPR_NAME, "target"), unix.NLA_F_NESTED|unix.NFTA_EXPR_DATA, data)
	}
	flags := func(n uint16) []byte { return binary.NativeEndian.AppendUint16(nil, n) }
	for name, tt := range map[string]struct {
		expression  []byte
		want, wrong bool
	}{
		"nft's":            {expression: nlconn.AppendText(nil, unix.NFTA_EXPR_NAME, "notrack"), want: true},
		"NOTRACK":          {expression: target("NOTRACK"), want: true},
		"CT --notrack":     {expression: target("CT", append(flags(1), 0, 0)...), want: true},
		"CT --zone":        {expression: target("CT", append(flags(0), 1, 0)...)},
		"CT cut off":       {expression: target("CT", 1)},
		"another target":   {expression: target("MARK", flags(1)...)},
		"an expression":    {expression: nlconn.AppendText(nil, unix.NFTA_EXPR_NAME, "counter")},
		"nothing":          {},
		"a length too big": {expression: []byte{99, 0, 1, 0}, wrong: true},
	} {
		if got, err := untracks(tt.expression); got != tt.want || (err != nil) != tt.wrong {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
}

// oddNames adds a chain that the nft command would not.
func oddNames(t *testing.T, table *Table) {
	t.Helper()
	const name = "a\x1b[2J"
	priority := int32(-150)
	where := appendNumber(nil, unix.NFTA_HOOK_HOOKNUM, hooks[ruleset.Output])
	where = appendNumber(where, unix.NFTA_HOOK_PRIORITY, uint32(priority))
	chain := nlconn.AppendText(named(unix.NFTA_CHAIN_TABLE, name), unix.NFTA_CHAIN_NAME, "é\xff")
	chain = nlconn.AppendAttr(chain, unix.NLA_F_NESTED|unix.NFTA_CHAIN_HOOK, where)
	chain = nlconn.AppendText(chain, unix.NFTA_CHAIN_TYPE, "nat")
	if err := table.run(t.Context(), []step{
		{message: request(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, named(unix.NFTA_TABLE_NAME, name))},
		{message: request(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, chain)},
	}); err != nil {
		t.Fatal(err)
	}
}

// The kernel obeys a chain that we name, and not ours. One that we do not name it does not obey.
func TestForeignIsWhatTheKernelObeys(t *testing.T) {
	netlab.Kernel(t)
	pod, peer := netlab.NewNS(t, "pod"), netlab.NewNS(t, "peer")
	netlab.Connect(t, netlab.Port{NS: pod, Addrs: netlab.Prefixes("10.0.0.5/24")}, netlab.Port{NS: peer, Addrs: netlab.Prefixes("10.0.0.9/24")})
	netlab.ServeEcho(t, peer, "peer", "tcp", "10.0.0.9:80")
	netlab.ServeEcho(t, pod, "proxy", "tcp", "127.0.0.1:15001")
	netlab.ServeEcho(t, pod, "evil", "tcp", "127.0.0.1:9")
	table := open(t, pod)
	for priority, want := range map[int]struct {
		server string
		named  bool
	}{-100: {"proxy", false}, -102: {"evil", true}, -101: {"evil", true}} {
		netlab.MustRun(t, pod, "nft", "flush", "ruleset")
		apply(t, table, ordinary(t))
		feed(t, pod, fmt.Sprintf("table ip evil { chain out { type nat hook output priority %d; tcp dport 80 redirect to :9; }; }", priority))
		if reply := netlab.Ask(t, pod, "tcp", "10.0.0.9:80"); reply.Server != want.server {
			t.Errorf("priority %d: answered by %s, want %s", priority, reply.Server, want.server)
		}
		if got := foreign(t, table); (got != "") != want.named {
			t.Errorf("priority %d: %q", priority, got)
		}
	}
}

// A pod that adds one after the other gets a hundred named.
func TestForeignNamesSoMany(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "many")
	table := open(t, n)
	var commands strings.Builder
	fmt.Fprintln(&commands, "add table ip t")
	for i := range mostForeign + 1 {
		fmt.Fprintf(&commands, "add chain ip t c%d { type nat hook output priority -150; }\n", i)
	}
	feed(t, n, commands.String())
	lines := strings.Split(foreign(t, table), "\n")
	if len(lines) != mostForeign+1 || lines[mostForeign] != "ruleset: too many chains to look at all of them" {
		t.Errorf("%d lines, the last is %q", len(lines), lines[len(lines)-1])
	}
}

// Whatever a pod fills the kernel with, the look is bounded, and says what it has not seen.
func TestForeignInAFullNamespace(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "full")
	table := open(t, n)
	for _, tt := range []struct {
		name, first, line, last string
		count                   int
		want                    string
	}{
		{"rules", "add table ip t; add chain ip t c { type filter hook output priority -300; }", "add rule ip t c tcp dport %d accept",
			"add rule ip t c notrack", mostRules, "ruleset: too many rules to look at all of them"},
		{"rules of another table", "add table ip t; add chain ip t c", "add rule ip t c tcp dport %d accept",
			"add table ip u; add chain ip u c { type filter hook output priority -300; }; add rule ip u c notrack", mostRules,
			"chain ip u/c: notrack: packets without connection tracking are not redirected"},
		{"tables", "", "add table ip t%[1]d; add chain ip t%[1]d c { type filter hook output priority -300; }", "", mostRules + 1,
			"ruleset: too many rules to look at all of them"},
		{"chains", "add table ip t", "add chain ip t c%d", "", mostChains + 1, "ruleset: too many chains to look at all of them"},
		{"chains of a family that is not asked for", "add table bridge t", "add chain bridge t c%d", "", mostChains + 1, "ruleset: too many chains to look at all of them"},
	} {
		netlab.MustRun(t, n, "nft", "flush", "ruleset")
		apply(t, table, ordinary(t))
		var commands strings.Builder
		fmt.Fprintln(&commands, tt.first)
		for i := range tt.count {
			fmt.Fprintf(&commands, tt.line+"\n", i+1)
		}
		fmt.Fprintln(&commands, tt.last)
		feed(t, n, commands.String())
		for range 2 { // the socket is good for more
			if got := foreign(t, table); got != tt.want {
				t.Errorf("%s: got\n%s\nwant\n%s", tt.name, got, tt.want)
			}
		}
	}
}

func TestForeignFails(t *testing.T) {
	netlab.Kernel(t)
	table := open(t, netlab.NewNS(t, "foreign"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := table.Foreign(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}

func BenchmarkForeign(b *testing.B) {
	netlab.Kernel(b)
	n := netlab.NewNS(b, "bench")
	table := open(b, n)
	apply(b, table, ordinary(b))
	run := func(b *testing.B) {
		for b.Loop() {
			if found := foreign(b, table); found != "" {
				b.Fatal(found)
			}
		}
	}
	b.Run("ours alone", run)
	for _, t := range []string{"nat", "mangle", "raw", "filter"} {
		for _, family := range []string{"iptables-nft", "ip6tables-nft"} {
			netlab.MustRun(b, n, family, "-t", t, "-A", "OUTPUT", "-p", "tcp", "-j", "ACCEPT")
		}
	}
	b.Run("beside iptables", run)
}
