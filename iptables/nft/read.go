package nft

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// What somebody else put into our table, or beside it, must not cost more than this to look at.
const (
	mostRules   = 1000
	mostForeign = 100
	mostChains  = 2000 // of all tables of the family: the kernel does not tell them apart
)

// tableFlags is NFTA_TABLE_FLAGS' bits by the names that nft has for them.
var tableFlags = []string{"dormant", "owner", "persist"}

// errEnough is what a look ends with that has seen the most there is to look at.
var errEnough = errors.New("enough")

// reader reads the table once. A table that changes meanwhile may come out as one that never was.
type reader struct {
	*Table
	want ruleset.Ruleset
	got  ruleset.Ruleset
}

// read finds out what the table holds. It asks for the wanted chains by name, and for others only if the table counts more
// than it found: a dump of chains has those of all tables in it.
func (r *reader) read(ctx context.Context) error {
	holds, err := r.table(ctx)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read table inet %s: %w", ruleset.Table, err)
	}
	for _, c := range r.want.Chains {
		if err := r.chain(ctx, c.Name); err != nil {
			return err
		}
	}
	if uint32(len(r.got.Chains)) != holds {
		if err := r.others(ctx); err != nil {
			return err
		}
	}
	return r.rules(ctx)
}

// table notes the table's flags, and returns the number of chains, sets, objects and flowtables in it.
func (r *reader) table(ctx context.Context) (holds uint32, err error) {
	err = r.ask(ctx, unix.NFT_MSG_GETTABLE, 0, named(unix.NFTA_TABLE_NAME, ruleset.Table), func(a nlconn.Attrs) error {
		flags := number(a.Value(unix.NFTA_TABLE_FLAGS))
		for i, name := range tableFlags {
			if flags&(1<<i) != 0 {
				r.got.Foreign = append(r.got.Foreign, "flag "+name)
			}
		}
		holds = number(a.Value(unix.NFTA_TABLE_USE))
		return nil
	})
	return holds, err
}

func (r *reader) chain(ctx context.Context, name string) error {
	which := nlconn.AppendText(named(unix.NFTA_CHAIN_TABLE, ruleset.Table), unix.NFTA_CHAIN_NAME, name)
	err := r.ask(ctx, unix.NFT_MSG_GETCHAIN, 0, which, r.addChain)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cannot read chain %s: %w", name, err)
	}
	return nil
}

func (r *reader) addChain(a nlconn.Attrs) error {
	c := ruleset.Chain{Name: a.Text(unix.NFTA_CHAIN_NAME)}
	if where := a.Value(unix.NFTA_CHAIN_HOOK); where != nil {
		h, err := nlconn.ParseAttrs(where)
		if err != nil {
			return err
		}
		c.Type = ruleset.ChainType(a.Text(unix.NFTA_CHAIN_TYPE))
		c.Hook = hookName(number(h.Value(unix.NFTA_HOOK_HOOKNUM)))
		c.Priority = int32(number(h.Value(unix.NFTA_HOOK_PRIORITY)))
		c.Policy = policyName(number(a.Value(unix.NFTA_CHAIN_POLICY)))
	}
	r.got.Chains = append(r.got.Chains, c)
	return nil
}

func hookName(n uint32) ruleset.Hook {
	names := []ruleset.Hook{ruleset.Prerouting, "input", "forward", ruleset.Output, "postrouting", "ingress"}
	if int(n) < len(names) {
		return names[n]
	}
	return ruleset.Hook(fmt.Sprintf("number-%d", n))
}

func policyName(n uint32) ruleset.Policy {
	switch n {
	case policyAccept:
		return ruleset.PolicyAccept
	case policyDrop:
		return "drop"
	}
	return ruleset.Policy(fmt.Sprintf("number-%d", n))
}

// others finds what the table holds besides the wanted chains.
func (r *reader) others(ctx context.Context) error {
	seen := 0
	err := r.ask(ctx, unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, header(), func(a nlconn.Attrs) error {
		if seen++; seen > mostChains {
			return errEnough
		}
		if a.Text(unix.NFTA_CHAIN_TABLE) != ruleset.Table || r.find(a.Text(unix.NFTA_CHAIN_NAME)) >= 0 {
			return nil
		}
		return r.addChain(a)
	})
	if err := r.finished(err, "chains"); err != nil {
		return err
	}
	for _, kind := range []struct {
		what        string
		ask         uint16
		table, name uint16
	}{
		{"set", unix.NFT_MSG_GETSET, unix.NFTA_SET_TABLE, unix.NFTA_SET_NAME},
		{"object", unix.NFT_MSG_GETOBJ, unix.NFTA_OBJ_TABLE, unix.NFTA_OBJ_NAME},
		{"flowtable", unix.NFT_MSG_GETFLOWTABLE, flowtableTable, flowtableName},
	} {
		err := r.ask(ctx, kind.ask, unix.NLM_F_DUMP, named(kind.table, ruleset.Table), func(a nlconn.Attrs) error {
			if a.Text(kind.table) != ruleset.Table {
				return nil // kernels that do not filter this dump
			}
			if len(r.got.Foreign) >= mostForeign {
				return errEnough
			}
			r.got.Foreign = append(r.got.Foreign, kind.what+" "+a.Text(kind.name))
			return nil
		})
		if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
			continue // a kernel without such things has none in the table
		}
		if err := r.finished(err, kind.what+"s"); err != nil {
			return err
		}
	}
	return nil
}

// The kernel's NFTA_FLOWTABLE_TABLE and _NAME.
const (
	flowtableTable = 1
	flowtableName  = 2
)

// find is the place of a chain among those found so far, or -1.
func (r *reader) find(chain string) int {
	return slices.IndexFunc(r.got.Chains, func(c ruleset.Chain) bool { return c.Name == chain })
}

// finished says how a dump ended, and notes if it was cut short.
func (r *reader) finished(err error, what string) error {
	if errors.Is(err, errEnough) {
		r.got.Foreign = slices.Insert(r.got.Foreign, 0, "too many "+what+" to look at all of them")
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the %s of table inet %s: %w", what, ruleset.Table, err)
	}
	return nil
}

// rules reads the rules of all chains.
func (r *reader) rules(ctx context.Context) error {
	seen := 0
	err := r.ask(ctx, unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP, named(unix.NFTA_RULE_TABLE, ruleset.Table), func(a nlconn.Attrs) error {
		if seen++; seen > mostRules {
			return errEnough
		}
		rule, err := decodeRule(a)
		if err != nil {
			return err
		}
		if i := r.find(a.Text(unix.NFTA_RULE_CHAIN)); i >= 0 { // else one that came after the chains were read
			r.got.Chains[i].Rules = append(r.got.Chains[i].Rules, rule)
		}
		return nil
	})
	return r.finished(err, "rules")
}
