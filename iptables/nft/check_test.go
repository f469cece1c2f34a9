package nft

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// handle finds the handle of a rule by its chain and its number there.
func handle(t *testing.T, n *netlab.NS, chain string, number int) string {
	t.Helper()
	listing := netlab.MustRun(t, n, "nft", "-a", "list", "chain", "inet", "fairlead", chain)
	handles := regexp.MustCompile(`# handle (\d+)\n`).FindAllStringSubmatch(listing, -1)
	return handles[number][1] // the first is the chain's
}

// Everything that somebody with the nft command can do to the table is seen, named, and undone by Apply.
func TestCheckSeesTampering(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "tampered")
	table := open(t, n)
	want := ordinary(t)
	nft := func(words ...string) func(*testing.T) {
		return func(t *testing.T) { netlab.MustRun(t, n, "nft", words...) }
	}
	const ours = "inet fairlead"
	tests := []struct {
		name   string
		tamper func(*testing.T)
		want   string // part of the difference; none if it is empty
	}{
		{"nothing", func(*testing.T) {}, ""},
		{"flush ruleset", nft("flush ruleset"), "everything in table inet fairlead missing"},
		{"delete table", nft("delete table " + ours), "everything in table inet fairlead missing"},
		{"flush table", nft("flush table " + ours), "chain raw-prerouting rule 1 missing"},
		{"flush chain", nft("flush chain " + ours + " nat-output"), "chain nat-output rule 6 missing"},
		{"delete chain", func(t *testing.T) {
			feed(t, n, "flush chain inet fairlead guard-output\ndelete chain inet fairlead guard-output\n")
		}, "chain guard-output missing: `type filter hook output priority filter - 1; policy accept;`"},
		{"delete rule", func(t *testing.T) {
			netlab.MustRun(t, n, "nft", "delete rule", ours, "nat-prerouting handle", handle(t, n, "nat-prerouting", 1))
		}, "chain nat-prerouting rule 1 missing: `iifname \"tap0\" meta l4proto tcp redirect to :15001"},
		{"insert rule", nft("insert rule " + ours + " nat-output tcp dport 443 accept"),
			"chain nat-output rule 1 added: `tcp dport 443 accept`"},
		{"append rule", nft("add rule " + ours + " nat-output counter"), "chain nat-output rule 11 added: `[counter]`"},
		{"reorder", func(t *testing.T) {
			rules := want.Chains[4].Rules // nat-prerouting
			netlab.MustRun(t, n, "nft", "delete rule", ours, "nat-prerouting handle", handle(t, n, "nat-prerouting", 1))
			netlab.MustRun(t, n, "nft", "add rule", ours, "nat-prerouting", rules[0].String())
		}, "chain nat-prerouting rule 1 moved: want `iifname \"tap0\" meta l4proto tcp redirect to :15001 comment \"from behind a virtual interface: outbound\"`, got `rule 5`"},
		{"other mark", func(t *testing.T) {
			changed := strings.Replace(want.Chains[5].Rules[9].String(), "0x00000539", "0x00000538", 1)
			netlab.MustRun(t, n, "nft", "replace rule", ours, "nat-output handle", handle(t, n, "nat-output", 10), changed)
		}, "meta mark & 0x00000fff != 0x00000538 redirect to :15001"},
		{"other comment", func(t *testing.T) {
			changed := strings.Replace(want.Chains[5].Rules[9].String(), `"outbound"`, `"mine"`, 1)
			netlab.MustRun(t, n, "nft", "replace rule", ours, "nat-output handle", handle(t, n, "nat-output", 10), changed)
		}, `comment "mine"`},
		{"chain without a hook", nft("add chain " + ours + " mine"), "chain mine added: `# on no hook`"},
		{"chain with a hook", nft("add chain " + ours + " mine { type filter hook input priority 0 ; policy drop ; }"),
			"chain mine added: `type filter hook input priority filter; policy drop;`"},
		{"chain swapped for a set", func(t *testing.T) {
			feed(t, n, `flush chain inet fairlead guard-output
				delete chain inet fairlead guard-output
				add set inet fairlead mine { type ipv4_addr; }`)
		}, "chain guard-output missing"},
		{"set", nft("add set " + ours + " mine { type ipv4_addr ; }"), "table inet fairlead added: `set mine`"},
		{"set that a rule brings", nft("add rule " + ours + " nat-output ip daddr { 10.0.0.1, 10.0.0.2 } accept"),
			"chain nat-output rule 11 added: `[meta, cmp, payload, lookup, accept]`"},
		{"object", nft("add counter " + ours + " mine"), "table inet fairlead added: `object mine`"},
		{"dormant", nft("add table " + ours + " { flags dormant ; }"), "table inet fairlead added: `flag dormant`"},
		{"policy", nft("add chain " + ours + " guard-output { policy drop ; }"),
			"chain guard-output changed: want `type filter hook output priority filter - 1; policy accept;`, got `type filter hook output priority filter - 1; policy drop;`"},
		{"priority", func(t *testing.T) {
			feed(t, n, "delete table inet fairlead\n"+strings.Replace(want.String(), "raw - 1", "raw + 1", 1))
		}, "chain raw-prerouting changed: want `type filter hook prerouting priority raw - 1; policy accept;`, got `type filter hook prerouting priority raw + 1; policy accept;`"},
		{"hook", func(t *testing.T) {
			feed(t, n, "delete table inet fairlead\n"+strings.Replace(want.String(), "hook prerouting priority raw", "hook input priority raw", 1))
		}, "chain raw-prerouting changed: want `type filter hook prerouting priority raw - 1; policy accept;`, got `type filter hook input priority raw - 1; policy accept;`"},
		{"chain type", func(t *testing.T) {
			feed(t, n, "delete table inet fairlead\n"+strings.Replace(want.String(), "type route", "type filter", 1))
		}, "chain mangle-output changed"},
		{"table of another family", nft("add table ip fairlead"), ""},
		{"other tables", func(t *testing.T) {
			feed(t, n, `add table inet other
				add chain inet other nat-output { type nat hook output priority 0; policy accept; }
				add rule inet other nat-output accept
				add set inet other mine { type ipv4_addr; }`)
		}, ""},
		{"the app's iptables", func(t *testing.T) {
			netlab.MustRun(t, n, "iptables", "-t", "nat", "-I", "OUTPUT", "-j", "ACCEPT")
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			netlab.MustRun(t, n, "nft", "flush", "ruleset")
			apply(t, table, want)
			tt.tamper(t)
			diff := check(t, table, want)
			if (tt.want == "") != (len(diff) == 0) || !strings.Contains(diff.String(), tt.want) {
				t.Errorf("got\n%s\nwant\n%s", diff, tt.want)
			}
			apply(t, table, want)
			if diff := check(t, table, want); len(diff) > 0 {
				t.Errorf("after Apply:\n%s", diff)
			}
			if listing := netlab.MustRun(t, n, "nft", "list table inet fairlead"); listing != want.String() {
				t.Errorf("after Apply nft lists:\n%s", listing)
			}
		})
	}
}

// What is decoded wrongly is not seen: each kind of condition with something near to it that it must not be taken for.
func TestNearMissesAreForeign(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "near")
	table := open(t, n)
	want := ruleset.Ruleset{Chains: []ruleset.Chain{{
		Name: "c", Type: ruleset.NAT, Hook: ruleset.Output, Priority: -101, Policy: ruleset.PolicyAccept}}}
	for rule, text := range map[string]string{
		`iifname "tap*" accept`:                            `[meta, cmp, accept]`,
		`iifname lo accept`:                                `[meta, cmp, accept]`,
		`oifname != lo accept`:                             `[meta, cmp, accept]`,
		`oif 2 accept`:                                     `[meta, cmp, accept]`,
		`iif != lo accept`:                                 `iif != "lo" accept`,
		`oifname > "a" accept`:                             `[meta, cmp, accept]`,
		`meta nfproto ipv4 accept`:                         `[meta, cmp, accept]`,
		`ip daddr 10.0.0.0/31 accept`:                      `[meta, cmp, payload, bitwise, cmp, accept]`,
		`ip daddr 10.0.0.0/8 accept`:                       `[meta, cmp, payload, cmp, accept]`,
		`ip protocol tcp accept`:                           `[meta, cmp, payload, cmp, accept]`,
		`ip daddr > 10.0.0.1 accept`:                       `[meta, cmp, payload, cmp, accept]`,
		`tcp dport > 1 accept`:                             `meta l4proto tcp [payload, cmp, accept]`,
		`tcp sequence 5 accept`:                            `meta l4proto tcp [payload, cmp, accept]`,
		`tcp flags syn accept`:                             `meta l4proto tcp [payload, bitwise, cmp, accept]`,
		`tcp flags syn / fin,syn accept`:                   `meta l4proto tcp [payload, bitwise, cmp, accept]`,
		`tcp flags rst / rst,syn accept`:                   `meta l4proto tcp [payload, bitwise, cmp, accept]`,
		`tcp flags ! rst accept`:                           `meta l4proto tcp [payload, bitwise, cmp, accept]`,
		`tcp flags syn / fin,syn,rst,ack,psh accept`:       `meta l4proto tcp [payload, bitwise, cmp, accept]`,
		`meta mark 0x539 accept`:                           `[meta, cmp, accept]`,
		`meta mark & 0xfff > 0x539 accept`:                 `[meta, bitwise, byteorder, cmp, accept]`,
		`meta mark | 0x1 == 0x539 accept`:                  `[meta, bitwise, cmp, accept]`,
		`meta mark set 0x539`:                              `[immediate, meta]`,
		`meta mark set meta mark`:                          `[meta, meta]`,
		`ct mark 0x539 accept`:                             `[ct, cmp, accept]`,
		`ct mark set 0x111`:                                `[immediate, ct]`,
		`ct state untracked accept`:                        `[ct, bitwise, cmp, accept]`,
		`ct state != invalid accept`:                       `[ct, cmp, accept]`,
		`ct direction reply accept`:                        `[ct, cmp, accept]`,
		`tcp dport != 1-2 accept`:                          `meta l4proto tcp [payload, range, accept]`,
		`meta l4proto tcp ct original proto-dst 80 accept`: `meta l4proto tcp [ct of one direction, cmp, accept]`,
		`meta l4proto tcp redirect`:                        `meta l4proto tcp [redir]`,
		`meta l4proto tcp redirect to :1-2`:                `meta l4proto tcp [immediate, immediate, redir]`,
		`meta l4proto tcp redirect to :15001 random`:       `meta l4proto tcp [immediate, redir]`,
		`meta l4proto tcp dnat ip to 10.0.0.1:15001`:       `meta l4proto tcp [immediate, immediate, nat]`,
		`return`:                     `[return]`,
		`limit rate 1/second accept`: `[limit, accept]`,
		`accept comment "c"`:         `accept comment "c"`,
		`udp sport 53 drop`:          `udp sport 53 drop`,
		`ip6 saddr != fd00::1 tcp dport != 80 accept`:                      `ip6 saddr != fd00::1 tcp dport != 80 accept`,
		`ct mark & 0xff != 0x1 meta mark set ct mark`:                      `ct mark & 0x000000ff != 0x00000001 meta mark set ct mark`,
		`meta l4proto sctp accept`:                                         `meta l4proto 132 accept`,
		`tcp dport 80 tcp sport 90 accept`:                                 `meta l4proto tcp [payload, cmp, accept]`,
		`meta l4proto { tcp, udp } accept`:                                 `[meta, lookup, accept]`,
		`tcp dport 80 counter accept`:                                      `tcp dport 80 [counter, accept]`,
		`socket mark 5 accept`:                                             `[socket, cmp, accept]`,
		`ct mark set ct mark & 0xfffff000 | 0x222`:                         `ct mark set ct mark & 0xfffff222 | 0x00000222`,
		`tcp flags rst tcp flags syn / fin,syn,rst,ack drop comment "two"`: `tcp flags rst tcp flags syn / fin,syn,rst,ack drop comment "two"`,
	} {
		apply(t, table, want)
		netlab.MustRun(t, n, "nft", "add", "rule", "inet", "fairlead", "c", rule)
		got := check(t, table, want).String()
		if wanted := "chain c rule 1 added: `" + text + "`"; !strings.Contains(got, wanted) {
			t.Errorf("%s: got\n%s\nwant\n%s", rule, got, wanted)
		}
	}
}

// A table that somebody has filled costs a bounded look, and the socket is good for more afterwards.
func TestCheckOfATableFilledUp(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "full")
	table := open(t, n)
	want := ordinary(t)
	for _, tt := range []struct {
		name, line, want string
		count            int
	}{
		{"rules", "add rule inet fairlead nat-output tcp dport %d accept", "too many rules to look at all of them", mostRules},
		{"chains", "add chain inet fairlead c%d", "too many chains to look at all of them", mostChains},
		{"sets", "add set inet fairlead s%d { type ipv4_addr; }", "too many sets to look at all of them", mostForeign + 1},
		{"chains elsewhere, and one here", "add table inet t%[1]d; add chain inet t%[1]d c; add chain inet fairlead mine",
			"too many chains to look at all of them", mostChains},
	} {
		apply(t, table, want)
		var commands strings.Builder
		for i := range tt.count {
			fmt.Fprintf(&commands, tt.line+"\n", i+1)
		}
		feed(t, n, commands.String())
		if got := check(t, table, want).String(); !strings.Contains(got, tt.want) || strings.Count(got, "\n") > 20 {
			t.Errorf("%s: got\n%s", tt.name, got)
		}
		if err := table.Apply(context.Background(), want); err != nil {
			t.Fatal(err)
		}
		if got := check(t, table, want); len(got) > 0 {
			t.Errorf("%s: after Apply:\n%s", tt.name, got)
		}
	}
}

// Somebody who changes the ruleset in a loop does not keep us reading, and does not look innocent.
func TestCheckOfATableInMotion(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "motion")
	table, busy := open(t, n), open(t, n)
	want := ordinary(t)
	apply(t, table, want)
	stop, stopped := make(chan struct{}), make(chan error)
	go func() {
		other := named(unix.NFTA_TABLE_NAME, "other")
		steps := []step{{message: request(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, other)}, {message: request(unix.NFT_MSG_DELTABLE, 0, other)}}
		for {
			if err := busy.run(context.Background(), steps); err != nil {
				stopped <- err
				return
			}
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
		}
	}()
	netlab.Eventually(t, func() error {
		if diff := check(t, table, want); diff.String() != "table inet fairlead in motion" {
			return fmt.Errorf("got %q", diff)
		}
		return nil
	})
	netlab.Eventually(t, func() error {
		if found := foreign(t, table); found != "ruleset: in motion: somebody changed it each time it was read" {
			return fmt.Errorf("got %q", found)
		}
		return nil
	})
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if diff := check(t, table, want); len(diff) > 0 {
		t.Errorf("when it is quiet again:\n%s", diff)
	}
}

// Every state from every state: the table ends as wanted, whatever it was.
func TestEveryStateFromEveryState(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "states")
	table := open(t, n)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	var states []ruleset.Ruleset
	for _, config := range matrix() {
		for _, form := range forms {
			states = append(states, build(t, config, form))
		}
	}
	var now ruleset.Ruleset // none
	for range 150 {
		next := states[random.IntN(len(states))]
		switch random.IntN(5) {
		case 0:
			if err := table.Remove(context.Background()); err != nil {
				t.Fatal(err)
			}
			now = ruleset.Ruleset{}
		case 1:
			feed(t, n, "add table inet fairlead { flags dormant; }\nadd chain inet fairlead c\nadd chain inet fairlead d\nadd rule inet fairlead c jump d\n")
			now = ruleset.Ruleset{Foreign: []string{"tampered with"}}
		default:
			apply(t, table, next)
			now = next
		}
		same := now.Fingerprint() == next.Fingerprint()
		if diff := check(t, table, next); (len(diff) == 0) != same {
			t.Fatalf("seed %d: same %t, difference\n%s", seed, same, diff)
		}
	}
}
