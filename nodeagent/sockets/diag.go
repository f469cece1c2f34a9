package sockets

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
)

// What linux/sock_diag.h, linux/inet_diag.h and net/tcp_states.h call these.
const (
	tcpSockets       = 18 // TCPDIAG_GETSOCK: of both families
	sockDiagByFamily = 20
	sockDestroy      = 21

	attrMark     = 15 // INET_DIAG_MARK
	attrBytecode = 1  // INET_DIAG_REQ_BYTECODE
	opSourceGE   = 2  // INET_DIAG_BC_S_GE
	opSourceLE   = 3  // INET_DIAG_BC_S_LE

	requestSize    = 56 // struct inet_diag_req_v2
	tcpRequestSize = 60 // struct inet_diag_req
	replySize      = 72 // struct inet_diag_msg

	stateEstablished = 1
	stateSynSent     = 2
	stateSynRecv     = 3
	stateFinWait1    = 4
	stateFinWait2    = 5
	stateCloseWait   = 8
	stateLastAck     = 9
	stateListen      = 10
	stateClosing     = 11
)

// carriedStates are the states, as bits, of a connection that is not over.
const carriedStates uint32 = 1<<stateEstablished | 1<<stateSynSent | 1<<stateSynRecv | 1<<stateFinWait1 |
	1<<stateFinWait2 | 1<<stateCloseWait | 1<<stateLastAck | 1<<stateClosing

// request is a struct inet_diag_req_v2, to be completed with a socket's address.
func request(family, protocol uint8, states uint32) []byte {
	b := make([]byte, requestSize)
	b[0], b[1] = family, protocol
	binary.NativeEndian.PutUint32(b[4:], states)
	return b
}

// exact asks for the socket that a packet to local, from the unspecified address and
// port 0, would reach.
func exact(protocol uint8, local netip.AddrPort) []byte {
	family := uint8(unix.AF_INET6)
	if local.Addr().Is4() {
		family = unix.AF_INET
	}
	b := request(family, protocol, ^uint32(0))
	port, addr := b[8:10], b[12:28]
	if protocol == unix.IPPROTO_UDP {
		// Here the kernel takes source and destination for the packet's, not the socket's.
		port, addr = b[10:12], b[28:44]
	}
	binary.BigEndian.PutUint16(port, local.Port())
	copy(addr, local.Addr().AsSlice())
	for i := 48; i < requestSize; i++ {
		b[i] = 0xff // any cookie
	}
	return b
}

// exactly asks about one socket and no other.
func (s socket) exactly() []byte {
	b := request(s.family, unix.IPPROTO_TCP, ^uint32(0))
	binary.BigEndian.PutUint16(b[8:], s.local.Port())
	binary.BigEndian.PutUint16(b[10:], s.remote.Port())
	for at, addr := range map[int]netip.Addr{12: s.local.Addr(), 28: s.remote.Addr()} {
		if s.family == unix.AF_INET {
			copy(b[at:], addr.AsSlice())
		} else {
			a := addr.As16()
			copy(b[at:], a[:])
		}
	}
	binary.NativeEndian.PutUint32(b[44:], s.device)
	binary.NativeEndian.PutUint64(b[48:], s.cookie)
	return b
}

// listTCP asks for all TCP sockets in some of the states, in one walk of the kernel's
// tables where it takes one for each family otherwise.
func listTCP(states uint32) []byte {
	b := make([]byte, tcpRequestSize)
	binary.NativeEndian.PutUint32(b[52:], states)
	return b
}

// list asks for all sockets in some of the states that pass the filter, if there is
// one.
func list(family, protocol uint8, states uint32, filter []byte) []byte {
	b := request(family, protocol, states)
	if filter != nil {
		b = nlconn.AppendAttr(b, attrBytecode, filter)
	}
	return b
}

// localPorts is a filter, in the kernel's bytecode: low <= local port <= high. Each
// comparison takes two operations of 4 bytes; if it fails, it jumps beyond the end,
// which rejects the socket.
func localPorts(low, high uint16) []byte {
	const each, size = 8, 16
	var b []byte
	for _, comparison := range []struct {
		op   uint8
		port uint16
	}{{opSourceGE, low}, {opSourceLE, high}} {
		reject := uint16(size - len(b) + 4)
		b = append(b, comparison.op, each)
		b = binary.NativeEndian.AppendUint16(b, reject)
		b = append(b, 0, 0)
		b = binary.NativeEndian.AppendUint16(b, comparison.port)
	}
	return b
}

// A socket is what is used of a reply, a struct inet_diag_msg and its attributes.
type socket struct {
	family        uint8
	state         uint8
	local, remote netip.AddrPort // IPv4 over a socket of IPv6 is IPv4
	device        uint32         // that it is bound to
	cookie        uint64         // no other socket ever has the same
	inode         uint32         // 0: no process has it
	mark          uint32
	hasMark       bool // the kernel has told the mark
}

// parse reads a reply without its attributes.
func parse(reply []byte) (socket, error) {
	if len(reply) < replySize {
		return socket{}, fmt.Errorf("sock_diag reply of %d bytes, less than %d", len(reply), replySize)
	}
	s := socket{
		family: reply[0],
		state:  reply[1],
		device: binary.NativeEndian.Uint32(reply[40:]),
		cookie: binary.NativeEndian.Uint64(reply[44:]),
		inode:  binary.NativeEndian.Uint32(reply[68:]),
	}
	if s.state > 31 {
		return socket{}, fmt.Errorf("sock_diag reply with socket state %d", s.state)
	}
	var local, remote netip.Addr
	switch s.family {
	case unix.AF_INET:
		local, remote = netip.AddrFrom4([4]byte(reply[8:])), netip.AddrFrom4([4]byte(reply[24:]))
	case unix.AF_INET6:
		local, remote = netip.AddrFrom16([16]byte(reply[8:])).Unmap(), netip.AddrFrom16([16]byte(reply[24:])).Unmap()
	default:
		return socket{}, fmt.Errorf("sock_diag reply of family %d", s.family)
	}
	s.local = netip.AddrPortFrom(local, binary.BigEndian.Uint16(reply[4:]))
	s.remote = netip.AddrPortFrom(remote, binary.BigEndian.Uint16(reply[6:]))
	return s, nil
}

// parseMarked reads a reply and the mark that comes with it.
func parseMarked(reply []byte) (socket, error) {
	s, err := parse(reply)
	if err != nil {
		return socket{}, err
	}
	attrs := reply[replySize:]
	for len(attrs) >= unix.SizeofNlAttr { // not by ParseAttrs: there are thousands of replies
		size := int(binary.NativeEndian.Uint16(attrs))
		if size < unix.SizeofNlAttr || size > len(attrs) {
			return socket{}, fmt.Errorf("sock_diag reply with an attribute of %d bytes, of %d", size, len(attrs))
		}
		if kind := binary.NativeEndian.Uint16(attrs[2:]); kind == attrMark && size == unix.SizeofNlAttr+4 {
			s.mark, s.hasMark = binary.NativeEndian.Uint32(attrs[unix.SizeofNlAttr:]), true
		}
		attrs = attrs[min((size+3)&^3, len(attrs)):]
	}
	return s, nil
}
