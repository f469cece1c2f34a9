package route

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// What linux/fib_rules.h calls these.
const (
	fraPriority          = 6
	fraFwmark            = 10
	fraSuppressPrefixlen = 14
	fraTable             = 15
	fraFwmask            = 16
	fraPad               = 18
	fraProtocol          = 21

	toTable = 1 // FR_ACT_TO_TBL

	ruleHeader = 12 // struct fib_rule_hdr
)

// A rule is one entry of a family's list of rules.
type rule struct {
	priority, mark, mask, table uint32
	plain                       bool   // it says no more than that, and looks up the table
	message                     []byte // all of it, as the kernel gave it
}

var wantedRule = rule{
	priority: ruleset.RoutePriority,
	mark:     ruleset.ConnMark,
	mask:     ruleset.MarkMask,
	table:    ruleset.RouteTable,
	plain:    true,
}

func (r rule) String() string {
	text := fmt.Sprintf("%d: fwmark %#x/%#x lookup %d", r.priority, r.mark, r.mask, r.table)
	if !r.plain {
		text += " with other conditions"
	}
	return text
}

// exact says whether the rule is ours as it should be.
func (r rule) exact() bool {
	return r.plain && r.priority == wantedRule.priority && r.table == wantedRule.table &&
		r.mark == wantedRule.mark && r.mask == wantedRule.mask
}

// ours says whether the rule is ours, if perhaps changed.
func (r rule) ours() bool {
	agree := 0
	for _, same := range []bool{r.mark == wantedRule.mark, r.table == wantedRule.table, r.priority == wantedRule.priority} {
		if same {
			agree++
		}
	}
	return agree >= 2
}

// takes says whether the rule, standing before ours, may take the packets that ours
// is for.
func (r rule) takes() bool {
	return r.table != unix.RT_TABLE_LOCAL && wantedRule.mark&r.mask == r.mark
}

// rules lists a family's rules in the order the kernel tries them.
func (r *Router) rules(ctx context.Context, f family) ([]rule, error) {
	request := make([]byte, ruleHeader)
	request[0] = byte(f)
	rules, err := dump(ctx, r, unix.RTM_GETRULE, request, func(reply []byte) (rule, bool, error) {
		rule, err := parseRule(reply)
		return rule, len(reply) > 0 && reply[0] == byte(f), err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list rules: %w", err)
	}
	return rules, nil
}

func parseRule(message []byte) (rule, error) {
	if len(message) < ruleHeader {
		return rule{}, fmt.Errorf("a rule of %d bytes", len(message))
	}
	r := rule{message: slices.Clone(message), table: uint32(message[4])}
	dstLen, srcLen, tos, action := message[1], message[2], message[3], message[7]
	flags := binary.NativeEndian.Uint32(message[8:])
	r.plain = dstLen == 0 && srcLen == 0 && tos == 0 && action == toTable && flags == 0
	attrs, err := nlconn.ParseAttrs(message[ruleHeader:])
	if err != nil {
		return rule{}, fmt.Errorf("a rule: %w", err)
	}
	for _, a := range attrs {
		var err error
		switch a.Kind {
		case fraPriority:
			r.priority, err = a.Uint32()
		case fraFwmark:
			r.mark, err = a.Uint32()
		case fraFwmask:
			r.mask, err = a.Uint32()
		case fraTable:
			r.table, err = a.Uint32()
		case fraSuppressPrefixlen:
			var length uint32
			length, err = a.Uint32()
			r.plain = r.plain && int32(length) == -1 // none
		case fraPad, fraProtocol:
		default:
			r.plain = false
		}
		if err != nil {
			return rule{}, fmt.Errorf("a rule: %w", err)
		}
	}
	return r, nil
}

// applyRule leaves exactly count, one or none, of our rule. It looks again until it
// has seen that: a deletion by what a rule says may hit another that says the same
// and more.
func (r *Router) applyRule(ctx context.Context, f family, count int) error {
	for range 5 {
		rules, err := r.rules(ctx, f)
		if err != nil {
			return err
		}
		missing, surplus := compare(rules, count)
		if missing {
			if err := r.addRule(ctx, f); err != nil {
				return err
			}
		}
		for _, extra := range surplus {
			err := r.conn.Request(ctx, unix.RTM_DELRULE, unix.NLM_F_ACK, extra.message, nil)
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return fmt.Errorf("cannot delete rule %s: %w", extra, err)
			}
		}
		if !missing && len(surplus) == 0 {
			return nil
		}
	}
	return fmt.Errorf("somebody else keeps changing the rule %s", wantedRule)
}

// compare finds whether our rule is missing, and the rules of ours that are too many.
func compare(rules []rule, count int) (missing bool, surplus []rule) {
	for _, rule := range rules {
		switch {
		case rule.exact() && count > 0:
			count--
		case rule.ours():
			surplus = append(surplus, rule)
		}
	}
	return count > 0, surplus
}

func compareRules(rules []rule, wanted bool) Report {
	var report Report
	count := 0
	if wanted {
		count = 1
	}
	missing, surplus := compare(rules, count)
	if missing {
		report.Drift = append(report.Drift, fmt.Sprintf("rule %s is missing", wantedRule))
	}
	for _, rule := range surplus {
		report.Drift = append(report.Drift, fmt.Sprintf("rule %s should not be there", rule))
	}
	if !wanted {
		return report
	}
	for _, rule := range rules {
		if rule.exact() || rule.priority > wantedRule.priority {
			break
		}
		if rule.takes() && !rule.ours() {
			report.Foreign = append(report.Foreign, fmt.Sprintf("rule %s stands before ours", rule))
		}
	}
	return report
}

func (r *Router) addRule(ctx context.Context, f family) error {
	request := make([]byte, ruleHeader)
	request[0], request[4], request[7] = byte(f), ruleset.RouteTable, toTable
	request = nlconn.AppendUint32(request, fraPriority, wantedRule.priority)
	request = nlconn.AppendUint32(request, fraFwmark, wantedRule.mark)
	request = nlconn.AppendUint32(request, fraFwmask, wantedRule.mask)
	const flags = unix.NLM_F_ACK | unix.NLM_F_CREATE | unix.NLM_F_EXCL
	err := r.conn.Request(ctx, unix.RTM_NEWRULE, flags, request, nil)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("cannot add rule %s: %w", wantedRule, err)
	}
	return nil
}
