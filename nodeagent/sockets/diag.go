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
	sockDiagByFamily = 20

	attrBytecode = 1 // INET_DIAG_REQ_BYTECODE
	opSourceGE   = 2 // INET_DIAG_BC_S_GE
	opSourceLE   = 3 // INET_DIAG_BC_S_LE

	requestSize = 56 // struct inet_diag_req_v2
	replySize   = 72 // struct inet_diag_msg

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

// A socket is what is used of a reply, a struct inet_diag_msg.
type socket struct {
	state     uint8
	localPort uint16
	inode     uint32 // 0: no process has it
}

func parse(reply []byte) (socket, error) {
	if len(reply) < replySize {
		return socket{}, fmt.Errorf("sock_diag reply of %d bytes, less than %d", len(reply), replySize)
	}
	s := socket{
		state:     reply[1],
		localPort: binary.BigEndian.Uint16(reply[4:]),
		inode:     binary.NativeEndian.Uint32(reply[68:]),
	}
	if s.state > 31 {
		return socket{}, fmt.Errorf("sock_diag reply with socket state %d", s.state)
	}
	return s, nil
}
