package nft

import (
	"context"
	"errors"
	"slices"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// What istio-cni makes in a pod: tables of its own by nft, or chains in tables of iptables-nft.
var (
	istioTables = []string{"istio-ambient-nat", "istio-ambient-mangle", "istio-ambient-raw"}
	istioChains = []string{"ISTIO_PRERT", "ISTIO_OUTPUT"}
	istioHosts  = []string{"nat", "mangle", "raw"}
)

// istioTable says whether a table is istio-cni's as a whole.
func (p location) istioTable() bool {
	return p.family == unix.NFPROTO_INET && slices.Contains(istioTables, p.table)
}

// hostsIstio says whether a table may have istio-cni's chains beside others.
func (p location) hostsIstio() bool { return p.iptables() && slices.Contains(istioHosts, p.table) }

func (p location) istioChain() bool { return p.hostsIstio() && slices.Contains(istioChains, p.chain) }

// iptables says whether a table is of a family that iptables-nft has its tables in.
func (p location) iptables() bool {
	return p.family == unix.NFPROTO_IPV4 || p.family == unix.NFPROTO_IPV6
}

// redirects says whether rules take anything to the proxy.
func redirects(want ruleset.Ruleset) bool {
	return slices.ContainsFunc(want.Chains, func(c ruleset.Chain) bool {
		return slices.ContainsFunc(c.Rules, func(r ruleset.Rule) bool {
			_, is := r.Statement.(ruleset.Redirect)
			return is
		})
	})
}

// takeOver does the steps and, behind them in the same transaction, deletes what istio-cni left. That must not keep the steps
// from being done: what cannot be deleted, because somebody else's rule refers to it or each attempt finds it changed, stays,
// and Foreign names it.
func (t *Table) takeOver(ctx context.Context, steps []step) error {
	for range readAttempts {
		left, err := t.istios(ctx)
		if err == nil && len(left) == 0 {
			break
		}
		if err == nil && t.run(ctx, slices.Concat(steps, left)) == nil {
			return nil
		}
	}
	if len(steps) == 0 {
		return nil
	}
	return t.run(ctx, steps)
}

// istios finds what istio-cni left, as the steps that delete it. Where there is nothing of iptables' that is one question.
func (t *Table) istios(ctx context.Context) ([]step, error) {
	var steps []step
	var hosts []location
	seen := 0
	err := t.each(ctx, unix.NFT_MSG_GETTABLE, unix.NFPROTO_UNSPEC, nil, func(family uint8, a nlconn.Attrs) error {
		if seen++; seen > mostChains {
			return errEnough
		}
		switch at := (location{family: family, table: a.Text(unix.NFTA_TABLE_NAME)}); {
		case at.istioTable():
			steps = append(steps, at.step(unix.NFT_MSG_DELTABLE, nlconn.AppendText(nil, unix.NFTA_TABLE_NAME, at.table)))
		case at.hostsIstio():
			hosts = append(hosts, at)
		}
		return nil
	})
	if err != nil && !errors.Is(err, errEnough) {
		return nil, err
	}
	chains, err := t.istioChains(ctx, hosts)
	if err != nil {
		return nil, err
	}
	for _, table := range hosts {
		isIn := func(c location) bool { return c.family == table.family && c.table == table.table }
		if !slices.ContainsFunc(chains, isIn) {
			continue
		}
		jumps, err := t.istioJumps(ctx, table)
		if err != nil {
			return nil, err
		}
		steps = append(steps, jumps...)
	}
	for _, c := range chains { // behind the jumps: while there is one its chain cannot be deleted
		steps = append(steps, c.step(unix.NFT_MSG_DELCHAIN, c.named(unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME)))
	}
	return steps, nil
}

// step is a request about what is at a location.
func (p location) step(kind uint16, attrs []byte) step {
	return step{what: "what istio-cni left in " + p.String(), message: request(kind, 0, append(nlconn.NetfilterHeader(p.family), attrs...))}
}

// named are attributes that name the location's table and chain.
func (p location) named(table, chain uint16) []byte {
	return nlconn.AppendText(nlconn.AppendText(nil, table, p.table), chain, p.chain)
}

// istioChains asks for istio-cni's chains by name: the app may have any number of its own beside them.
func (t *Table) istioChains(ctx context.Context, tables []location) (found []location, err error) {
	var asked []location
	var requests []nlconn.Message
	for _, table := range tables {
		for _, name := range istioChains {
			at := location{table.family, table.table, name}
			asked = append(asked, at)
			requests = append(requests, at.step(unix.NFT_MSG_GETCHAIN, at.named(unix.NFTA_CHAIN_TABLE, unix.NFTA_CHAIN_NAME)).message)
		}
	}
	if len(requests) == 0 {
		return nil, nil
	}
	err = t.conn.Gets(ctx, requests, func(i int, _ []byte, failure error) error {
		if failure == nil {
			found = append(found, asked[i])
		} else if !errors.Is(failure, unix.ENOENT) {
			return failure
		}
		return nil
	})
	return found, err
}

// istioJumps are the steps that delete the rules of a table that lead to istio-cni's chains, from whatever chain.
func (t *Table) istioJumps(ctx context.Context, table location) (steps []step, err error) {
	seen := 0
	which := nlconn.AppendText(nil, unix.NFTA_RULE_TABLE, table.table)
	err = t.each(ctx, unix.NFT_MSG_GETRULE, table.family, which, func(family uint8, a nlconn.Attrs) error {
		if seen++; seen > mostRules {
			return errEnough
		}
		at := location{family, a.Text(unix.NFTA_RULE_TABLE), a.Text(unix.NFTA_RULE_CHAIN)}
		if at.family != table.family || at.table != table.table {
			return nil // kernels that do not filter this dump
		}
		v, err := verdict(a)
		if err != nil || v == nil || !slices.Contains(istioChains, v.Chain) {
			return err
		}
		rule := nlconn.AppendAttr(at.named(unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN), unix.NFTA_RULE_HANDLE, a.Value(unix.NFTA_RULE_HANDLE))
		steps = append(steps, at.step(unix.NFT_MSG_DELRULE, rule))
		return nil
	})
	if errors.Is(err, errEnough) {
		err = nil // a jump that was not seen keeps its chain from being deleted
	}
	return steps, err
}

// verdict is the one that a rule ends with, nil if it ends otherwise.
func verdict(rule nlconn.Attrs) (*expr.Verdict, error) {
	list, err := nlconn.ParseAttrs(rule.Value(unix.NFTA_RULE_EXPRESSIONS))
	if err != nil || len(list) == 0 {
		return nil, err
	}
	last, err := decodeExpression(list[len(list)-1].Value)
	v, _ := last.(*expr.Verdict)
	return v, err
}
