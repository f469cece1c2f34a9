package ruleset

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// expected is the contract's section on redirection once more, as a program and for tracked packets: what a rule does only
// because of the rules before it shows here.
func expected(c Config, a addresses, p packet) string {
	own := p.mark&0xfff == 0x539
	toLoopback := p.dst.Addr() == a.loopback
	middle := p.protocol == TCP && !p.has("S")
	captured := func(port string) string {
		if c.Form == FormMarks || (c.Form == FormSYN && middle) {
			return "passes"
		}
		return port
	}
	if p.out == "" { // entering
		switch {
		case p.protocol != TCP:
			return "passes"
		case slices.Contains(c.VirtualInterfaces, p.in):
			return captured(":15001")
		case c.Ingress, p.src.Addr() == a.probe, toLoopback, p.dst.Port() == 15008, own:
			return "passes"
		}
		return captured(":15006")
	}
	switch {
	case p.protocol == TCP && p.dst.Addr() == a.probe:
		return "passes"
	case c.CaptureDNS && p.protocol == UDP && p.dst.Port() == 53 && p.out != "lo" && !own:
		return captured(":15053")
	case p.protocol != TCP:
		return "passes"
	case c.CaptureDNS && p.dst.Port() == 53 && !toLoopback && !own:
		return captured(":15053")
	case p.mark&0xfff == 0x111, p.out == "lo" && !toLoopback, toLoopback, own:
		return "passes"
	}
	return captured(":15001")
}

func TestRandomPacketsAgreeWithTheContract(t *testing.T) {
	const packets = 500 // for each of 108 rulesets
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for name, config := range matrix() {
		for _, form := range forms {
			c := config.with(form)
			tr := tracer{mustBuild(t, c)}
			for range packets {
				a := both["IPv4"]
				if !c.IPv4 || (c.IPv6 && random.IntN(2) == 0) {
					a = both["IPv6"]
				}
				p := randomPacket(random, a)
				if got, want := tr.first(p).verdict, expected(c, a, p); got != want {
					t.Fatalf("seed %d, %s, form %s: %+v: got %s, want %s, by\n%s", seed, name, form, p, got, want, tr.rules)
				}
			}
		}
	}
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func randomPacket(r *rand.Rand, a addresses) packet {
	where := []netip.Addr{a.pod, a.peer, a.loopback, a.loopback2, a.probe}
	ports := []uint16{53, 80, 4000, 15001, 15006, 15008, 15053}
	p := packet{
		protocol: pick(r, TCP, TCP, TCP, UDP),
		src:      to(pick(r, where...), pick(r, ports...)),
		dst:      to(pick(r, where...), pick(r, ports...)),
		flags:    pick(r, "S", "S", "A", "FA"),
		mark:     pick(r, 0, 0, ProxyMark, ConnMark, 0x5390000|ProxyMark, 0x539000, 0x538, 0xffff),
	}
	if r.IntN(2) == 0 {
		p.in = pick(r, "eth0", "lo", "k6t-eth0", "tap0", "net1")
	} else {
		p.out = pick(r, "eth0", "lo", "k6t-eth0", "tap0", "net1")
	}
	return p
}

// Without any one of the rules some packet would fare differently: none is there for show.
func TestNoRuleIsIdle(t *testing.T) {
	const packets = 20000
	seed := rand.Uint64()
	for _, form := range []Form{FormSYN, FormFull} {
		for _, ingress := range []bool{false, true} {
			c := Config{CaptureDNS: true, IPv4: true, IPv6: true, Form: form, Ingress: ingress, VirtualInterfaces: []string{"tap0"}}
			whole := mustBuild(t, c)
			for i, chain := range whole.Chains {
				for j, r := range chain.Rules {
					less := clone(whole)
					less.Chains[i].Rules = slices.Delete(less.Chains[i].Rules, j, j+1)
					random := rand.New(rand.NewPCG(seed, 0))
					if !slices.ContainsFunc(make([]struct{}, packets), func(struct{}) bool {
						p := randomPacket(random, pick(random, both["IPv4"], both["IPv6"]))
						p.notrack = random.IntN(2) == 0
						p.ctMark = pick(random, 0, ConnMark)
						p.flags = pick(random, p.flags, "R")
						return (tracer{whole}).first(p) != (tracer{less}).first(p)
					}) {
						t.Errorf("seed %d, form %s, ingress %t: chain %s does the same without rule %d: %s", seed, form, ingress, chain.Name, j+1, r)
					}
				}
			}
		}
	}
}
