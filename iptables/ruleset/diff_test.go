package ruleset

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// clone copies deeply enough to tamper with.
func clone(rs Ruleset) Ruleset {
	c := Ruleset{Chains: slices.Clone(rs.Chains), Foreign: slices.Clone(rs.Foreign)}
	for i := range c.Chains {
		c.Chains[i].Rules = slices.Clone(c.Chains[i].Rules)
	}
	return c
}

func (rs Ruleset) chain(t *testing.T, name string) *Chain {
	t.Helper()
	i := slices.IndexFunc(rs.Chains, func(c Chain) bool { return c.Name == name })
	if i < 0 {
		t.Fatalf("no chain %s", name)
	}
	return &rs.Chains[i]
}

func TestCompareSaysWhatAnOperatorNeeds(t *testing.T) {
	want := mustBuild(t, Config{IPv4: true, Form: FormFull})
	const (
		probe    = "`ip daddr 169.254.7.127 meta l4proto tcp accept comment \"answers to the kubelet's probes\"`"
		marked   = "`meta l4proto tcp meta mark & 0x00000fff == 0x00000111 accept comment \"the app's answers to the proxy\"`"
		ownPod   = "`oif \"lo\" ip daddr != 127.0.0.1 meta l4proto tcp accept comment \"a call to the pod's own address\"`"
		outbound = "`ip daddr != 127.0.0.1 meta l4proto tcp meta mark & 0x00000fff != 0x00000539 redirect to :15001 comment \"outbound\"`"
	)
	tests := []struct {
		name   string
		tamper func(*Ruleset, *Chain) // the chain is nat-output
		want   string
	}{
		{"nothing", func(*Ruleset, *Chain) {}, ""},
		{"table gone", func(rs *Ruleset, _ *Chain) { rs.Chains = nil }, "everything in table inet fairlead missing"},
		{"chain gone", func(rs *Ruleset, _ *Chain) { rs.Chains = rs.Chains[1:] },
			"chain mangle-prerouting missing: `type filter hook prerouting priority mangle - 1; policy accept;`"},
		{"chain added", func(rs *Ruleset, _ *Chain) { rs.Chains = append(rs.Chains, Chain{Name: "mine\n\x1b[31m"}) },
			"chain mine??[31m added: `# on no hook`"},
		{"hook moved", func(_ *Ruleset, c *Chain) { c.Priority = 0 },
			"chain nat-output changed: want `type nat hook output priority -101; policy accept;`, got `type nat hook output priority filter; policy accept;`"},
		{"policy", func(_ *Ruleset, c *Chain) { c.Policy = "drop" },
			"chain nat-output changed: want `type nat hook output priority -101; policy accept;`, got `type nat hook output priority -101; policy drop;`"},
		{"flushed", func(_ *Ruleset, c *Chain) { c.Rules = nil },
			"chain nat-output rule 1 missing: " + probe + "\nchain nat-output rule 2 missing: " + marked +
				"\nchain nat-output rule 3 missing: " + ownPod + "\nchain nat-output rule 4 missing: " + outbound},
		{"rule gone", func(_ *Ruleset, c *Chain) { c.Rules = slices.Delete(c.Rules, 1, 2) },
			"chain nat-output rule 2 missing: " + marked},
		{"rule inserted", func(_ *Ruleset, c *Chain) {
			c.Rules = slices.Insert(c.Rules, 0, Rule{Matches: []Match{Foreign{"counter packets\n5"}}, Statement: Accept{}})
		}, "chain nat-output rule 1 added: `counter packets?5 accept`"},
		{"rule changed", func(_ *Ruleset, c *Chain) { c.Rules[3].Statement = Redirect{15006} },
			"chain nat-output rule 4 changed: want " + outbound + ", got " + strings.ReplaceAll(outbound, "15001", "15006")},
		{"rule moved", func(_ *Ruleset, c *Chain) {
			c.Rules = append([]Rule{c.Rules[3]}, c.Rules[:3]...)
		}, "chain nat-output rule 4 moved: want " + outbound + ", got `rule 1`"},
		{"rule twice", func(_ *Ruleset, c *Chain) { c.Rules = append(c.Rules, c.Rules[1]) },
			"chain nat-output rule 5 added: " + marked},
		{"comment changed", func(_ *Ruleset, c *Chain) { c.Rules[1].Comment = "" },
			"chain nat-output rule 2 missing: " + marked + "\nchain nat-output rule 2 added: `meta l4proto tcp meta mark & 0x00000fff == 0x00000111 accept`"},
		{"something else in the table", func(rs *Ruleset, _ *Chain) { rs.Foreign = []string{"flag dormant"} },
			"table inet fairlead added: `flag dormant`"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := clone(want)
			tt.tamper(&got, got.chain(t, "nat-output"))
			if d := cmp.Diff(tt.want, Compare(want, got).String()); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
		})
	}
}

func TestOrderOfChainsDoesNotCount(t *testing.T) {
	want := full(t)
	got := clone(want)
	slices.Reverse(got.Chains)
	if d := Compare(want, got); len(d) > 0 {
		t.Error(d)
	}
}

func TestManyDifferencesStayReadable(t *testing.T) {
	want := full(t)
	got := clone(want)
	c := got.chain(t, "nat-output")
	for range 1000 {
		c.Rules = append(c.Rules, Rule{Statement: Accept{}})
	}
	text := Compare(want, got).String()
	if n := strings.Count(text, "\n"); n != 20 || !strings.HasSuffix(text, "and 980 more") {
		t.Errorf("%d lines, the last of\n%s", n+1, text)
	}
}

// Whatever is done to a ruleset, and however often, Compare sees it; and what it counts as missing, moved or changed is
// enough to explain all of the wanted rules.
func TestCompareMissesNothing(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	want := full(t)
	for range 1000 {
		got := clone(want)
		for range 1 + r.IntN(3) {
			tamper(r, &got)
		}
		same := got.String() == want.String()
		if d := Compare(want, got); (len(d) == 0) != same {
			t.Fatalf("seed %d: equal text: %t, differences:\n%s\nin\n%s", seed, same, d, got)
		}
		if (got.Fingerprint() == want.Fingerprint()) != same {
			t.Fatalf("seed %d: equal text: %t, fingerprints %s and %s", seed, same, want.Fingerprint(), got.Fingerprint())
		}
	}
}

func tamper(r *rand.Rand, rs *Ruleset) {
	c := &rs.Chains[r.IntN(len(rs.Chains))]
	if len(c.Rules) == 0 {
		return
	}
	i, j := r.IntN(len(c.Rules)), r.IntN(len(c.Rules))
	switch r.IntN(6) {
	case 0:
		c.Rules = slices.Delete(c.Rules, i, i+1)
	case 1:
		c.Rules = slices.Insert(c.Rules, i, c.Rules[j])
	case 2:
		c.Rules[i], c.Rules[j] = c.Rules[j], c.Rules[i]
	case 3:
		c.Rules[i].Matches = c.Rules[i].Matches[:r.IntN(len(c.Rules[i].Matches)+1)]
	case 4:
		c.Rules[i].Statement = Accept{}
	case 5:
		c.Priority += int32(r.IntN(3))
	}
}

func TestFingerprintIsStable(t *testing.T) {
	// Written down once: agents of one release, on any machine, must agree.
	const want = "4bae30ac857392fa"
	if got := mustBuild(t, Config{IPv4: true, Form: FormMarks}).Fingerprint(); got != want {
		t.Errorf("fingerprint is %s, was %s: the text of the rules has changed", got, want)
	}
	seen := make(map[string]string)
	for name, config := range matrix() {
		for _, f := range []Form{FormSYN, FormFull} {
			fp := mustBuild(t, config.with(f)).Fingerprint()
			if other, ok := seen[fp]; ok {
				t.Errorf("%s %s and %s have the same fingerprint", name, f, other)
			}
			seen[fp] = name + " " + f.String()
		}
	}
}
