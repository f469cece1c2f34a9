package ruleset

import (
	"fmt"
	"strconv"
	"strings"
)

// String is the table in nft's syntax: what `nft -f` takes, and what `nft list table` of nft 1.0.6 prints back, byte for
// byte.
func (rs Ruleset) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", Table)
	for _, f := range rs.Foreign {
		fmt.Fprintf(&b, "\t# %s\n", printable(f))
	}
	for i, c := range rs.Chains {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "\tchain %s {\n\t\t%s\n", printable(c.Name), c.head())
		for _, r := range c.Rules {
			fmt.Fprintf(&b, "\t\t%s\n", r)
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// head is the line that puts the chain on its hook.
func (c Chain) head() string {
	if c.Hook == "" {
		return "# on no hook"
	}
	return fmt.Sprintf("type %s hook %s priority %s; policy %s;",
		c.Type, c.Hook, priorityText(c.Priority, c.Hook), c.Policy)
}

// priorityText names a priority as nft does: from the nearest standard one, if one is near and known on that hook.
func priorityText(p int32, h Hook) string {
	standard := []struct {
		name     string
		priority int32
		only     Hook
	}{
		{"raw", -300, ""}, {"mangle", -150, ""}, {"dstnat", -100, Prerouting},
		{"filter", 0, ""}, {"security", 50, ""}, {"srcnat", 100, "postrouting"},
	}
	const near = 10
	for _, s := range standard {
		d := int64(p) - int64(s.priority)
		switch {
		case s.only != "" && s.only != h, d < -near, d > near:
		case d == 0:
			return s.name
		case d < 0:
			return fmt.Sprintf("%s - %d", s.name, -d)
		default:
			return fmt.Sprintf("%s + %d", s.name, d)
		}
	}
	return strconv.Itoa(int(p))
}

func (r Rule) String() string {
	var parts []string
	for _, m := range r.Matches {
		parts = append(parts, m.text())
	}
	if r.Statement != nil {
		parts = append(parts, r.Statement.text())
	}
	if r.Comment != "" {
		parts = append(parts, `comment "`+strings.ReplaceAll(printable(r.Comment), `"`, `'`)+`"`)
	}
	return strings.Join(parts, " ")
}

// printable keeps what somebody else wrote into the kernel from breaking a line or steering a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
}

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	}
	return strconv.Itoa(int(p))
}

// either is nft's short form of (in)equality: nothing for ==.
func either(not bool) string {
	if not {
		return "!= "
	}
	return ""
}

func (m InInterface) text() string  { return interfaceText("iif", m.Name, m.Not) }
func (m OutInterface) text() string { return interfaceText("oif", m.Name, m.Not) }

// interfaceText compares the interface's number, as nft does by that key, or its name.
func interfaceText(key, name string, not bool) string {
	if name != Loopback {
		key += "name"
	}
	return fmt.Sprintf(`%s %s"%s"`, key, either(not), strings.ReplaceAll(printable(name), `"`, `'`))
}

func (m Addr) text() string {
	protocol, side := "ip", "saddr"
	if m.Addr.Is6() {
		protocol = "ip6"
	}
	if m.Side == Destination {
		side = "daddr"
	}
	return fmt.Sprintf("%s %s %s%s", protocol, side, either(m.Not), m.Addr)
}

func (m L4) text() string { return "meta l4proto " + m.Protocol.String() }

func (m Port) text() string {
	side := "sport"
	if m.Side == Destination {
		side = "dport"
	}
	return fmt.Sprintf("%s %s %s%d", m.Protocol, side, either(m.Not), m.Port)
}

func (m PacketMark) text() string     { return markText("meta", m.Value, m.Mask, m.Not) }
func (m ConnectionMark) text() string { return markText("ct", m.Value, m.Mask, m.Not) }

func markText(of string, value, mask uint32, not bool) string {
	op := "=="
	if not {
		op = "!="
	}
	return fmt.Sprintf("%s mark & 0x%08x %s 0x%08x", of, mask, op, value)
}

func (FirstSYN) text() string  { return "tcp flags syn / fin,syn,rst,ack" }
func (Reset) text() string     { return "tcp flags rst" }
func (GoingOn) text() string   { return "tcp flags rst,ack" }
func (Tracked) text() string   { return "ct state != untracked" }
func (m Foreign) text() string { return printable(m.Text) }

func (Accept) text() string     { return "accept" }
func (Drop) text() string       { return "drop" }
func (s Redirect) text() string { return fmt.Sprintf("redirect to :%d", s.Port) }

// text writes the mask as nft 1.0.6 does, with the bits in it that are set anyhow.
func (s SetConnectionMark) text() string {
	return fmt.Sprintf("ct mark set ct mark & 0x%08x | 0x%08x", ^s.Mask|s.Value, s.Value)
}

func (RestoreMark) text() string { return "meta mark set ct mark" }
func (s SetZone) text() string   { return fmt.Sprintf("ct zone set %d", s.Zone) }
