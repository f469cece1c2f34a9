package hostnet

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// A reader reads the table once. One that changes meanwhile may come out as one that
// never was.
type reader struct {
	conn  *nlconn.Conn
	table table
	// guards are the chains that may be guards by their names, and what is in them.
	guards map[string]*foundGuard
	holds  int
}

type foundGuard struct {
	head, device, uid string
	rules             []string
}

// ask sends a request and calls each with the attributes of each answer.
func ask(ctx context.Context, conn *nlconn.Conn, kind, flags uint16, payload []byte, each func(nlconn.Attrs) error) error {
	m := message(kind, flags, payload)
	return conn.Request(ctx, m.Kind, m.Flags, m.Payload, func(reply []byte) error {
		if len(reply) < nlconn.NetfilterHeaderSize {
			return fmt.Errorf("an answer of %d bytes", len(reply))
		}
		attrs, err := nlconn.ParseAttrs(reply[nlconn.NetfilterHeaderSize:])
		if err != nil {
			return err
		}
		return each(attrs)
	})
}

// generation is the number of the namespace's ruleset: another one after each change.
func generation(ctx context.Context, conn *nlconn.Conn) (number uint32, err error) {
	err = ask(ctx, conn, unix.NFT_MSG_GETGEN, 0, nlconn.NetfilterHeader(unix.NFPROTO_INET), func(a nlconn.Attrs) error {
		number = bigEndian(a.Value(unix.NFTA_GEN_ID))
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("cannot read the number of the ruleset: %w", err)
	}
	return number, nil
}

func bigEndian(value []byte) uint32 {
	if len(value) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(value)
}

// mostReads is how often reading is begun again because others change their tables.
const mostReads = 10

// read reads the table between two looks at the ruleset's number, and again a little
// later, and later, if that has changed.
func read(ctx context.Context, conn *nlconn.Conn) (table, uint32, error) {
	for try := range mostReads {
		if try > 0 {
			select {
			case <-ctx.Done():
				return table{}, 0, ctx.Err()
			case <-time.After(min(time.Millisecond<<try, 50*time.Millisecond)):
			}
		}
		before, err := generation(ctx, conn)
		if err != nil {
			return table{}, 0, err
		}
		r := reader{conn: conn, guards: map[string]*foundGuard{}}
		r.table.addresses, r.table.guards = map[netip.Addr]string{}, map[string]string{}
		err = r.read(ctx)
		if errors.Is(err, nlconn.ErrInterrupted) {
			continue
		}
		if err != nil {
			return table{}, 0, fmt.Errorf("cannot read table inet %s: %w", ruleset.Table, err)
		}
		after, err := generation(ctx, conn)
		if err != nil || after == before {
			return r.table, before, err
		}
	}
	return table{}, 0, fmt.Errorf("cannot read table inet %s: the ruleset changed %d times meanwhile", ruleset.Table, mostReads)
}

func (r *reader) read(ctx context.Context) error {
	use := uint32(0)
	err := ask(ctx, r.conn, unix.NFT_MSG_GETTABLE, 0, named(unix.NFTA_TABLE_NAME, ruleset.Table), func(a nlconn.Attrs) error {
		use = bigEndian(a.Value(unix.NFTA_TABLE_USE))
		if flags := bigEndian(a.Value(unix.NFTA_TABLE_FLAGS)); flags != 0 {
			r.add("table: flags %#x", flags)
		}
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	for _, list := range []struct {
		kind    uint16
		payload []byte
		each    func(nlconn.Attrs) error
	}{
		{unix.NFT_MSG_GETCHAIN, nlconn.NetfilterHeader(unix.NFPROTO_INET), r.chain},
		{unix.NFT_MSG_GETSET, named(unix.NFTA_SET_TABLE, ruleset.Table), r.set},
		{unix.NFT_MSG_GETRULE, named(unix.NFTA_RULE_TABLE, ruleset.Table), r.rule},
	} {
		if err == nil {
			err = ask(ctx, r.conn, list.kind, unix.NLM_F_DUMP, list.payload, list.each)
		}
	}
	if err != nil {
		return err
	}
	if more := int(use) - r.holds; more > 0 {
		r.add("table: %d things more", more)
	}
	for _, f := range families {
		if err := r.elements(ctx, f); err != nil {
			return err
		}
	}
	if err := r.takeGuards(); err != nil {
		return err
	}
	slices.SortStableFunc(r.table.lines, byPlace)
	return nil
}

func (r *reader) add(format string, args ...any) {
	r.table.lines = append(r.table.lines, fmt.Sprintf(format, args...))
}

func (r *reader) chain(a nlconn.Attrs) error {
	if a.Text(unix.NFTA_CHAIN_TABLE) != ruleset.Table { // the kernel dumps those of the whole family
		return nil
	}
	r.holds++
	c := chain{name: a.Text(unix.NFTA_CHAIN_NAME)}
	device := ""
	if where := a.Value(unix.NFTA_CHAIN_HOOK); where != nil {
		h, err := nlconn.ParseAttrs(where)
		if err != nil {
			return err
		}
		c.kind, device = a.Text(unix.NFTA_CHAIN_TYPE), h.Text(unix.NFTA_HOOK_DEV)
		c.hook = bigEndian(h.Value(unix.NFTA_HOOK_HOOKNUM))
		c.priority = int32(bigEndian(h.Value(unix.NFTA_HOOK_PRIORITY)))
	}
	line := c.line()
	if bigEndian(a.Value(unix.NFTA_CHAIN_POLICY)) == 0 && c.kind != "" {
		line += ", policy drop"
	}
	if link, ok := strings.CutPrefix(c.name, guardPrefix); ok {
		r.guards[link] = &foundGuard{head: line, device: device}
		return nil
	}
	r.add("%s", line)
	return nil
}

func (r *reader) set(a nlconn.Attrs) error {
	if a.Text(unix.NFTA_SET_TABLE) != ruleset.Table {
		return nil
	}
	desc, err := nlconn.ParseAttrs(a.Value(unix.NFTA_SET_DESC))
	if err != nil {
		return err
	}
	r.holds++
	r.add("%s", setLine(a.Text(unix.NFTA_SET_NAME), bigEndian(a.Value(unix.NFTA_SET_KEY_TYPE)),
		bigEndian(a.Value(unix.NFTA_SET_KEY_LEN)), bigEndian(desc.Value(unix.NFTA_SET_DESC_SIZE)), bigEndian(a.Value(unix.NFTA_SET_FLAGS))))
	return nil
}

func (r *reader) rule(a nlconn.Attrs) error {
	if a.Text(unix.NFTA_RULE_TABLE) != ruleset.Table {
		return nil
	}
	name, note := a.Text(unix.NFTA_RULE_CHAIN), comment(a.Value(unix.NFTA_RULE_USERDATA))
	if link, ok := strings.CutPrefix(name, guardPrefix); ok && r.guards[link] != nil {
		g := r.guards[link]
		text, err := expressionsText(a.Value(unix.NFTA_RULE_EXPRESSIONS))
		g.rules, g.uid = append(g.rules, text), note
		return err
	}
	line, err := ruleLine(name, a.Value(unix.NFTA_RULE_EXPRESSIONS), note)
	r.add("%s", line)
	return err
}

// takeGuards tells guards from what has only their names.
func (r *reader) takeGuards() error {
	_, want := guard("", "")
	list, err := marshal(want.exprs)
	if err != nil {
		return err
	}
	jump, err := expressionsText(list)
	if err != nil {
		return err
	}
	for link, found := range r.guards {
		c, _ := guard(link, "")
		switch {
		case found.head != c.line() || !slices.Equal(found.rules, []string{jump}):
			r.add("%s", found.head)
		case found.device == link:
			r.table.guards[link] = found.uid
		default: // the interface has gone
			r.table.idle = append(r.table.idle, link)
		}
	}
	return nil
}

// elements reads the addresses of a set, if it is there and is what it should be.
func (r *reader) elements(ctx context.Context, f family) error {
	which := nlconn.AppendText(named(unix.NFTA_SET_ELEM_LIST_TABLE, ruleset.Table), unix.NFTA_SET_ELEM_LIST_SET, f.set)
	err := ask(ctx, r.conn, unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, which, func(a nlconn.Attrs) error {
		list, err := nlconn.ParseAttrs(a.Value(unix.NFTA_SET_ELEM_LIST_ELEMENTS))
		if err != nil {
			return err
		}
		for _, element := range list {
			e, err := nlconn.ParseAttrs(element.Value)
			if err != nil {
				return err
			}
			key, err := nlconn.ParseAttrs(e.Value(unix.NFTA_SET_ELEM_KEY))
			if err != nil {
				return err
			}
			if addr, ok := netip.AddrFromSlice(key.Value(unix.NFTA_DATA_VALUE)); ok && familyOf(addr).number == f.number {
				r.table.addresses[addr] = comment(e.Value(unix.NFTA_SET_ELEM_USERDATA))
			}
		}
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// comment finds the comment in userdata: type, length and value, again and again.
func comment(b []byte) string {
	const header = 2
	for len(b) >= header && len(b) >= header+int(b[1]) {
		value := b[header : header+int(b[1])]
		if userdata.Type(b[0]) == userdata.TypeComment {
			return strings.TrimRight(string(value), "\x00")
		}
		b = b[header+len(value):]
	}
	return ""
}

// ruleLine is a rule as a line that is the same whoever wrote the rule down, we or the
// kernel. list are its expressions.
func ruleLine(chain string, list []byte, comment string) (string, error) {
	text, err := expressionsText(list)
	return fmt.Sprintf("chain %s: rule %q: %s", chain, cut(comment), text), err
}

func expressionsText(list []byte) (string, error) {
	attrs, err := nlconn.ParseAttrs(list)
	if err != nil {
		return "", err
	}
	texts := make([]string, len(attrs))
	for i, e := range attrs {
		if texts[i], err = expressionText(e.Value); err != nil {
			return "", err
		}
	}
	return strings.Join(texts, ", "), nil
}

// kinds are the expressions that we write.
var kinds = map[string]func() expr.Any{
	"meta":      func() expr.Any { return &expr.Meta{} },
	"cmp":       func() expr.Any { return &expr.Cmp{} },
	"payload":   func() expr.Any { return &expr.Payload{} },
	"bitwise":   func() expr.Any { return &expr.Bitwise{} },
	"ct":        func() expr.Any { return &expr.Ct{} },
	"lookup":    func() expr.Any { return &expr.Lookup{} },
	"socket":    func() expr.Any { return &expr.Socket{} },
	"nat":       func() expr.Any { return &expr.NAT{} },
	"immediate": func() expr.Any { return &expr.Immediate{} },
}

// expressionText reads an expression by its values: newer kernels may say more of the
// same one, or in another order.
func expressionText(data []byte) (string, error) {
	a, err := nlconn.ParseAttrs(data)
	if err != nil {
		return "", err
	}
	name := a.Text(unix.NFTA_EXPR_NAME)
	newOne := kinds[name]
	if newOne == nil {
		return "another: " + name, nil
	}
	e, values := newOne(), a.Value(unix.NFTA_EXPR_DATA)
	if err := expr.Unmarshal(unix.NFPROTO_INET, values, e); err != nil {
		return "", fmt.Errorf("cannot decode expression %s: %w", name, err)
	}
	if i, ok := e.(*expr.Immediate); ok && i.Register == unix.NFT_REG_VERDICT {
		e = &expr.Verdict{}
		if err := expr.Unmarshal(unix.NFPROTO_INET, values, e); err != nil {
			return "", fmt.Errorf("cannot decode a verdict: %w", err)
		}
	}
	return fmt.Sprintf("%s%+v", name, e), nil
}
