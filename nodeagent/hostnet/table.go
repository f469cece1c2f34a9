package hostnet

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// Priorities of our chains.
const (
	// Behind connection tracking (-200), before destination NAT (-100): a service's
	// address is not a pod's. One before mangle's, as in pods.
	outputPriority = -151
	// As early as the kernel lets a source NAT be, and earlier than anybody's.
	natPriority   = -190
	guardPriority = -500
)

// A kind of address has a set of its own, and a probe source.
type family struct {
	set      string
	number   byte // NFPROTO_…
	datatype uint32
	length   uint32
	source   uint32 // where in the header, and the destination
	dest     uint32
}

var families = []family{
	{set: "probed4", number: unix.NFPROTO_IPV4, datatype: 7, length: 4, source: 12, dest: 16},
	{set: "probed6", number: unix.NFPROTO_IPV6, datatype: 8, length: 16, source: 8, dest: 24},
}

func familyOf(a netip.Addr) family {
	if a.Is4() {
		return families[0]
	}
	return families[1]
}

// A chain stands on a hook, with its rules.
type chain struct {
	name, kind string
	hook       uint32
	priority   int32
	rules      []rule
}

type rule struct {
	comment string
	exprs   []expr.Any
}

// spoofed is where guards jump to. It has no hook.
const spoofed = "spoofed"

// guardPrefix begins the names of the chains at pods' interfaces.
const guardPrefix = "from-"

// chains are those of the table that do not depend on what pods there are.
func (c Config) chains(k Kubelet) []chain {
	output := chain{name: "output", kind: "filter", hook: unix.NF_INET_LOCAL_OUT, priority: outputPriority}
	nat := chain{name: "postrouting", kind: "nat", hook: unix.NF_INET_POST_ROUTING, priority: natPriority}
	drop := chain{name: spoofed}
	for _, f := range families {
		source := c.IPv4
		if f.number == unix.NFPROTO_IPV6 {
			source = c.IPv6
		}
		output.rules = append(output.rules, rule{"health probes: by " + string(k.Mode), slices.Concat(
			newConnection(), equal(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, []byte{unix.IPPROTO_TCP}),
			f.toProbed(), k.match(), mark(c.Mark),
		)})
		nat.rules = append(nat.rules, rule{"health probes: their source", slices.Concat(
			f.toProbed(), marked(c.Mark),
			[]expr.Any{
				&expr.Immediate{Register: 1, Data: source.AsSlice()},
				&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.number), RegAddrMin: 1, RegAddrMax: 1},
			},
		)})
		drop.rules = append(drop.rules, rule{"the probes' source is the host's alone", slices.Concat(
			f.itself(), equal(load(f.source, f.length), source.AsSlice()),
			[]expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}},
		)})
	}
	arriving := chain{name: "prerouting", kind: "filter", hook: unix.NF_INET_PRE_ROUTING, priority: guardPriority,
		rules: []rule{{"the probes' source arrives from nowhere", toSpoofed()}}}
	return []chain{drop, arriving, output, nat}
}

func toSpoofed() []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: spoofed}}
}

// newConnection holds for the packets that a source NAT is decided on.
func newConnection() []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATE, Register: 1},
		bitwise(expr.CtStateBitNEW, 0),
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: native(0)},
	}
}

// itself holds for packets of the family.
func (f family) itself() []expr.Any {
	return equal(&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: 1}, []byte{f.number})
}

// toProbed holds for packets to a captured pod.
func (f family) toProbed() []expr.Any {
	return append(f.itself(), load(f.dest, f.length), &expr.Lookup{SourceRegister: 1, SetName: f.set})
}

// match holds for the kubelet's sockets.
func (k Kubelet) match() []expr.Any {
	switch k.Mode {
	case ByCgroup:
		return equal(&expr.Socket{Key: expr.SocketKeyCgroupv2, Level: k.level, Register: 1}, binary.NativeEndian.AppendUint64(nil, k.id))
	case ByClass:
		return equal(&expr.Meta{Key: expr.MetaKeyCGROUP, Register: 1}, native(k.class))
	}
	return nil
}

func mark(bit uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, bitwise(^bit, bit),
		&expr.Ct{Key: expr.CtKeyMARK, Register: 1, SourceRegister: true},
	}
}

func marked(bit uint32) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeyMARK, Register: 1}, bitwise(bit, 0),
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: native(bit)},
	}
}

func load(offset, length uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}
}

func equal(what expr.Any, value []byte) []expr.Any {
	return []expr.Any{what, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value}}
}

func bitwise(mask, xor uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: native(mask), Xor: native(xor)}
}

func native(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// A table is what ours holds, or is to hold.
type table struct {
	// lines are its chains, their rules in order, and its sets, each as a line.
	lines []string
	// addresses are the sets' elements and guards the interfaces that have one, with the
	// comments that stand there: the UIDs.
	addresses map[netip.Addr]string
	guards    map[string]string
	// idle are interfaces that have gone, and left their guards. Read only.
	idle []string
}

// lines are the wanted table's.
func (c Config) lines(k Kubelet) ([]string, error) {
	var lines []string
	for _, f := range families {
		lines = append(lines, setLine(f.set, f.datatype, f.length, setSize, 0))
	}
	for _, ch := range c.chains(k) {
		lines = append(lines, ch.line())
		for _, r := range ch.rules {
			data, err := marshal(r.exprs)
			if err != nil {
				return nil, err
			}
			line, err := ruleLine(ch.name, data, r.comment)
			if err != nil {
				return nil, err
			}
			lines = append(lines, line)
		}
	}
	slices.SortStableFunc(lines, byPlace)
	return lines, nil
}

// setSize is the most addresses of a family. A set without a size is resized by the kernel
// when it likes, and what it lists meanwhile may lack elements, without a word.
const setSize = 4096

func setLine(name string, datatype, length, size, flags uint32) string {
	return fmt.Sprintf("set %s: type %d of %d bytes, size %d, flags %#x", name, datatype, length, size, flags)
}

func (c chain) line() string {
	if c.kind == "" {
		return fmt.Sprintf("chain %s: on no hook", c.name)
	}
	return fmt.Sprintf("chain %s: type %s hook %d priority %d", c.name, c.kind, c.hook, c.priority)
}

// byPlace orders lines by what they are about, and keeps a chain's rules in their order.
func byPlace(a, b string) int {
	placeA, _, _ := strings.Cut(a, ":")
	placeB, _, _ := strings.Cut(b, ":")
	return strings.Compare(placeA, placeB)
}

// differences are what distinguishes a table from the wanted one.
func (t table) differences(want table) []string {
	var all []string
	add := func(what string, lines []string) {
		for _, line := range lines {
			all = append(all, what+" "+line)
		}
	}
	add("missing", lacks(t.lines, want.lines))
	add("not ours", lacks(want.lines, t.lines))
	if len(all) == 0 && !slices.Equal(t.lines, want.lines) {
		all = append(all, "the rules' order")
	}
	if !maps.Equal(t.addresses, want.addresses) || !maps.Equal(t.guards, want.guards) {
		add("missing", lacks(t.members(), want.members()))
		add("not wanted", lacks(want.members(), t.members()))
	}
	return all
}

// members are the addresses and guards, each as a line.
func (t table) members() []string {
	var all []string
	for _, a := range slices.SortedFunc(maps.Keys(t.addresses), netip.Addr.Compare) {
		all = append(all, fmt.Sprintf("address %s of pod %s", a, t.addresses[a]))
	}
	for _, link := range slices.Sorted(maps.Keys(t.guards)) {
		all = append(all, fmt.Sprintf("guard at %s of pod %s", link, t.guards[link]))
	}
	return all
}

// lacks are the lines of want that have does not have.
func lacks(have, want []string) []string {
	there := map[string]int{}
	for _, line := range have {
		there[line]++
	}
	var all []string
	for _, line := range want {
		if there[line]--; there[line] < 0 {
			all = append(all, line)
		}
	}
	return all
}

// String is the table for people.
func (t table) String() string {
	if t.lines == nil {
		return "no table"
	}
	return "table inet " + ruleset.Table + "\n" + strings.Join(slices.Concat(t.lines, t.members()), "\n") + "\n"
}
