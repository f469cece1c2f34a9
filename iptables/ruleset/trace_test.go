package ruleset

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// packet is a packet on its way through a hook, with what the kernel knows about it there.
type packet struct {
	protocol Protocol
	src, dst netip.AddrPort
	in, out  string
	flags    string // TCP flags by letter: S, A, R, F
	mark     uint32

	notrack bool   // a NOTRACK rule of the app's has taken it out of connection tracking
	known   bool   // conntrack has an entry: nat rules are not asked again
	ctMark  uint32 // the mark of that entry
}

// outcome is what the ruleset made of a packet.
type outcome struct {
	verdict string // "passes", "dropped" or ":port"
	mark    uint32
	ctMark  uint32
	zone    uint16
}

func (o outcome) String() string { return o.verdict }

// tracer follows packets through a ruleset, as the kernel would: chains by priority, conntrack in between, nat for the
// first packet of a tracked connection only.
type tracer struct{ rules Ruleset }

func (t tracer) output(p packet) outcome     { return t.hook(Output, p) }
func (t tracer) prerouting(p packet) outcome { return t.hook(Prerouting, p) }

func (t tracer) hook(h Hook, p packet) outcome {
	chains := slices.DeleteFunc(slices.Clone(t.rules.Chains), func(c Chain) bool { return c.Hook != h })
	slices.SortStableFunc(chains, func(a, b Chain) int { return cmp.Compare(a.Priority, b.Priority) })
	o := outcome{verdict: "passes", mark: p.mark, ctMark: p.ctMark}
	for _, c := range chains {
		if c.Type == NAT && (p.notrack || p.known || p.unplaceable()) {
			continue
		}
		for _, r := range c.Rules {
			if !p.matches(r, o) {
				continue
			}
			if ends := o.apply(r.Statement, p); ends {
				break
			}
		}
		if o.verdict == "dropped" {
			break
		}
	}
	return o
}

// unplaceable: conntrack begins no entry at a reset or a handshake's answer; such a packet's state is invalid.
func (p packet) unplaceable() bool {
	return p.protocol == TCP && (p.has("R") || (p.has("S") && p.has("A")))
}

func (o *outcome) apply(s Statement, p packet) (ends bool) {
	switch s := s.(type) {
	case Accept:
		return true
	case Drop:
		o.verdict = "dropped"
		return true
	case Redirect:
		o.verdict = fmt.Sprintf(":%d", s.Port)
		return true
	case SetConnectionMark:
		if !p.notrack {
			o.ctMark = o.ctMark&^s.Mask | s.Value
		}
	case RestoreMark:
		o.mark = o.ctMark
	case SetZone:
		o.zone = s.Zone
	default:
		panic(fmt.Sprintf("tracer does not know %T", s))
	}
	return false
}

func (p packet) has(flag string) bool {
	return p.protocol == TCP && slices.Contains([]byte(p.flags), flag[0])
}

func (p packet) matches(r Rule, o outcome) bool {
	for _, m := range r.Matches {
		if !p.holds(m, o) {
			return false
		}
	}
	return true
}

func (p packet) holds(match Match, o outcome) bool {
	switch m := match.(type) {
	case InInterface:
		return (p.in == m.Name) != m.Not
	case OutInterface:
		return (p.out == m.Name) != m.Not
	case Addr:
		a := p.src.Addr()
		if m.Side == Destination {
			a = p.dst.Addr()
		}
		return a.Is4() == m.Addr.Is4() && (a == m.Addr) != m.Not
	case L4:
		return p.protocol == m.Protocol
	case Port:
		port := p.src.Port()
		if m.Side == Destination {
			port = p.dst.Port()
		}
		return p.protocol == m.Protocol && (port == m.Port) != m.Not
	case PacketMark:
		return (o.mark&m.Mask == m.Value) != m.Not
	case ConnectionMark:
		return !p.notrack && (o.ctMark&m.Mask == m.Value) != m.Not
	case FirstSYN:
		return p.has("S") && !p.has("A") && !p.has("R") && !p.has("F")
	case Reset:
		return p.has("R")
	case GoingOn:
		return p.has("R") || p.has("A")
	case Tracked:
		return !p.notrack
	}
	panic(fmt.Sprintf("tracer does not know %T", match))
}
