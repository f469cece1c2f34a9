package nft

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// ran executes command lines.
func ran(t *testing.T, n *netlab.NS, lines ...string) {
	t.Helper()
	for _, line := range lines {
		words := strings.Fields(line)
		netlab.MustRun(t, n, words[0], words[1:]...)
	}
}

// somebody puts rules of an app's in place: in every table that istio-cni uses, and under names like its own elsewhere. The
// app's rules stand before istio-cni's and behind them.
func somebody(t *testing.T, n *netlab.NS, between func()) {
	t.Helper()
	feed(t, n, `table inet other { chain out { type nat hook output priority 10; tcp dport 9 accept; }; }
		table inet istio-ambient-other { chain istio-output { tcp dport 9 accept; }; }
		table ip istio-ambient-nat { chain istio-output { tcp dport 9 accept; }; }`)
	for _, family := range []string{"iptables-nft", "ip6tables-nft"} {
		ran(t, n, family+" -N ISTIO_OUTPUT", family+" -A OUTPUT -j ISTIO_OUTPUT")
		for _, table := range []string{"nat", "mangle", "raw"} {
			with := family + " -t " + table
			ran(t, n, with+" -N MINE", with+" -A MINE -p udp -j ACCEPT", with+" -A PREROUTING -j MINE", with+" -A OUTPUT -p tcp --dport 1 -j MINE")
		}
	}
	between()
	for _, family := range []string{"iptables-nft", "ip6tables-nft"} {
		for _, table := range []string{"nat", "mangle", "raw"} {
			ran(t, n, family+" -t "+table+" -A OUTPUT -p tcp --dport 2 -g MINE", family+" -t "+table+" -A PREROUTING -j ACCEPT")
		}
	}
}

var istioBackends = []string{"iptables-nft", "nft"}

// Rules of ours that redirect take the place of istio-cni's; those that do not leave them, and Remove leaves neither. Of
// everybody else's not a byte is changed.
func TestTakesOverFromIstioCNI(t *testing.T) {
	netlab.Kernel(t)
	plain := netlab.NewNS(t, "plain")
	somebody(t, plain, func() {})
	others := netlab.NftList(t, plain)
	for _, backend := range istioBackends {
		pod := netlab.NewNS(t, backend)
		istio := func() {
			netlab.IstioCNI(t, pod, backend)
			if backend == "iptables-nft" { // a chain that another leads to as well could not be deleted
				ran(t, pod, "iptables-nft -t nat -A MINE -p tcp --dport 3 -g ISTIO_OUTPUT", "ip6tables-nft -t raw -A ISTIO_PRERT -j ISTIO_OUTPUT")
			}
		}
		somebody(t, pod, istio)
		left, table := netlab.NftList(t, pod), open(t, pod)
		config := ruleset.Config{CaptureDNS: true, IPv4: true, IPv6: true}
		for _, step := range []struct {
			form ruleset.Form // 0: removed
			want string
		}{{ruleset.FormMarks, left}, {ruleset.FormSYN, others}, {ruleset.FormFull, others}, {ruleset.FormMarks, others}, {0, others}} {
			if step.form == 0 {
				remove(t, table)
			} else {
				want := build(t, config, step.form)
				apply(t, table, want)
				step.want += want.String()
			}
			if d := cmp.Diff(step.want, netlab.NftList(t, pod)); d != "" {
				t.Errorf("%s, form %s: -want +got:\n%s", backend, step.form, d)
			}
		}
		istio() // who comes back meets a Remove
		remove(t, table)
		if d := cmp.Diff(others, netlab.NftList(t, pod)); d != "" {
			t.Errorf("%s, removed where nothing of ours stands: -want +got:\n%s", backend, d)
		}
	}
}

const leftByIstio = ": left by istio-cni: it goes when the pod is released, or restarted"

// sorted is a text with its lines in order.
func sorted(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func remove(t *testing.T, table *Table) {
	t.Helper()
	if err := table.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// When the kernel refuses our rules istio-cni's stand.
func TestTakesOverAllOrNothing(t *testing.T) {
	netlab.Kernel(t)
	for _, backend := range istioBackends {
		pod := netlab.NewNS(t, backend)
		netlab.IstioCNI(t, pod, backend)
		table := open(t, pod)
		before, number := netlab.NftList(t, pod), generation(t, table)
		want := ordinary(t)
		want.Chains = append(want.Chains, ruleset.Chain{Name: "c", Type: "fancy", Hook: ruleset.Output, Policy: ruleset.PolicyAccept})
		if err := table.Apply(t.Context(), want); err == nil || err.Error() != "cannot change table inet fairlead: chain c: no such file or directory" {
			t.Errorf("%s: %v", backend, err)
		}
		if after := netlab.NftList(t, pod); after != before || generation(t, table) != number {
			t.Errorf("%s: changed to\n%s", backend, after)
		}
	}
}

// What somebody else's rule keeps in place keeps ours from nothing, and is named until it has gone.
func TestTakesOverWhatItCan(t *testing.T) {
	netlab.Kernel(t)
	pod := netlab.NewNS(t, "pod")
	netlab.IstioCNI(t, pod, "iptables-nft")
	feed(t, pod, "add rule ip nat OUTPUT tcp dport vmap { 80 : jump ISTIO_OUTPUT }")
	table, want := open(t, pod), ordinary(t)
	const named = "table ip nat" + leftByIstio
	left := named + "\ntable ip mangle" + leftByIstio + "\ntable ip raw" + leftByIstio +
		"\ntable ip6 mangle" + leftByIstio + "\ntable ip6 nat" + leftByIstio + "\ntable ip6 raw" + leftByIstio
	for range 2 {
		apply(t, table, want)
		if diff := check(t, table, want); len(diff) > 0 {
			t.Errorf("ours: %s", diff)
		}
		if d := cmp.Diff(sorted(left), sorted(foreign(t, table))); d != "" {
			t.Errorf("named, -want +got:\n%s", d)
		}
	}
	remove(t, table)
	stands(t, table, false)
	feed(t, pod, "flush chain ip nat OUTPUT")
	apply(t, table, want)
	if got := foreign(t, table); got != "" {
		t.Errorf("named:\n%s", got)
	}
}

// In a namespace that is full the look is given up, and ours are put in place.
func TestTakesOverInAFullNamespace(t *testing.T) {
	netlab.Kernel(t)
	pod := netlab.NewNS(t, "pod")
	netlab.IstioCNI(t, pod, "iptables-nft")
	feed(t, pod, strings.Repeat("insert rule ip nat OUTPUT tcp dport 1 accept\n", mostRules))
	table, want := open(t, pod), ordinary(t)
	apply(t, table, want)
	if diff := check(t, table, want); len(diff) > 0 {
		t.Errorf("ours: %s", diff)
	}
	remove(t, table)
	stands(t, table, false)
	if got := foreign(t, table); !strings.Contains(got, "table ip nat"+leftByIstio) {
		t.Errorf("named:\n%s", got)
	}
}

func BenchmarkApplyBesideIPTables(b *testing.B) {
	netlab.Kernel(b)
	n := netlab.NewNS(b, "bench")
	table, want := open(b, n), ordinary(b)
	for _, family := range []string{"iptables-nft", "ip6tables-nft"} {
		for _, t := range istioHosts {
			netlab.MustRun(b, n, family, "-t", t, "-A", "OUTPUT", "-p", "tcp", "-j", "ACCEPT")
		}
	}
	for b.Loop() {
		apply(b, table, want)
	}
}
