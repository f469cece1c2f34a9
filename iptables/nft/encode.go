package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// A register of 16 bytes, the one that the nft command uses.
const register = unix.NFT_REG_1

// TCP's flags, and where in a TCP header they stand.
const (
	tcpFlagsOffset = 13
	tcpFIN         = 0x01
	tcpSYN         = 0x02
	tcpRST         = 0x04
	tcpACK         = 0x10
)

// protoSpecified is the kernel's NF_NAT_RANGE_PROTO_SPECIFIED. It is set by the kernel anyhow.
const protoSpecified = 0x2

// place is where in a packet something stands.
type place struct {
	base           expr.PayloadBase
	offset, length uint32
}

var places = struct{ port, address4, address6 map[ruleset.Side]place }{
	port: map[ruleset.Side]place{
		ruleset.Source:      {expr.PayloadBaseTransportHeader, 0, 2},
		ruleset.Destination: {expr.PayloadBaseTransportHeader, 2, 2},
	},
	address4: map[ruleset.Side]place{
		ruleset.Source:      {expr.PayloadBaseNetworkHeader, 12, 4},
		ruleset.Destination: {expr.PayloadBaseNetworkHeader, 16, 4},
	},
	address6: map[ruleset.Side]place{
		ruleset.Source:      {expr.PayloadBaseNetworkHeader, 8, 16},
		ruleset.Destination: {expr.PayloadBaseNetworkHeader, 24, 16},
	},
}

var tcpFlags = place{expr.PayloadBaseTransportHeader, tcpFlagsOffset, 1}

// encoder writes one rule's expressions, the same ones and in the same order as the nft command does for the same text.
type encoder struct {
	exprs    []expr.Any
	protocol ruleset.Protocol // that the expressions so far make sure of
}

func expressions(r ruleset.Rule) ([]expr.Any, error) {
	var e encoder
	for _, m := range r.Matches {
		if err := e.match(m); err != nil {
			return nil, err
		}
	}
	if err := e.statement(r.Statement); err != nil {
		return nil, err
	}
	return e.exprs, nil
}

func (e *encoder) add(exprs ...expr.Any) { e.exprs = append(e.exprs, exprs...) }

func (e *encoder) match(match ruleset.Match) error {
	switch m := match.(type) {
	case ruleset.InInterface:
		e.device(expr.MetaKeyIIF, expr.MetaKeyIIFNAME, m.Name, m.Not)
	case ruleset.OutInterface:
		e.device(expr.MetaKeyOIF, expr.MetaKeyOIFNAME, m.Name, m.Not)
	case ruleset.Addr:
		family, at := byte(unix.NFPROTO_IPV4), places.address4
		if m.Addr.Is6() {
			family, at = unix.NFPROTO_IPV6, places.address6
		}
		e.add(meta(expr.MetaKeyNFPROTO), compare(false, []byte{family}))
		e.add(load(at[m.Side]), compare(m.Not, addressBytes(m.Addr)))
	case ruleset.L4:
		e.transport(m.Protocol)
	case ruleset.Port:
		e.transport(m.Protocol)
		e.add(load(places.port[m.Side]), compare(m.Not, binary.BigEndian.AppendUint16(nil, m.Port)))
	case ruleset.PacketMark:
		e.add(meta(expr.MetaKeyMARK), and(m.Mask), compare(m.Not, native(m.Value)))
	case ruleset.ConnectionMark:
		e.add(conntrack(expr.CtKeyMARK), and(m.Mask), compare(m.Not, native(m.Value)))
	case ruleset.FirstSYN:
		e.transport(ruleset.TCP)
		e.add(load(tcpFlags), flags(tcpFIN|tcpSYN|tcpRST|tcpACK), compare(false, []byte{tcpSYN}))
	case ruleset.Reset:
		e.transport(ruleset.TCP)
		e.add(load(tcpFlags), flags(tcpRST), compare(true, []byte{0}))
	case ruleset.GoingOn:
		e.transport(ruleset.TCP)
		e.add(load(tcpFlags), flags(tcpRST|tcpACK), compare(true, []byte{0}))
	case ruleset.Tracked:
		e.add(conntrack(expr.CtKeySTATE), compare(true, native(expr.CtStateBitUNTRACKED)))
	default:
		return fmt.Errorf("cannot write condition %#v", match)
	}
	return nil
}

// device compares an interface's name, or the number of the one whose name does not matter.
func (e *encoder) device(byNumber, byName expr.MetaKey, name string, not bool) {
	if name == ruleset.Loopback {
		e.add(meta(byNumber), compare(not, native(ruleset.LoopbackIndex)))
		return
	}
	e.add(meta(byName), compare(not, interfaceName(name)))
}

// transport makes sure of the protocol: the kernel reads a port or flags out of whatever follows the IP header.
func (e *encoder) transport(p ruleset.Protocol) {
	if e.protocol != p {
		e.add(meta(expr.MetaKeyL4PROTO), compare(false, []byte{byte(p)}))
		e.protocol = p
	}
}

func (e *encoder) statement(statement ruleset.Statement) error {
	switch s := statement.(type) {
	case ruleset.Accept:
		e.add(&expr.Verdict{Kind: expr.VerdictAccept})
	case ruleset.Drop:
		e.add(&expr.Verdict{Kind: expr.VerdictDrop})
	case ruleset.Redirect:
		e.add(&expr.Immediate{Register: register, Data: binary.BigEndian.AppendUint16(nil, s.Port)},
			&expr.Redir{RegisterProtoMin: register, RegisterProtoMax: register, Flags: protoSpecified})
	case ruleset.SetConnectionMark:
		e.add(conntrack(expr.CtKeyMARK), bitwise(native(^s.Mask), native(s.Value)),
			&expr.Ct{Key: expr.CtKeyMARK, Register: register, SourceRegister: true})
	case ruleset.RestoreMark:
		e.add(conntrack(expr.CtKeyMARK), &expr.Meta{Key: expr.MetaKeyMARK, Register: register, SourceRegister: true})
	case ruleset.SetZone:
		e.add(&expr.Immediate{Register: register, Data: binary.NativeEndian.AppendUint16(nil, s.Zone)},
			&expr.Ct{Key: expr.CtKeyZONE, Register: register, SourceRegister: true})
	default:
		return fmt.Errorf("cannot write statement %#v", statement)
	}
	return nil
}

func meta(key expr.MetaKey) *expr.Meta  { return &expr.Meta{Key: key, Register: register} }
func conntrack(key expr.CtKey) *expr.Ct { return &expr.Ct{Key: key, Register: register} }
func and(mask uint32) *expr.Bitwise     { return bitwise(native(mask), make([]byte, 4)) }
func flags(mask byte) *expr.Bitwise     { return bitwise([]byte{mask}, []byte{0}) }
func native(n uint32) []byte            { return binary.NativeEndian.AppendUint32(nil, n) }
func addressBytes(a netip.Addr) []byte  { return a.AsSlice() }
func interfaceName(name string) []byte {
	return append([]byte(name), make([]byte, unix.IFNAMSIZ-len(name))...)
}
func (p place) is(e *expr.Payload) bool { return *e == *load(p) }
func bitwise(mask, xor []byte) *expr.Bitwise {
	return &expr.Bitwise{SourceRegister: register, DestRegister: register, Len: uint32(len(mask)), Mask: mask, Xor: xor}
}

func load(p place) *expr.Payload {
	return &expr.Payload{DestRegister: register, Base: p.base, Offset: p.offset, Len: p.length}
}

func compare(not bool, data []byte) *expr.Cmp {
	op := expr.CmpOpEq
	if not {
		op = expr.CmpOpNeq
	}
	return &expr.Cmp{Op: op, Register: register, Data: data}
}

// rulePayload is that of a message that appends the rule to its chain.
func rulePayload(chain string, r ruleset.Rule) ([]byte, error) {
	exprs, err := expressions(r)
	if err != nil {
		return nil, err
	}
	var list []byte
	for _, e := range exprs {
		data, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil {
			return nil, fmt.Errorf("cannot encode %T: %w", e, err)
		}
		list = nlconn.AppendAttr(list, unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, data)
	}
	b := named(unix.NFTA_RULE_TABLE, ruleset.Table)
	b = nlconn.AppendText(b, unix.NFTA_RULE_CHAIN, chain)
	b = nlconn.AppendAttr(b, unix.NLA_F_NESTED|unix.NFTA_RULE_EXPRESSIONS, list)
	if r.Comment != "" {
		b = nlconn.AppendAttr(b, unix.NFTA_RULE_USERDATA, userdata.AppendString(nil, userdata.TypeComment, r.Comment))
	}
	return b, nil
}

// hooks are the kernel's numbers for family inet.
var hooks = map[ruleset.Hook]uint32{
	ruleset.Prerouting: unix.NF_INET_PRE_ROUTING,
	ruleset.Output:     unix.NF_INET_LOCAL_OUT,
}

const (
	policyDrop   = 0
	policyAccept = 1
)

// chainPayload is that of a message that creates the base chain.
func chainPayload(c ruleset.Chain) ([]byte, error) {
	hook, ok := hooks[c.Hook]
	if !ok || c.Policy != ruleset.PolicyAccept {
		return nil, fmt.Errorf("cannot write a chain on hook %q with policy %q", c.Hook, c.Policy)
	}
	where := appendNumber(nil, unix.NFTA_HOOK_HOOKNUM, hook)
	where = appendNumber(where, unix.NFTA_HOOK_PRIORITY, uint32(c.Priority))
	b := named(unix.NFTA_CHAIN_TABLE, ruleset.Table)
	b = nlconn.AppendText(b, unix.NFTA_CHAIN_NAME, c.Name)
	b = nlconn.AppendAttr(b, unix.NLA_F_NESTED|unix.NFTA_CHAIN_HOOK, where)
	b = appendNumber(b, unix.NFTA_CHAIN_POLICY, policyAccept)
	return nlconn.AppendText(b, unix.NFTA_CHAIN_TYPE, string(c.Type)), nil
}

// appendNumber appends an attribute that is a number, as all of nf_tables' in network byte order.
func appendNumber(b []byte, kind uint16, n uint32) []byte {
	return nlconn.AppendAttr(b, kind, binary.BigEndian.AppendUint32(nil, n))
}
