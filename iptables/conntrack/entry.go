package conntrack

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
)

// What linux/netfilter/nfnetlink_conntrack.h and its neighbours call these.
const (
	subsystem = unix.NFNL_SUBSYS_CTNETLINK << 8
	msgGet    = 1
	msgDelete = 2

	attrTupleOrig  = 1
	attrTupleReply = 2
	attrStatus     = 3
	attrProtoInfo  = 4
	attrID         = 12
	attrZone       = 18

	tupleProto = 2
	tupleZone  = 3

	protoNum     = 1
	protoSrcPort = 2
	protoDstPort = 3

	protoInfoTCP      = 1
	protoInfoTCPState = 1

	tcpSynSent   = 1
	statusDstNAT = 1 << 5

	nested = unix.NLA_F_NESTED
)

// An entry is one tracked connection.
type entry struct {
	protocol     uint8
	dstPort      uint16 // that the connection was made to
	replySrcPort uint16 // that answers come from: another if it was redirected
	zone         uint16
	status       uint32
	tcpState     uint8
	key          []byte // the payload of a request about exactly this entry
}

func (e entry) String() string {
	return fmt.Sprintf("(protocol %d, to port %d, answered from port %d, zone %d)", e.protocol, e.dstPort, e.replySrcPort, e.zone)
}

func parse(message []byte) (entry, error) {
	if len(message) < nlconn.NetfilterHeaderSize {
		return entry{}, fmt.Errorf("a conntrack entry of %d bytes", len(message))
	}
	attrs, err := nlconn.ParseAttrs(message[nlconn.NetfilterHeaderSize:])
	if err != nil {
		return entry{}, fmt.Errorf("a conntrack entry: %w", err)
	}
	e, known := entry{key: nlconn.NetfilterHeader(message[0])}, false
	for _, a := range attrs {
		var err error
		switch a.Kind {
		case attrTupleOrig:
			known = true
			e.key = nlconn.AppendAttr(e.key, nested|attrTupleOrig, a.Value)
			var t tuple
			t, err = parseTuple(a.Value)
			e.protocol, e.dstPort = t.protocol, t.dstPort
			if t.zone != 0 {
				e.zone = t.zone
			}
		case attrTupleReply:
			var t tuple
			t, err = parseTuple(a.Value)
			e.replySrcPort = t.srcPort
		case attrZone:
			e.key = nlconn.AppendAttr(e.key, attrZone, a.Value)
			e.zone, err = number16(a)
		case attrID:
			e.key = nlconn.AppendAttr(e.key, attrID, a.Value)
		case attrStatus:
			if len(a.Value) != 4 {
				err = fmt.Errorf("a status of %d bytes", len(a.Value))
				break
			}
			e.status = binary.BigEndian.Uint32(a.Value)
		case attrProtoInfo:
			e.tcpState, err = parseTCPState(a.Value)
		}
		if err != nil {
			return entry{}, fmt.Errorf("a conntrack entry: %w", err)
		}
	}
	if !known {
		// To the kernel, a request to delete that names no entry means all of them.
		return entry{}, errors.New("a conntrack entry without addresses")
	}
	return e, nil
}

// A tuple is what the packets of one direction look like.
type tuple struct {
	protocol         uint8
	srcPort, dstPort uint16
	zone             uint16 // if this direction has one of its own
}

func parseTuple(b []byte) (tuple, error) {
	var t tuple
	outer, err := nlconn.ParseAttrs(b)
	if err != nil {
		return tuple{}, err
	}
	for _, a := range outer {
		switch a.Kind {
		case tupleProto:
			err = t.parseProto(a.Value)
		case tupleZone:
			t.zone, err = number16(a)
		}
		if err != nil {
			return tuple{}, err
		}
	}
	return t, nil
}

func (t *tuple) parseProto(b []byte) error {
	attrs, err := nlconn.ParseAttrs(b)
	if err != nil {
		return err
	}
	for _, a := range attrs {
		switch a.Kind {
		case protoNum:
			t.protocol, err = number8(a)
		case protoSrcPort:
			t.srcPort, err = number16(a)
		case protoDstPort:
			t.dstPort, err = number16(a)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// parseTCPState returns 0 for protocols other than TCP.
func parseTCPState(b []byte) (uint8, error) {
	protocols, err := nlconn.ParseAttrs(b)
	if err != nil {
		return 0, err
	}
	attrs, err := nlconn.ParseAttrs(protocols.Value(protoInfoTCP))
	if err != nil {
		return 0, err
	}
	for _, a := range attrs {
		if a.Kind == protoInfoTCPState {
			return number8(a)
		}
	}
	return 0, nil
}

func number8(a nlconn.Attr) (uint8, error) {
	if len(a.Value) != 1 {
		return 0, fmt.Errorf("attribute %d has %d bytes, not 1", a.Kind, len(a.Value))
	}
	return a.Value[0], nil
}

// number16 is a number in network byte order, as all of conntrack's are.
func number16(a nlconn.Attr) (uint16, error) {
	if len(a.Value) != 2 {
		return 0, fmt.Errorf("attribute %d has %d bytes, not 2", a.Kind, len(a.Value))
	}
	return binary.BigEndian.Uint16(a.Value), nil
}
