package hostnet

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// A step is a message of a transaction. guard is the interface whose guard it is for.
type step struct {
	what, guard string
	message     nlconn.Message
}

func message(kind, flags uint16, payload []byte) nlconn.Message {
	return nlconn.Message{Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | kind, Flags: flags, Payload: payload}
}

// named is a payload that begins with the name of our table, or of another object.
func named(kind uint16, name string) []byte {
	return nlconn.AppendText(nlconn.NetfilterHeader(unix.NFPROTO_INET), kind, name)
}

func appendNumber(b []byte, kind uint16, n uint32) []byte {
	return nlconn.AppendAttr(b, kind, binary.BigEndian.AppendUint32(nil, n))
}

func marshal(exprs []expr.Any) ([]byte, error) {
	var list []byte
	for _, e := range exprs {
		data, err := expr.Marshal(unix.NFPROTO_INET, e)
		if err != nil {
			return nil, fmt.Errorf("cannot encode %T: %w", e, err)
		}
		list = nlconn.AppendAttr(list, unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, data)
	}
	return list, nil
}

// mostComment is what the nft command reads of a comment.
const mostComment = 127

func appendComment(b []byte, kind uint16, text string) []byte {
	return nlconn.AppendAttr(b, kind, userdata.AppendString(nil, userdata.TypeComment, cut(text)))
}

func cut(comment string) string { return comment[:min(len(comment), mostComment)] }

// replacement takes the table away, if there is one, and puts the chains and the
// addresses that are wanted in its place.
func replacement(chains []chain, want table) ([]step, error) {
	name := named(unix.NFTA_TABLE_NAME, ruleset.Table)
	steps := []step{ // created first, so that there is one to delete
		{what: "the table", message: message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, name)},
		{what: "the table", message: message(unix.NFT_MSG_DELTABLE, 0, name)},
		{what: "the table", message: message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, name)},
	}
	for i, f := range families {
		b := nlconn.AppendText(named(unix.NFTA_SET_TABLE, ruleset.Table), unix.NFTA_SET_NAME, f.set)
		b = appendNumber(b, unix.NFTA_SET_KEY_TYPE, f.datatype)
		b = appendNumber(b, unix.NFTA_SET_KEY_LEN, f.length)
		b = appendNumber(b, unix.NFTA_SET_ID, uint32(i+1))
		b = nlconn.AppendAttr(b, unix.NLA_F_NESTED|unix.NFTA_SET_DESC, appendNumber(nil, unix.NFTA_SET_DESC_SIZE, setSize))
		steps = append(steps, step{what: "set " + f.set, message: message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, b)})
	}
	for _, c := range chains {
		steps = append(steps, step{what: "chain " + c.name, message: chainMessage(c, "")})
		for _, r := range c.rules {
			m, err := ruleMessage(c.name, r)
			if err != nil {
				return nil, err
			}
			steps = append(steps, step{what: "the rule for " + r.comment, message: m})
		}
	}
	return append(steps, elements(unix.NFT_MSG_NEWSETELEM, want.addresses)...), nil
}

func chainMessage(c chain, device string) nlconn.Message {
	b := nlconn.AppendText(named(unix.NFTA_CHAIN_TABLE, ruleset.Table), unix.NFTA_CHAIN_NAME, c.name)
	if c.kind != "" {
		where := appendNumber(nil, unix.NFTA_HOOK_HOOKNUM, c.hook)
		where = appendNumber(where, unix.NFTA_HOOK_PRIORITY, uint32(c.priority))
		if device != "" {
			where = nlconn.AppendText(where, unix.NFTA_HOOK_DEV, device)
		}
		b = nlconn.AppendAttr(b, unix.NLA_F_NESTED|unix.NFTA_CHAIN_HOOK, where)
		b = nlconn.AppendText(b, unix.NFTA_CHAIN_TYPE, c.kind)
	}
	return message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, b)
}

func ruleMessage(chain string, r rule) (nlconn.Message, error) {
	list, err := marshal(r.exprs)
	if err != nil {
		return nlconn.Message{}, err
	}
	b := nlconn.AppendText(named(unix.NFTA_RULE_TABLE, ruleset.Table), unix.NFTA_RULE_CHAIN, chain)
	b = nlconn.AppendAttr(b, unix.NLA_F_NESTED|unix.NFTA_RULE_EXPRESSIONS, list)
	b = appendComment(b, unix.NFTA_RULE_USERDATA, r.comment)
	return message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, b), nil
}

// hookIngress is the kernel's NF_INET_INGRESS.
const hookIngress = 5

// guard is the chain at an interface. Its only rule has the pod's UID as its comment.
func guard(link, uid string) (chain, rule) {
	c := chain{name: guardPrefix + link, kind: "filter", hook: hookIngress, priority: guardPriority}
	return c, rule{uid, toSpoofed()}
}

func addGuard(link, uid string) ([]step, error) {
	c, r := guard(link, uid)
	m, err := ruleMessage(c.name, r)
	return []step{
		{what: "the guard at interface " + link, guard: link, message: chainMessage(c, link)},
		{what: "the guard's rule at interface " + link, guard: link, message: m},
	}, err
}

func deleteGuard(link string) step {
	b := nlconn.AppendText(named(unix.NFTA_CHAIN_TABLE, ruleset.Table), unix.NFTA_CHAIN_NAME, guardPrefix+link)
	return step{what: "the removal of the guard at interface " + link, message: message(unix.NFT_MSG_DELCHAIN, 0, b)}
}

// mostElements is how many elements one message has: its list may have 64 KiB.
const mostElements = 300

// elements are the messages that add or delete addresses.
func elements(kind uint16, addresses map[netip.Addr]string) []step {
	var flags uint16
	if kind == unix.NFT_MSG_NEWSETELEM {
		flags = unix.NLM_F_CREATE
	}
	var steps []step
	sorted := slices.SortedFunc(maps.Keys(addresses), netip.Addr.Compare)
	for _, f := range families {
		own := slices.DeleteFunc(slices.Clone(sorted), func(a netip.Addr) bool { return familyOf(a).number != f.number })
		for some := range slices.Chunk(own, mostElements) {
			b := nlconn.AppendText(named(unix.NFTA_SET_ELEM_LIST_TABLE, ruleset.Table), unix.NFTA_SET_ELEM_LIST_SET, f.set)
			b = nlconn.AppendAttr(b, unix.NLA_F_NESTED|unix.NFTA_SET_ELEM_LIST_ELEMENTS, elementList(some, addresses))
			steps = append(steps, step{what: fmt.Sprintf("%d addresses in set %s", len(some), f.set), message: message(kind, flags, b)})
		}
	}
	return steps
}

func elementList(some []netip.Addr, comments map[netip.Addr]string) []byte {
	var list []byte
	for _, a := range some {
		key := nlconn.AppendAttr(nil, unix.NFTA_DATA_VALUE, a.AsSlice())
		e := nlconn.AppendAttr(nil, unix.NLA_F_NESTED|unix.NFTA_SET_ELEM_KEY, key)
		e = appendComment(e, unix.NFTA_SET_ELEM_USERDATA, comments[a])
		list = nlconn.AppendAttr(list, unix.NLA_F_NESTED|unix.NFTA_LIST_ELEM, e)
	}
	return list
}
