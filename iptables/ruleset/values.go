package ruleset

import (
	"crypto/sha256"
	"encoding/hex"
	"net/netip"
	"slices"
)

// Ruleset is everything the table of family inet named Table holds, in the kernel's order.
//
// A ruleset from Build holds chains only. One that was read from a kernel may hold more: see Foreign.
type Ruleset struct {
	Chains []Chain
	// Foreign describes what a reader found in the table besides chains (a set, a flag of the table, …).
	Foreign []string
}

// Chain is a base chain: it stands on a hook of its own and needs no jump.
type Chain struct {
	Name     string
	Type     ChainType
	Hook     Hook
	Priority int32
	Policy   Policy
	Rules    []Rule
}

type (
	// ChainType is the kernel's word for what a base chain may do.
	ChainType string
	// Hook is the place on a packet's way where a chain stands.
	Hook string
	// Policy is what becomes of a packet that no rule of the chain decided on.
	Policy string
)

// The chain types, hooks and policies that Build uses. A reader may meet others.
const (
	Filter ChainType = "filter"
	NAT    ChainType = "nat"
	Route  ChainType = "route"

	Prerouting Hook = "prerouting"
	Output     Hook = "output"

	PolicyAccept Policy = "accept"
)

// Rule does Statement to the packets that all of Matches hold for.
type Rule struct {
	Matches   []Match
	Statement Statement // nil only in a rule that was read and is not ours
	Comment   string
}

// Equal says whether two rules do the same and say the same about it.
func (r Rule) Equal(o Rule) bool {
	return r.Statement == o.Statement && r.Comment == o.Comment && slices.Equal(r.Matches, o.Matches)
}

// Match is one condition. The set is closed; every value is comparable.
type Match interface {
	text() string
	match()
}

// Statement is what a rule does. The set is closed; every value is comparable.
type Statement interface {
	text() string
	statement()
}

// Protocol is a transport protocol.
type Protocol uint8

// The protocols that are captured, by their IP protocol numbers.
const (
	TCP Protocol = 6
	UDP Protocol = 17
)

// Side says which end of a packet an address or a port belongs to.
type Side uint8

// The two sides of a packet.
const (
	Source Side = iota
	Destination
)

// Loopback is the name of the interface that every namespace has, and LoopbackIndex its number, in all of them.
const (
	Loopback      = "lo"
	LoopbackIndex = 1
)

// The conditions.
type (
	// InInterface holds for packets that came in on the interface of that exact name (no wildcards). Loopback stands for the
	// interface that is born with a namespace, whatever it is called by now: somebody may give another its name.
	InInterface struct {
		Name string
		Not  bool
	}
	// OutInterface is InInterface for the interface that a packet is about to leave by.
	OutInterface struct {
		Name string
		Not  bool
	}
	// Addr holds for packets of the address's family only, also when it is negated.
	Addr struct {
		Side Side
		Addr netip.Addr
		Not  bool
	}
	// L4 holds for a transport protocol, behind whatever IPv6 extension headers.
	L4 struct{ Protocol Protocol }
	// Port holds for packets of the protocol only, also when it is negated.
	Port struct {
		Protocol Protocol
		Side     Side
		Port     uint16
		Not      bool
	}
	// PacketMark compares the packet's mark under a mask.
	PacketMark struct {
		Value, Mask uint32
		Not         bool
	}
	// ConnectionMark compares the mark of the packet's conntrack entry under a mask; untracked packets have mark 0 and
	// never match, negated or not.
	ConnectionMark struct {
		Value, Mask uint32
		Not         bool
	}
	// FirstSYN holds for the first packet of a TCP connection. Flags that say nothing about that (ECN's) are ignored.
	FirstSYN struct{}
	// Reset holds for a TCP packet with RST.
	Reset struct{}
	// GoingOn holds for a TCP packet with RST or ACK: every one but the first of a connection.
	GoingOn struct{}
	// Tracked holds for packets that no rule exempted from connection tracking.
	Tracked struct{}
	// Foreign stands for what a reader found in a rule and no other value can express.
	Foreign struct{ Text string }
)

// The statements.
type (
	// Accept ends the chain for the packet; chains on later hooks or priorities still see it.
	Accept struct{}
	// Drop ends the packet.
	Drop struct{}
	// Redirect sends the connection to a port of this network namespace.
	Redirect struct{ Port uint16 }
	// SetConnectionMark sets the bits under the mask, and leaves the others.
	SetConnectionMark struct{ Value, Mask uint32 }
	// RestoreMark gives the packet its connection's mark.
	RestoreMark struct{}
	// SetZone has the packet tracked in a conntrack zone. It must stand before conntrack.
	SetZone struct{ Zone uint16 }
)

func (InInterface) match()    {}
func (OutInterface) match()   {}
func (Addr) match()           {}
func (L4) match()             {}
func (Port) match()           {}
func (PacketMark) match()     {}
func (ConnectionMark) match() {}
func (FirstSYN) match()       {}
func (Reset) match()          {}
func (GoingOn) match()        {}
func (Tracked) match()        {}
func (Foreign) match()        {}

func (Accept) statement()            {}
func (Drop) statement()              {}
func (Redirect) statement()          {}
func (SetConnectionMark) statement() {}
func (RestoreMark) statement()       {}
func (SetZone) statement()           {}

// Fingerprint names the ruleset: equal text, equal fingerprint, whichever program and machine made it.
func (rs Ruleset) Fingerprint() string {
	sum := sha256.Sum256([]byte(rs.String()))
	return hex.EncodeToString(sum[:8])
}
