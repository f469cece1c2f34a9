package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// Foreign is something of somebody else's that can keep packets from our rules, or that istio-cni has left.
type Foreign struct {
	What string // as "chain ip evil/out"; fit to print, whoever has named it
	Why  string
}

func (f Foreign) String() string { return f.What + ": " + f.Why }

// Foreign looks at all tables but ours, of the families that IPv4 and IPv6 packets meet, for chains on the hooks of our
// redirects that come before them: chains of type nat, whatever is in them, and rules that take packets out of connection
// tracking, without which nothing is redirected. What stands behind ours comes too late to matter, and is not named.
//
// It reads the chains of all tables, and the rules only of those tables that have a chain before connection tracking.
func (t *Table) Foreign(ctx context.Context) ([]Foreign, error) {
	var r *foreignReader
	settled, err := t.settled(ctx, func() error {
		r = &foreignReader{Table: t}
		return r.read(ctx)
	})
	if err != nil {
		return nil, fmt.Errorf("cannot look for chains before ours: %w", err)
	}
	if !settled {
		r.found = append(r.found, Foreign{What: "ruleset", Why: string(ruleset.InMotion) + ": somebody changed it each time it was read"})
	}
	return r.found, nil
}

// beforeConntrack is the first priority that is too late to take a packet out of connection tracking.
const beforeConntrack int32 = -200

// families are those whose chains see IPv4 or IPv6 packets.
var families = map[uint8]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6"}

// A location is a table, or a chain in it.
type location struct {
	family       uint8
	table, chain string
}

func (p location) String() string {
	if p.chain == "" {
		return fmt.Sprintf("table %s %s", families[p.family], plain(p.table))
	}
	return fmt.Sprintf("chain %s %s/%s", families[p.family], plain(p.table), plain(p.chain))
}

// plain escapes what would not print.
func plain(name string) string {
	quoted := strconv.QuoteToASCII(name)
	return quoted[1 : len(quoted)-1]
}

// foreignReader reads all tables once.
type foreignReader struct {
	*Table
	early []location        // tables that have a chain before connection tracking
	late  map[location]bool // chains on hooks, but behind it, or on other hooks
	found []Foreign
}

func (r *foreignReader) read(ctx context.Context) error {
	r.late = map[location]bool{}
	seen := 0
	err := r.each(ctx, unix.NFT_MSG_GETCHAIN, unix.NFPROTO_UNSPEC, nil, func(family uint8, a nlconn.Attrs) error {
		if seen++; seen > mostChains {
			return errEnough
		}
		return r.chain(location{family, a.Text(unix.NFTA_CHAIN_TABLE), a.Text(unix.NFTA_CHAIN_NAME)}, a)
	})
	if err := r.enough(err, "chains"); err != nil {
		return err
	}
	seen = 0
	for _, table := range r.early {
		err := errEnough
		if seen++; seen <= mostRules { // a table without rules is not for nothing
			err = r.rules(ctx, table, &seen)
		}
		if err != nil {
			return r.enough(err, "rules")
		}
	}
	return nil
}

// rules reads those of a table that has a chain before connection tracking.
func (r *foreignReader) rules(ctx context.Context, table location, seen *int) error {
	which := nlconn.AppendText(nil, unix.NFTA_RULE_TABLE, table.table)
	return r.each(ctx, unix.NFT_MSG_GETRULE, table.family, which, func(family uint8, a nlconn.Attrs) error {
		if *seen++; *seen > mostRules {
			return errEnough
		}
		at := location{family, a.Text(unix.NFTA_RULE_TABLE), a.Text(unix.NFTA_RULE_CHAIN)}
		if at.family != table.family || at.table != table.table || r.late[at] {
			return nil // kernels that do not filter this dump; a chain that is too late
		}
		return r.rule(at, a)
	})
}

// each dumps objects that match the attributes, of one family or all, and tells of which family each is.
func (r *foreignReader) each(ctx context.Context, kind uint16, family uint8, attrs []byte, take func(family uint8, a nlconn.Attrs) error) error {
	m := request(kind, unix.NLM_F_DUMP, append(nlconn.NetfilterHeader(family), attrs...))
	return r.conn.Request(ctx, m.Kind, m.Flags, m.Payload, func(reply []byte) error {
		if len(reply) < nlconn.NetfilterHeaderSize {
			return fmt.Errorf("an answer of %d bytes", len(reply))
		}
		a, err := nlconn.ParseAttrs(reply[nlconn.NetfilterHeaderSize:])
		if err != nil {
			return err
		}
		return take(reply[0], a)
	})
}

// enough says how a dump ended, and notes if it was cut short.
func (r *foreignReader) enough(err error, what string) error {
	if errors.Is(err, errEnough) {
		r.found = append(r.found, Foreign{What: "ruleset", Why: "too many " + what + " to look at all of them"})
		return nil
	}
	return err
}

// add notes something once: what changes may come out of a dump twice.
func (r *foreignReader) add(f Foreign) error {
	switch {
	case slices.Contains(r.found, f):
		return nil
	case len(r.found) == mostForeign:
		return errEnough
	}
	r.found = append(r.found, f)
	return nil
}

// chain looks at a chain of any table.
func (r *foreignReader) chain(at location, a nlconn.Attrs) error {
	if families[at.family] == "" || at.family == unix.NFPROTO_INET && at.table == ruleset.Table {
		return nil
	}
	table := location{family: at.family, table: at.table}
	if strings.HasPrefix(at.table, "istio-ambient-") || at.chain == "ISTIO_OUTPUT" || at.chain == "ISTIO_PRERT" {
		if err := r.add(Foreign{What: table.String(), Why: "left by istio-cni"}); err != nil {
			return err
		}
	}
	where := a.Value(unix.NFTA_CHAIN_HOOK)
	if where == nil {
		return nil
	}
	h, err := nlconn.ParseAttrs(where)
	if err != nil {
		return err
	}
	hook, priority := hookName(number(h.Value(unix.NFTA_HOOK_HOOKNUM))), int32(number(h.Value(unix.NFTA_HOOK_PRIORITY)))
	redirects := hook == ruleset.Output || hook == ruleset.Prerouting
	nat := a.Text(unix.NFTA_CHAIN_TYPE) == string(ruleset.NAT)
	if redirects && !nat && priority < beforeConntrack {
		if n := len(r.early); n == 0 || r.early[n-1] != table { // a table's chains come together
			r.early = append(r.early, table)
		}
		return nil
	}
	r.late[at] = true
	if redirects && nat && priority <= ruleset.NATPriority { // of two with the same priority the later added comes first
		return r.add(Foreign{What: at.String(), Why: fmt.Sprintf("type nat hook %s priority %d, before ours (%d)", hook, priority, ruleset.NATPriority)})
	}
	return nil
}

// rule looks at a rule of a chain before connection tracking, or of one without a hook, which is taken for one that is
// jumped to from there.
func (r *foreignReader) rule(at location, a nlconn.Attrs) error {
	list, err := nlconn.ParseAttrs(a.Value(unix.NFTA_RULE_EXPRESSIONS))
	if err != nil {
		return err
	}
	for _, e := range list {
		untracks, err := untracks(e.Value)
		if err != nil {
			return err
		}
		if untracks {
			return r.add(Foreign{What: at.String(), Why: "notrack: packets without connection tracking are not redirected"})
		}
	}
	return nil
}

// The kernel's NFTA_TARGET_NAME and _INFO, and XT_CT_NOTRACK.
const (
	targetName  = 1
	targetInfo  = 3
	flagNotrack = 1
)

// untracks says whether an expression takes a packet out of connection tracking: nft's own, or one of iptables' targets.
func untracks(expression []byte) (bool, error) {
	a, err := nlconn.ParseAttrs(expression)
	if err != nil {
		return false, err
	}
	switch a.Text(unix.NFTA_EXPR_NAME) {
	case "notrack":
		return true, nil
	case "target":
		target, err := nlconn.ParseAttrs(a.Value(unix.NFTA_EXPR_DATA))
		if err != nil {
			return false, err
		}
		switch info := target.Value(targetInfo); target.Text(targetName) {
		case "NOTRACK":
			return true, nil
		case "CT":
			return len(info) >= 2 && binary.NativeEndian.Uint16(info)&flagNotrack != 0, nil
		}
	}
	return false, nil
}
