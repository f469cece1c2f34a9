package judge

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// tag is the traffic class of what the proxy sends, but for its last two bits, which are
// the network's (ECN).
const (
	tag     = 0x2e << 2
	tagMask = 0xfc
)

// A Segment is one that counts: it begins a connection, or carries something.
type Segment struct {
	Time     time.Time
	From, To netip.AddrPort
	What     string
}

// The kinds of segments.
const (
	syn        = "a SYN"
	synAck     = "a SYN that answers"
	payload    = "payload"
	unreadable = "a part" // of a packet; its ports are not known
)

// parse reads an IP packet, of which the end may be missing. It is ok if it holds a
// segment that counts.
func parse(b []byte) (s Segment, tagged, ok bool) {
	if len(b) == 0 {
		return s, false, false
	}
	switch b[0] >> 4 {
	case 4:
		return parse4(b)
	case 6:
		return parse6(b)
	}
	return s, false, false
}

func parse4(b []byte) (s Segment, tagged, ok bool) {
	if len(b) < 20 || b[9] != unix.IPPROTO_TCP {
		return s, false, false
	}
	const offset = 0x1fff // of a fragment, the flags masked away
	from, to := netip.AddrFrom4([4]byte(b[12:16])), netip.AddrFrom4([4]byte(b[16:20]))
	header := int(b[0]&0xf) * 4
	s, ok = parseTCP(b, header, int(binary.BigEndian.Uint16(b[2:]))-header, binary.BigEndian.Uint16(b[6:])&offset != 0, from, to)
	return s, b[1]&tagMask == tag, ok
}

// extensions are the headers that may stand between IPv6's and TCP's.
var extensions = []byte{unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_DSTOPTS, unix.IPPROTO_FRAGMENT}

func parse6(b []byte) (s Segment, tagged, ok bool) {
	const header = 40
	if len(b) < header {
		return s, false, false
	}
	from, to := netip.AddrFrom16([16]byte(b[8:24])), netip.AddrFrom16([16]byte(b[24:40]))
	next, at, rest := b[6], header, false
	for next != unix.IPPROTO_TCP {
		if !slices.Contains(extensions, next) {
			return s, false, false
		}
		if rest = rest || len(b) < at+8; rest {
			break
		}
		size := 8 + int(b[at+1])*8
		if next == unix.IPPROTO_FRAGMENT {
			size, rest = 8, binary.BigEndian.Uint16(b[at+2:])>>3 != 0
		}
		next, at = b[at], at+size
	}
	s, ok = parseTCP(b, at, header+int(binary.BigEndian.Uint16(b[4:]))-at, rest, from, to)
	return s, byte(binary.BigEndian.Uint16(b)>>4)&tagMask == tag, ok
}

// parseTCP reads the segment that is at a place in a packet, unless there is only the rest
// of one. size is its length by the IP header's word, which says 0 of what is too long.
func parseTCP(b []byte, at, size int, rest bool, from, to netip.Addr) (s Segment, ok bool) {
	s = Segment{From: netip.AddrPortFrom(from, 0), To: netip.AddrPortFrom(to, 0), What: unreadable}
	const header = 20
	if rest || len(b) < at+header {
		return s, true
	}
	b = b[at:]
	s.From = netip.AddrPortFrom(from, binary.BigEndian.Uint16(b))
	s.To = netip.AddrPortFrom(to, binary.BigEndian.Uint16(b[2:]))
	const (
		flagSYN = 1 << 1
		flagACK = 1 << 4
	)
	switch flags := b[13]; {
	case flags&flagSYN != 0 && flags&flagACK != 0:
		s.What = synAck
	case flags&flagSYN != 0:
		s.What = syn
	case size < header || size > int(b[12]>>4)*4:
		s.What = payload
	default:
		return s, false
	}
	return s, true
}
