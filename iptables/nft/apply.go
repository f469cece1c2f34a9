package nft

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// step is a message of a transaction with what an operator calls it, and what the kernel needs for it.
type step struct {
	what    string
	needs   string
	message nlconn.Message
}

// replacement takes the table away, if it is there, and puts the wanted one in its place.
func replacement(want ruleset.Ruleset) ([]step, error) {
	name := named(unix.NFTA_TABLE_NAME, ruleset.Table)
	table := "table inet " + ruleset.Table
	needs := "tables of family inet (CONFIG_NF_TABLES_INET)"
	steps := []step{
		// Created first, so that there is one to delete. Without flags: a dormant one must not be woken up for that.
		{table, needs, request(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, name)},
		{table, needs, request(unix.NFT_MSG_DELTABLE, 0, name)},
		{table, needs, request(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, name)},
	}
	for _, c := range want.Chains {
		payload, err := chainPayload(c)
		if err != nil {
			return nil, fmt.Errorf("chain %s: %w", c.Name, err)
		}
		steps = append(steps, step{"chain " + c.Name, chainNeeds(c),
			request(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, payload)})
		for i, r := range c.Rules {
			what := fmt.Sprintf("rule %d of chain %s (%s)", i+1, c.Name, r)
			payload, err := rulePayload(c.Name, r)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", what, err)
			}
			steps = append(steps, step{what, ruleNeeds(r),
				request(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, payload)})
		}
	}
	return steps, nil
}

func chainNeeds(c ruleset.Chain) string {
	switch c.Type {
	case ruleset.NAT:
		return "nat chains of family inet (module nft_chain_nat, Linux 5.2)"
	case ruleset.Route:
		return "route chains of family inet (Linux 5.2)"
	}
	return ""
}

// ruleNeeds names the modules that a rule's expressions come from, besides nf_tables itself.
func ruleNeeds(r ruleset.Rule) string {
	var needs []string
	switch r.Statement.(type) {
	case ruleset.Redirect:
		needs = append(needs, "redirects (module nft_redir, Linux 5.2)")
	case ruleset.SetConnectionMark, ruleset.RestoreMark, ruleset.SetZone:
		needs = append(needs, "connection tracking (module nft_ct)")
	}
	for _, m := range r.Matches {
		switch m.(type) {
		case ruleset.ConnectionMark, ruleset.Tracked:
			if len(needs) == 0 {
				needs = append(needs, "connection tracking (module nft_ct)")
			}
		}
	}
	return strings.Join(needs, ", ")
}

// run sends the steps as one transaction.
func (t *Table) run(ctx context.Context, steps []step) error {
	messages := make([]nlconn.Message, len(steps))
	for i := range steps {
		messages[i] = steps[i].message
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	i, err := t.conn.Batch(ctx, unix.NFNL_SUBSYS_NFTABLES, messages)
	if err == nil {
		return nil
	}
	if i < 0 {
		return fmt.Errorf("cannot change table inet %s: %w%s", ruleset.Table, err, remedy(err))
	}
	return fmt.Errorf("cannot change table inet %s: %s: %w%s", ruleset.Table, steps[i].what, err, steps[i].remedy(err))
}

// remedy explains an error about the transaction as a whole.
func remedy(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return ": CAP_NET_ADMIN is needed in the user namespace that owns the network namespace"
	case errors.Is(err, unix.EOPNOTSUPP):
		return ": the kernel has no nf_tables (module nf_tables)"
	}
	return ""
}

// remedy explains an error about one step.
func (s step) remedy(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return ": the table belongs to a process that set the flag owner; it goes when that process ends"
	case errors.Is(err, unix.E2BIG):
		return ": too many chains stand on that hook in this network namespace"
	case s.needs == "":
		return ""
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EPROTONOSUPPORT):
		return ": the kernel needs " + s.needs
	}
	return ""
}
