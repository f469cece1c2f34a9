package nft

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

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

// reader reads the table once. A table that changes meanwhile may come out as one that never was.
type reader struct {
	*Table
	want ruleset.Ruleset
	got  ruleset.Ruleset
}

// read finds out what the table holds. It asks for the wanted chains by name, and for others only if the table counts more
// than it found: a dump of chains has those of all tables in it.
func (r *reader) read() error {
	flags, holds, err := r.table()
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read table inet %s: %w", ruleset.Table, err)
	}
	for i, name := range tableFlags {
		if flags&(1<<i) != 0 {
			r.got.Foreign = append(r.got.Foreign, "flag "+name)
		}
	}
	for _, c := range r.want.Chains {
		if err := r.chain(c.Name); err != nil {
			return err
		}
	}
	if uint32(len(r.got.Chains)) != holds {
		if err := r.others(); err != nil {
			return err
		}
	}
	return r.rules()
}

// table gives the table's flags, and the number of chains, sets, objects and flowtables in it.
func (r *reader) table() (flags, holds uint32, err error) {
	answer, err := r.socket.get(request(unix.NFT_MSG_GETTABLE, 0, named(unix.NFTA_TABLE_NAME, ruleset.Table)))
	if err != nil {
		return 0, 0, err
	}
	a, err := decode(answer)
	return a.uint32(unix.NFTA_TABLE_FLAGS), a.uint32(unix.NFTA_TABLE_USE), err
}

func named(kind uint16, name string) []byte {
	var b builder
	b.text(kind, name)
	return b
}

func (r *reader) chain(name string) error {
	var b builder
	b.text(unix.NFTA_CHAIN_TABLE, ruleset.Table)
	b.text(unix.NFTA_CHAIN_NAME, name)
	answer, err := r.socket.get(request(unix.NFT_MSG_GETCHAIN, 0, b))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err == nil {
		err = r.addChain(answer)
	}
	if err != nil {
		return fmt.Errorf("cannot read chain %s: %w", name, err)
	}
	return nil
}

func (r *reader) addChain(answer []byte) error {
	a, err := decode(answer)
	if err != nil {
		return err
	}
	c := ruleset.Chain{Name: a.text(unix.NFTA_CHAIN_NAME)}
	if where, based := a.get(unix.NFTA_CHAIN_HOOK); based {
		h, err := decode(where)
		if err != nil {
			return err
		}
		c.Type = ruleset.ChainType(a.text(unix.NFTA_CHAIN_TYPE))
		c.Hook = hookName(h.uint32(unix.NFTA_HOOK_HOOKNUM))
		c.Priority = int32(h.uint32(unix.NFTA_HOOK_PRIORITY))
		c.Policy = policyName(a.uint32(unix.NFTA_CHAIN_POLICY))
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
func (r *reader) others() error {
	seen := 0
	err := r.socket.dump(request(unix.NFT_MSG_GETCHAIN, 0, nil), func(answer []byte) error {
		a, err := decode(answer)
		if err != nil {
			return err
		}
		if seen++; seen > mostChains {
			return errEnough
		}
		name := a.text(unix.NFTA_CHAIN_NAME)
		if a.text(unix.NFTA_CHAIN_TABLE) != ruleset.Table || r.knows(name) {
			return nil
		}
		return r.addChain(answer)
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
		err := r.socket.dump(request(kind.ask, 0, named(kind.table, ruleset.Table)), func(answer []byte) error {
			a, err := decode(answer)
			if err != nil {
				return err
			}
			if a.text(kind.table) != ruleset.Table {
				return nil // kernels that do not filter this dump
			}
			if len(r.got.Foreign) >= mostForeign {
				return errEnough
			}
			r.got.Foreign = append(r.got.Foreign, kind.what+" "+a.text(kind.name))
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

func (r *reader) knows(chain string) bool {
	return slices.ContainsFunc(r.got.Chains, func(c ruleset.Chain) bool { return c.Name == chain })
}

// finished says how a dump ended. One that was cut short is noted, and leaves a new socket behind.
func (r *reader) finished(err error, what string) error {
	if err == nil || errors.Is(err, errMotion) {
		return err
	}
	if failed := r.reopen(); failed != nil {
		return failed
	}
	if errors.Is(err, errEnough) {
		r.got.Foreign = slices.Insert(r.got.Foreign, 0, "too many "+what+" to look at all of them")
		return nil
	}
	return fmt.Errorf("cannot read the %s of table inet %s: %w", what, ruleset.Table, err)
}

// rules reads the rules of all chains.
func (r *reader) rules() error {
	seen := 0
	err := r.socket.dump(request(unix.NFT_MSG_GETRULE, 0, named(unix.NFTA_RULE_TABLE, ruleset.Table)), func(answer []byte) error {
		a, err := decode(answer)
		if err != nil {
			return err
		}
		if seen++; seen > mostRules {
			return errEnough
		}
		rule, err := decodeRule(a)
		if err != nil {
			return err
		}
		name := a.text(unix.NFTA_RULE_CHAIN)
		i := slices.IndexFunc(r.got.Chains, func(c ruleset.Chain) bool { return c.Name == name })
		if i >= 0 { // else one that came after the chains were read
			r.got.Chains[i].Rules = append(r.got.Chains[i].Rules, rule)
		}
		return nil
	})
	return r.finished(err, "rules")
}
