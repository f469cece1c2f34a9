package nft

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// Foreign is something of somebody else's that can keep packets from our rules, or that istio-cni has left.
type Foreign struct {
	What  string // as "chain ip evil/out"; fit to print, whoever has named it
	Why   string
	Istio bool // left by istio-cni, or as it leaves it; what matters without rules of ours, too
}

func (f Foreign) String() string { return f.What + ": " + f.Why }

// Foreign looks at all tables but ours, of the families that IPv4 and IPv6 packets meet, for chains on the hooks of our
// redirects that come before them: chains of type nat, whatever is in them, and rules that take packets out of connection
// tracking, without which nothing is redirected. What stands behind ours comes too late to matter, and is not named.
//
// And it looks for what istio-cni left and could not be taken away, in which are the rules by which it keeps a pod without a
// network while it works on it: if it was killed meanwhile, nobody removes them.
//
// It reads the chains of all tables, and the rules only of those tables that have a chain before connection tracking, and of
// those chains that istio-cni may have used for the latter.
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
	guard []location        // chains in which istio-cni may have put what keeps the pod without a network
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
	for _, chain := range r.guard {
		if err := r.guardrail(ctx, chain); err != nil {
			return err
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
	if at.istioTable() || at.istioChain() {
		if err := r.add(Foreign{What: table.String(), Why: "left by istio-cni: it goes when the pod is released, or restarted", Istio: true}); err != nil {
			return err
		}
	}
	if at.iptables() && at.table == "filter" && slices.Contains(guarded, at.chain) {
		r.guard = append(r.guard, at)
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

// guarded are the chains of iptables' that istio-cni puts at the top of that TCP and UDP are dropped.
var guarded = []string{"INPUT", "FORWARD", "OUTPUT"}

// guardrail looks at a chain's first rule.
func (r *foreignReader) guardrail(ctx context.Context, at location) error {
	first, seen := true, 0
	err := r.each(ctx, unix.NFT_MSG_GETRULE, at.family, at.named(unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN), func(family uint8, a nlconn.Attrs) error {
		if seen++; seen > mostRules {
			return errEnough
		}
		if !first || at != (location{family, a.Text(unix.NFTA_RULE_TABLE), a.Text(unix.NFTA_RULE_CHAIN)}) { // kernels that do not filter this dump
			return nil
		}
		first = false
		if protocol := drops(a); protocol != 0 {
			return r.add(Foreign{What: at.String(), Istio: true,
				Why: fmt.Sprintf("it begins with a rule that drops all %s, as istio-cni leaves it if it is killed at its work: restart the pod", protocol)})
		}
		return nil
	})
	if seen > mostRules {
		return nil // the first one was seen
	}
	return r.enough(err, "rules")
}

// drops is the protocol, TCP or UDP, all of whose packets a rule drops, 0 if it does something else.
func drops(a nlconn.Attrs) ruleset.Protocol {
	rule, err := decodeRule(a)
	if err != nil || len(rule.Matches) == 0 {
		return 0
	}
	l4, is := rule.Matches[0].(ruleset.L4)
	switch rest := rule.Matches[1:]; {
	case !is || l4.Protocol != ruleset.TCP && l4.Protocol != ruleset.UDP:
		return 0
	case len(rest) == 0 && rule.Statement == ruleset.Statement(ruleset.Drop{}):
		return l4.Protocol
	case len(rest) == 1 && rest[0] == ruleset.Match(ruleset.Foreign{Text: "[counter, drop]"}): // iptables counts
		return l4.Protocol
	}
	return 0
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
