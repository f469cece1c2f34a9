package nft

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// decodeRule is the reverse of rulePayload. What encode does not write comes out as ruleset.Foreign: somebody else may
// have put anything into our table.
func decodeRule(a nlconn.Attrs) (ruleset.Rule, error) {
	list, err := nlconn.ParseAttrs(a.Value(unix.NFTA_RULE_EXPRESSIONS))
	if err != nil {
		return ruleset.Rule{}, err
	}
	d := decoder{exprs: make([]any, len(list))}
	for i, e := range list {
		if d.exprs[i], err = decodeExpression(e.Value); err != nil {
			return ruleset.Rule{}, err
		}
	}
	d.run()
	d.rule.Comment = comment(a.Value(unix.NFTA_RULE_USERDATA))
	return d.rule, nil
}

// unknown is an expression of a kind that we never write.
type unknown string

func decodeExpression(data []byte) (any, error) {
	a, err := nlconn.ParseAttrs(data)
	if err != nil {
		return nil, err
	}
	var e expr.Any
	switch name := a.Text(unix.NFTA_EXPR_NAME); name {
	case "meta":
		e = &expr.Meta{}
	case "cmp":
		e = &expr.Cmp{}
	case "payload":
		e = &expr.Payload{}
	case "bitwise":
		e = &expr.Bitwise{}
	case "redir":
		e = &expr.Redir{}
	case "immediate":
		e = &expr.Immediate{}
	case "ct":
		return decodeConntrack(a.Value(unix.NFTA_EXPR_DATA))
	default:
		return unknown(name), nil
	}
	if err := expr.Unmarshal(unix.NFPROTO_INET, a.Value(unix.NFTA_EXPR_DATA), e); err != nil {
		return nil, fmt.Errorf("cannot decode %T: %w", e, err)
	}
	if i, ok := e.(*expr.Immediate); ok && i.Register == unix.NFT_REG_VERDICT {
		v := &expr.Verdict{}
		err := expr.Unmarshal(unix.NFPROTO_INET, a.Value(unix.NFTA_EXPR_DATA), v)
		return v, err
	}
	return e, nil
}

// decodeConntrack is here because the library's own forgets the register of a ct expression that sets something.
func decodeConntrack(data []byte) (any, error) {
	a, err := nlconn.ParseAttrs(data)
	if err != nil {
		return nil, err
	}
	if a.Value(unix.NFTA_CT_DIRECTION) != nil {
		return unknown("ct of one direction"), nil
	}
	e := &expr.Ct{Key: expr.CtKey(number(a.Value(unix.NFTA_CT_KEY))), Register: number(a.Value(unix.NFTA_CT_DREG))}
	if from := a.Value(unix.NFTA_CT_SREG); from != nil {
		e.Register, e.SourceRegister = number(from), true
	}
	return e, nil
}

// comment finds the comment in a rule's userdata: type, length and value, again and again. Anybody may have written it.
func comment(b []byte) string {
	const typeComment, header = 0, 2
	for len(b) >= header && len(b) >= header+int(b[1]) {
		value := b[header : header+int(b[1])]
		if b[0] == typeComment {
			return string(bytes.TrimRight(value, "\x00"))
		}
		b = b[header+len(value):]
	}
	return ""
}

// decoder recognises in a rule's expressions what the encoder writes.
type decoder struct {
	exprs    []any
	protocol ruleset.Protocol // that the expressions so far make sure of
	rule     ruleset.Rule
}

func (d *decoder) run() {
	for len(d.exprs) > 0 {
		if s, n := d.statement(); n == len(d.exprs) && n > 0 {
			d.rule.Statement = s
			return
		}
		m, n := d.condition()
		if n == 0 {
			d.rule.Matches = append(d.rule.Matches, ruleset.Foreign{Text: d.describe()})
			return
		}
		d.rule.Matches = append(d.rule.Matches, m)
		d.exprs = d.exprs[n:]
	}
}

// describe names the expressions that are left.
func (d *decoder) describe() string {
	var names []string
	for _, e := range d.exprs {
		switch e := e.(type) {
		case unknown:
			names = append(names, string(e))
		case *expr.Verdict:
			names = append(names, verdictName(e))
		default:
			names = append(names, strings.ToLower(strings.TrimPrefix(fmt.Sprintf("%T", e), "*expr.")))
		}
	}
	return "[" + strings.Join(names, ", ") + "]"
}

func verdictName(v *expr.Verdict) string {
	switch v.Kind {
	case expr.VerdictAccept:
		return "accept"
	case expr.VerdictDrop:
		return "drop"
	case expr.VerdictReturn:
		return "return"
	case expr.VerdictJump:
		return "jump " + v.Chain
	case expr.VerdictGoto:
		return "goto " + v.Chain
	}
	return fmt.Sprintf("verdict %d", v.Kind)
}

// condition is the match that the expressions begin with, and how many of them it takes; none if it takes 0.
func (d *decoder) condition() (ruleset.Match, int) {
	switch e := d.exprs[0].(type) {
	case *expr.Meta:
		return d.metaCondition(e)
	case *expr.Payload:
		return d.transportCondition()
	case *expr.Ct:
		if *e == *conntrack(expr.CtKeyMARK) {
			value, mask, not, ok := d.masked()
			return ruleset.ConnectionMark{Value: value, Mask: mask, Not: not}, taken(ok, 3)
		}
		data, not, ok := d.compared(1)
		if ok && *e == *conntrack(expr.CtKeySTATE) && not && bytes.Equal(data, native(expr.CtStateBitUNTRACKED)) {
			return ruleset.Tracked{}, 2
		}
	}
	return nil, 0
}

func taken(ok bool, n int) int {
	if ok {
		return n
	}
	return 0
}

func (d *decoder) metaCondition(e *expr.Meta) (ruleset.Match, int) {
	if e.SourceRegister || e.Register != register {
		return nil, 0
	}
	if e.Key == expr.MetaKeyMARK {
		value, mask, not, ok := d.masked()
		return ruleset.PacketMark{Value: value, Mask: mask, Not: not}, taken(ok, 3)
	}
	data, not, ok := d.compared(1)
	if !ok {
		return nil, 0
	}
	switch e.Key {
	case expr.MetaKeyIIF:
		return ruleset.InInterface{Name: ruleset.Loopback, Not: not}, taken(bytes.Equal(data, native(ruleset.LoopbackIndex)), 2)
	case expr.MetaKeyOIF:
		return ruleset.OutInterface{Name: ruleset.Loopback, Not: not}, taken(bytes.Equal(data, native(ruleset.LoopbackIndex)), 2)
	case expr.MetaKeyIIFNAME:
		name, ok := decodeName(data)
		return ruleset.InInterface{Name: name, Not: not}, taken(ok, 2)
	case expr.MetaKeyOIFNAME:
		name, ok := decodeName(data)
		return ruleset.OutInterface{Name: name, Not: not}, taken(ok, 2)
	case expr.MetaKeyNFPROTO:
		if !not && len(data) == 1 {
			return d.address(data[0])
		}
	case expr.MetaKeyL4PROTO:
		if !not && len(data) == 1 {
			return d.transport(ruleset.Protocol(data[0]))
		}
	}
	return nil, 0
}

// transport is what a comparison of the protocol stands for: part of a condition on ports or flags, or one of its own.
func (d *decoder) transport(p ruleset.Protocol) (ruleset.Match, int) {
	const own = 2
	d.protocol = p
	rest := decoder{exprs: d.exprs[own:], protocol: p}
	if len(rest.exprs) > 0 {
		if m, n := rest.transportCondition(); n > 0 {
			return m, own + n
		}
	}
	return ruleset.L4{Protocol: p}, own
}

func (d *decoder) transportCondition() (ruleset.Match, int) {
	at, ok := d.exprs[0].(*expr.Payload)
	if !ok || d.protocol == 0 {
		return nil, 0
	}
	if data, not, ok := d.compared(1); ok && len(data) == 2 {
		for side, p := range places.port {
			if p.is(at) {
				return ruleset.Port{Protocol: d.protocol, Side: side, Port: binary.BigEndian.Uint16(data), Not: not}, 2
			}
		}
	}
	data, not, ok := d.compared(2)
	b, isBitwise := d.at(1).(*expr.Bitwise)
	if !ok || !isBitwise || len(data) != 1 || !tcpFlags.is(at) || d.protocol != ruleset.TCP {
		return nil, 0
	}
	switch {
	case same(b, flags(tcpFIN|tcpSYN|tcpRST|tcpACK)) && !not && data[0] == tcpSYN:
		return ruleset.FirstSYN{}, 3
	case same(b, flags(tcpRST)) && not && data[0] == 0:
		return ruleset.Reset{}, 3
	case same(b, flags(tcpRST|tcpACK)) && not && data[0] == 0:
		return ruleset.GoingOn{}, 3
	}
	return nil, 0
}

// address is the condition after a comparison of the IP version, which is part of it.
func (d *decoder) address(family byte) (ruleset.Match, int) {
	at, ok := d.at(2).(*expr.Payload)
	data, not, compared := d.compared(3)
	if !ok || !compared {
		return nil, 0
	}
	known := places.address4
	if family == unix.NFPROTO_IPV6 {
		known = places.address6
	}
	for side, p := range known {
		if addr, ok := netip.AddrFromSlice(data); ok && p.is(at) && uint32(len(data)) == p.length {
			return ruleset.Addr{Side: side, Addr: addr, Not: not}, 4
		}
	}
	return nil, 0
}

func (d *decoder) at(i int) any {
	if i < len(d.exprs) {
		return d.exprs[i]
	}
	return nil
}

// compared is the comparison at position i.
func (d *decoder) compared(i int) (data []byte, not, ok bool) {
	c, ok := d.at(i).(*expr.Cmp)
	if !ok || c.Register != register || (c.Op != expr.CmpOpEq && c.Op != expr.CmpOpNeq) {
		return nil, false, false
	}
	return c.Data, c.Op == expr.CmpOpNeq, true
}

// masked is the comparison under a mask at positions 1 and 2.
func (d *decoder) masked() (value, mask uint32, not, ok bool) {
	data, not, compared := d.compared(2)
	b, ok := d.at(1).(*expr.Bitwise)
	if !ok || !compared || len(data) != 4 || len(b.Mask) != 4 {
		return 0, 0, false, false
	}
	mask = binary.NativeEndian.Uint32(b.Mask)
	return binary.NativeEndian.Uint32(data), mask, not, same(b, and(mask))
}

func same(a, b *expr.Bitwise) bool {
	return a.SourceRegister == b.SourceRegister && a.DestRegister == b.DestRegister && a.Len == b.Len &&
		bytes.Equal(a.Mask, b.Mask) && bytes.Equal(a.Xor, b.Xor)
}

// decodeName refuses the prefix that nft makes of a name with a wildcard: it is shorter than a name's field.
func decodeName(data []byte) (string, bool) {
	if len(data) != unix.IFNAMSIZ {
		return "", false
	}
	name := string(bytes.TrimRight(data, "\x00"))
	return name, name != ruleset.Loopback // which is meant by its number
}

// statement is what all expressions that are left do together; none if it takes 0 of them.
func (d *decoder) statement() (ruleset.Statement, int) {
	switch e := d.exprs[0].(type) {
	case *expr.Verdict:
		switch e.Kind {
		case expr.VerdictAccept:
			return ruleset.Accept{}, 1
		case expr.VerdictDrop:
			return ruleset.Drop{}, 1
		}
	case *expr.Immediate:
		return d.withImmediate(e)
	case *expr.Ct:
		if *e == *conntrack(expr.CtKeyMARK) {
			return d.withConnectionMark()
		}
	}
	return nil, 0
}

func (d *decoder) withImmediate(e *expr.Immediate) (ruleset.Statement, int) {
	if e.Register != register || len(e.Data) != 2 {
		return nil, 0
	}
	switch to := d.at(1).(type) {
	case *expr.Redir:
		want := expr.Redir{RegisterProtoMin: register, RegisterProtoMax: register, Flags: protoSpecified}
		return ruleset.Redirect{Port: binary.BigEndian.Uint16(e.Data)}, taken(*to == want, 2)
	case *expr.Ct:
		want := expr.Ct{Key: expr.CtKeyZONE, Register: register, SourceRegister: true}
		return ruleset.SetZone{Zone: binary.NativeEndian.Uint16(e.Data)}, taken(*to == want, 2)
	}
	return nil, 0
}

func (d *decoder) withConnectionMark() (ruleset.Statement, int) {
	if to, ok := d.at(1).(*expr.Meta); ok {
		want := expr.Meta{Key: expr.MetaKeyMARK, Register: register, SourceRegister: true}
		return ruleset.RestoreMark{}, taken(*to == want, 2)
	}
	b, ok := d.at(1).(*expr.Bitwise)
	to, sets := d.at(2).(*expr.Ct)
	if !ok || !sets || len(b.Mask) != 4 || len(b.Xor) != 4 {
		return nil, 0
	}
	want := expr.Ct{Key: expr.CtKeyMARK, Register: register, SourceRegister: true}
	mask, value := ^binary.NativeEndian.Uint32(b.Mask), binary.NativeEndian.Uint32(b.Xor)
	return ruleset.SetConnectionMark{Value: value, Mask: mask}, taken(*to == want && same(b, bitwise(native(^mask), native(value))), 3)
}
