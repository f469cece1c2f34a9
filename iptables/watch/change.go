package watch

import (
	"encoding/binary"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
)

// What is a set of what may have changed.
type What uint8

// What a Change may be about.
const (
	Ruleset   What = 1 << iota // the nftables ruleset, of any table
	Rules                      // ip rules, as all below of IPv4 or IPv6
	Routes                     // routes of any table
	Links                      // interfaces, as lo going down
	Addresses                  // addresses of interfaces, as ::1
)

// allOfRoute is all that rtnetlink tells.
const allOfRoute = Rules | Routes | Links | Addresses

var whatNames = []string{"ruleset", "ip rules", "routes", "links", "addresses"}

// String lists what is in the set.
func (w What) String() string {
	var names []string
	for i, name := range whatNames {
		if w&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// A Change is what may have changed since the last one.
type Change struct {
	What What
	// By are the latest processes that changed the ruleset, the last one last. The
	// kernel says it of no other change, and notifications may be lost.
	By []Process
}

// maxProcesses is how many processes a Change names.
const maxProcesses = 4

// A Process is one that committed a transaction of nftables.
type Process struct {
	// PID is that of the thread, as seen from the machine's first PID namespace: for a
	// program of several threads, such as a Go program, not that of the process.
	PID  int
	Name string
	// Port is the number of its netlink socket: that of an nlconn.Conn is known.
	Port uint32
}

func (c *Change) by(p Process) {
	if i := slices.Index(c.By, p); i >= 0 {
		c.By = slices.Delete(c.By, i, i+1)
	}
	if len(c.By) == maxProcesses {
		c.By = slices.Delete(c.By, 0, 1)
	}
	c.By = append(c.By, p)
}

// A message is the begin of a notification.
type message struct {
	kind    uint16
	port    uint32
	payload []byte
}

// parse reads the begin of a datagram of size bytes, which should be one message.
func parse(begin []byte, size int) (message, bool) {
	if len(begin) < unix.SizeofNlMsghdr {
		return message{}, false
	}
	said := int(binary.NativeEndian.Uint32(begin))
	if said < unix.SizeofNlMsghdr || said > size || size-said >= unix.NLMSG_ALIGNTO {
		return message{}, false
	}
	return message{
		kind:    binary.NativeEndian.Uint16(begin[4:]),
		port:    binary.NativeEndian.Uint32(begin[12:]),
		payload: begin[unix.SizeofNlMsghdr:min(said, len(begin))],
	}, true
}

func parseRoute(c *Change, m message) {
	switch m.kind {
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		c.What |= Rules
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		c.What |= Routes
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		c.What |= Links
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		c.What |= Addresses
	default:
		c.What |= allOfRoute
	}
}

const newGeneration = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_NEWGEN

// parseGeneration reads who made a new ruleset. Whatever it is, one has been made.
func parseGeneration(c *Change, m message) {
	c.What |= Ruleset
	if m.kind != newGeneration || len(m.payload) < nlconn.NetfilterHeaderSize {
		return
	}
	attrs, err := nlconn.ParseAttrs(m.payload[nlconn.NetfilterHeaderSize:])
	if err != nil {
		return
	}
	pid := attrs.Value(unix.NFTA_GEN_PROC_PID)
	if len(pid) != 4 {
		return // Linux before 4.12 does not say
	}
	c.by(Process{
		PID:  int(binary.BigEndian.Uint32(pid)),
		Name: printable(attrs.Text(unix.NFTA_GEN_PROC_NAME)),
		Port: m.port,
	})
}

// printable replaces what would not print: a process can give itself any name.
func printable(name string) string {
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, name)
}
