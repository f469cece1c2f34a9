package ruleset

import (
	"fmt"
	"strings"
)

// chainPrefix begins the names of our chains where tables are shared with everybody else.
const chainPrefix = "FAIRLEAD_"

// IPTables is the ruleset as `iptables-restore --noflush` takes it.
//
// Our chains are called from the top of the built-in ones, which is as near to our nft priorities as iptables comes: what the
// app puts on top of them later stands before us. Applied twice, the calls are doubled, our chains are not. It fails for
// what was read from a kernel and Build never makes.
func (rs Ruleset) IPTables() (string, error) { return rs.restore(false) }

// IP6Tables is IPTables for ip6tables-restore.
func (rs Ruleset) IP6Tables() (string, error) { return rs.restore(true) }

func (rs Ruleset) restore(ip6 bool) (string, error) {
	if len(rs.Foreign) > 0 {
		return "", fmt.Errorf("cannot write for iptables: %s", printable(rs.Foreign[0]))
	}
	var b strings.Builder
	for _, table := range []string{"raw", "mangle", "nat", "filter"} {
		var declared, called, rules strings.Builder
		place := map[Hook]int{} // of the next call in the built-in chain
		for _, c := range rs.Chains {
			home, err := c.table()
			if err != nil {
				return "", err
			}
			if home != table {
				continue
			}
			name := chainPrefix + strings.ToUpper(strings.ReplaceAll(c.Name, "-", "_"))
			place[c.Hook]++
			fmt.Fprintf(&declared, ":%s - [0:0]\n", name)
			fmt.Fprintf(&called, "-I %s %d -j %s\n", strings.ToUpper(string(c.Hook)), place[c.Hook], name)
			for _, r := range c.Rules {
				text, concerned, err := r.restore(ip6)
				if err != nil {
					return "", fmt.Errorf("cannot write chain %s for iptables: %w", printable(c.Name), err)
				}
				if concerned {
					fmt.Fprintf(&rules, "-A %s %s\n", name, text)
				}
			}
		}
		if declared.Len() > 0 {
			fmt.Fprintf(&b, "*%s\n%s%s%sCOMMIT\n", table, declared.String(), called.String(), rules.String())
		}
	}
	return b.String(), nil
}

// table is iptables' table whose chain on the same hook stands nearest. Its filter has no prerouting: there the guard
// stands in mangle, between conntrack and nat as well.
func (c Chain) table() (string, error) {
	switch {
	case c.Hook != Prerouting && c.Hook != Output || c.Policy != PolicyAccept:
	case c.Type == NAT:
		return "nat", nil
	case c.Type == Route:
		return "mangle", nil
	case c.Type == Filter && c.Priority == rawPriority:
		return "raw", nil
	case c.Type == Filter && (c.Priority == manglePriority || c.Hook == Prerouting):
		return "mangle", nil
	case c.Type == Filter:
		return "filter", nil
	}
	return "", fmt.Errorf("cannot write chain %s for iptables: `%s`", printable(c.Name), c.head())
}

// restore is the rule in iptables' words; it concerns only one family if it names an address.
func (r Rule) restore(ip6 bool) (text string, concerned bool, err error) {
	protocol := Protocol(0)
	var parts []string
	for _, m := range r.Matches {
		switch m := m.(type) {
		case Addr:
			if m.Addr.Is6() != ip6 {
				return "", false, nil
			}
		case L4:
			protocol = m.Protocol
		case Port:
			protocol = m.Protocol
		case FirstSYN, Reset, GoingOn:
			protocol = TCP
		}
		option := restoreMatch(m)
		if option == "" {
			return "", false, fmt.Errorf("it has a rule that is not ours: `%s`", r)
		}
		parts = append(parts, option)
	}
	statement := restoreStatement(r.Statement)
	if statement == "" {
		return "", false, fmt.Errorf("it has a rule that is not ours: `%s`", r)
	}
	if protocol != 0 {
		parts = append([]string{fmt.Sprintf("-p %s", protocol)}, parts...)
	}
	if r.Comment != "" {
		parts = append(parts, fmt.Sprintf("-m comment --comment %q", strings.ReplaceAll(printable(r.Comment), `"`, `'`)))
	}
	var words []string
	for _, part := range append(parts, statement) {
		if part != said {
			words = append(words, part)
		}
	}
	return strings.Join(words, " "), true, nil
}

// said is a condition that the rule's -p has expressed.
const said = "-"

func restoreMatch(m Match) string {
	switch m := m.(type) {
	case InInterface:
		return fmt.Sprintf(`%s-i %s`, negated(m.Not), m.Name)
	case OutInterface:
		return fmt.Sprintf(`%s-o %s`, negated(m.Not), m.Name)
	case Addr:
		if m.Side == Source {
			return fmt.Sprintf("%s-s %s", negated(m.Not), m.Addr)
		}
		return fmt.Sprintf("%s-d %s", negated(m.Not), m.Addr)
	case L4:
		return said
	case Port:
		if m.Side == Source {
			return fmt.Sprintf("-m %s %s--sport %d", m.Protocol, negated(m.Not), m.Port)
		}
		return fmt.Sprintf("-m %s %s--dport %d", m.Protocol, negated(m.Not), m.Port)
	case PacketMark:
		return fmt.Sprintf("-m mark %s--mark %#x/%#x", negated(m.Not), m.Value, m.Mask)
	case ConnectionMark:
		return fmt.Sprintf("-m connmark %s--mark %#x/%#x", negated(m.Not), m.Value, m.Mask)
	case FirstSYN:
		return "-m tcp --tcp-flags FIN,SYN,RST,ACK SYN"
	case Reset:
		return fmt.Sprintf("-m tcp --tcp-flags %s %[1]s", "RST")
	case GoingOn:
		return "-m tcp ! --tcp-flags RST,ACK NONE"
	case Tracked:
		return "-m conntrack ! --ctstate UNTRACKED"
	}
	return ""
}

// restoreStatement says RETURN for accept: as in a base chain of nft, the packet goes on to what others have put on the
// hook.
func restoreStatement(s Statement) string {
	switch s := s.(type) {
	case Accept:
		return "-j RETURN"
	case Drop:
		return "-j DROP"
	case Redirect:
		return fmt.Sprintf("-j REDIRECT --to-ports %d", s.Port)
	case SetConnectionMark:
		return fmt.Sprintf("-j CONNMARK --set-xmark %#x/%#x", s.Value, s.Mask)
	case RestoreMark:
		return "-j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff"
	case SetZone:
		return fmt.Sprintf("-j CT --zone %d", s.Zone)
	}
	return ""
}

func negated(not bool) string {
	if not {
		return "! "
	}
	return ""
}
