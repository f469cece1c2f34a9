package nft

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

func roundTrip(t testing.TB, r ruleset.Rule) ruleset.Rule {
	t.Helper()
	b, err := rulePayload("c", r)
	if err != nil {
		t.Fatal(err)
	}
	a, err := nlconn.ParseAttrs(b[nlconn.NetfilterHeaderSize:])
	if err != nil {
		t.Fatal(err)
	}
	got, err := decodeRule(a)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestEveryRuleSurvivesEncoding(t *testing.T) {
	for name, config := range matrix() {
		for _, form := range forms {
			for _, c := range build(t, config, form).Chains {
				for _, r := range c.Rules {
					if got := roundTrip(t, r); !got.Equal(r) {
						t.Errorf("%s, form %s: %s came back as %s", name, form, r, got)
					}
				}
			}
		}
	}
}

func TestRandomRulesSurviveEncoding(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 5000 {
		rule := randomRule(r)
		if got := roundTrip(t, rule); !got.Equal(rule) {
			t.Fatalf("seed %d: %s came back as %s", seed, rule, got)
		}
	}
}

func randomRule(r *rand.Rand) ruleset.Rule {
	yes := func() bool { return r.IntN(2) == 0 }
	side := func() ruleset.Side { return ruleset.Side(r.IntN(2)) }
	mark := func() (uint32, uint32) { return r.Uint32(), r.Uint32() }
	protocol := []ruleset.Protocol{ruleset.TCP, ruleset.UDP}[r.IntN(2)]
	pool := []func() ruleset.Match{
		func() ruleset.Match { return ruleset.InInterface{Name: "tap0", Not: yes()} },
		func() ruleset.Match { return ruleset.OutInterface{Name: "123456789012345", Not: yes()} },
		func() ruleset.Match {
			return ruleset.Addr{Side: side(), Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(r.Uint32())}), Not: yes()}
		},
		func() ruleset.Match {
			return ruleset.Addr{Side: side(), Addr: netip.AddrFrom16([16]byte{0xfd, 15: byte(r.Uint32())}), Not: yes()}
		},
		func() ruleset.Match {
			return ruleset.Port{Protocol: protocol, Side: side(), Port: uint16(r.Uint32()), Not: yes()}
		},
		func() ruleset.Match {
			value, mask := mark()
			return ruleset.PacketMark{Value: value, Mask: mask, Not: yes()}
		},
		func() ruleset.Match {
			value, mask := mark()
			return ruleset.ConnectionMark{Value: value, Mask: mask, Not: yes()}
		},
		func() ruleset.Match { return ruleset.Tracked{} },
	}
	if protocol == ruleset.TCP {
		pool = append(pool, func() ruleset.Match { return ruleset.FirstSYN{} }, func() ruleset.Match { return ruleset.Reset{} }, func() ruleset.Match { return ruleset.GoingOn{} })
	}
	var rule ruleset.Rule
	for range r.IntN(6) {
		rule.Matches = append(rule.Matches, pool[r.IntN(len(pool))]())
	}
	if !slices.ContainsFunc(rule.Matches, needsProtocol) { // else it is said already
		rule.Matches = append(rule.Matches, ruleset.L4{Protocol: protocol})
	}
	value, mask := mark()
	rule.Statement = []ruleset.Statement{
		ruleset.Accept{}, ruleset.Drop{}, ruleset.Redirect{Port: uint16(r.Uint32())},
		ruleset.SetConnectionMark{Value: value, Mask: mask}, ruleset.RestoreMark{}, ruleset.SetZone{Zone: uint16(r.Uint32())},
	}[r.IntN(6)]
	rule.Comment = []string{"", "c", "a longer comment, with 'quotes' and so on"}[r.IntN(3)]
	return rule
}

func needsProtocol(m ruleset.Match) bool {
	switch m.(type) {
	case ruleset.Port, ruleset.FirstSYN, ruleset.Reset, ruleset.GoingOn:
		return true
	}
	return false
}

// Userdata is whatever somebody wrote there; the library's reader panics at a length that is not true.
func TestComment(t *testing.T) {
	for want, b := range map[string][]byte{
		"plain":  userdata.AppendString(nil, userdata.TypeComment, "plain"),
		"second": userdata.AppendString([]byte{7, 1, 0}, userdata.TypeComment, "second"),
	} {
		if got := comment(b); got != want {
			t.Errorf("%v: %q, want %q", b, got, want)
		}
	}
	for _, b := range [][]byte{nil, {0}, {0, 200, 'x'}, {7, 0}, {7, 1}, {0, 0}, {0, 1, 0}} {
		if got := comment(b); got != "" {
			t.Errorf("%v: %q", b, got)
		}
	}
}

func TestMalformedAttributes(t *testing.T) {
	for _, b := range []string{"\x08\x00\x01\x00meta", "\x03\x00\x01\x00"} {
		list := nlconn.AppendAttr(nil, unix.NFTA_LIST_ELEM, []byte(b)[:4])
		if _, err := decodeRule(nlconn.Attrs{{Kind: unix.NFTA_RULE_EXPRESSIONS, Value: list}}); err == nil {
			t.Errorf("%q: no error", b)
		}
	}
}

func FuzzComment(f *testing.F) {
	f.Add(userdata.AppendString(nil, userdata.TypeComment, "plain"))
	f.Add([]byte{0, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		if c := comment(b); len(c) > 255 {
			t.Errorf("comment of %d bytes", len(c))
		}
	})
}
