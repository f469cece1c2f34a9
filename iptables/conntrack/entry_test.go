package conntrack

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
)

func attrs(list ...nlconn.Attr) []byte {
	var b []byte
	for _, a := range list {
		b = nlconn.AppendAttr(b, a.Kind, a.Value)
	}
	return b
}

func attr(kind uint16, value ...byte) nlconn.Attr { return nlconn.Attr{Kind: kind, Value: value} }

func nest(kind uint16, list ...nlconn.Attr) nlconn.Attr {
	return nlconn.Attr{Kind: kind | nested, Value: attrs(list...)}
}

func message(list ...nlconn.Attr) []byte { return append([]byte{2, 0, 0, 0}, attrs(list...)...) }

var (
	synOrig = nest(attrTupleOrig, nest(tupleProto, attr(protoNum, 6), attr(protoSrcPort, 0x9c, 0x40), attr(protoDstPort, 0, 80)))
	reply   = nest(attrTupleReply, nest(tupleProto, attr(protoNum, 6), attr(protoSrcPort, 0x3a, 0x99), attr(protoDstPort, 0x9c, 0x40)))
	natted  = attr(attrStatus, 0, 0, 0, statusDstNAT)
	syn     = nest(attrProtoInfo, nest(protoInfoTCP, attr(protoInfoTCPState, tcpSynSent)))
)

func TestParse(t *testing.T) {
	got, err := parse(message(synOrig, reply, natted, syn, attr(attrID, 1, 2, 3, 4), attr(attrZone, 0, 5), attr(99, 1)))
	if err != nil {
		t.Fatal(err)
	}
	want := entry{
		protocol: 6, dstPort: 80, replySrcPort: 15001, zone: 5, status: statusDstNAT, tcpState: tcpSynSent,
		key: message(synOrig, attr(attrID, 1, 2, 3, 4), attr(attrZone, 0, 5)),
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(entry{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestWhichEntries(t *testing.T) {
	udp := func(port uint16) entry { return entry{protocol: 17, dstPort: port, replySrcPort: port} }
	redirected := func(e entry, port uint16) entry {
		e.replySrcPort, e.status = port, statusDstNAT
		return e
	}
	zoned := udp(53)
	zoned.zone = 1
	tcp := func(state uint8) entry { return entry{protocol: 6, dstPort: 80, replySrcPort: 80, tcpState: state} }
	for name, c := range map[string]struct {
		entry                entry
		uncaptured, captured bool
	}{
		"DNS":                       {udp(53), true, false},
		"other UDP":                 {udp(123), false, false},
		"the proxy's DNS":           {zoned, false, false},
		"DNS by another NAT":        {redirected(udp(53), 5353), true, false},
		"captured DNS":              {redirected(udp(53), 15053), false, true},
		"SYN":                       {tcp(1), true, false},
		"SYN and SYN-ACK":           {tcp(2), false, false},
		"established":               {tcp(3), false, false},
		"captured SYN":              {redirected(tcp(1), 15001), false, true},
		"captured inbound":          {redirected(tcp(3), 15006), false, true},
		"HBONE":                     {redirected(tcp(3), 15008), false, false},
		"to the proxy's own port":   {entry{protocol: 6, dstPort: 15001, replySrcPort: 15001, tcpState: 3}, false, false},
		"ICMP":                      {entry{protocol: 1}, false, false},
		"UDP that looks like a SYN": {entry{protocol: 17, tcpState: 1}, false, false},
	} {
		if got := c.entry.uncaptured(); got != c.uncaptured {
			t.Errorf("%s: uncaptured %t, want %t", name, got, c.uncaptured)
		}
		if got := c.entry.captured(); got != c.captured {
			t.Errorf("%s: captured %t, want %t", name, got, c.captured)
		}
	}
}

func TestEntriesOfTheWrongShape(t *testing.T) {
	for name, b := range map[string][]byte{
		"nothing":            nil,
		"half a header":      {2, 0},
		"no addresses":       message(reply, natted),
		"lying length":       append(message(synOrig), 200, 0, 3, 0),
		"short port":         message(nest(attrTupleOrig, nest(tupleProto, attr(protoDstPort, 53)))),
		"long protocol":      message(nest(attrTupleOrig, nest(tupleProto, attr(protoNum, 0, 17)))),
		"lying tuple":        message(attr(attrTupleOrig, 200, 0, 2, 0)),
		"lying ports":        message(nest(attrTupleOrig, attr(tupleProto, 200, 0, 2, 0))),
		"short zone":         message(synOrig, attr(attrZone, 1)),
		"short tuple's zone": message(nest(attrTupleOrig, attr(tupleZone, 1))),
		"short status":       message(synOrig, attr(attrStatus, 1)),
		"bad reply":          message(synOrig, attr(attrTupleReply, 1)),
		"bad protocol info":  message(synOrig, attr(attrProtoInfo, 1)),
		"bad TCP info":       message(synOrig, nest(attrProtoInfo, attr(protoInfoTCP, 1))),
		"no TCP state":       message(synOrig, nest(attrProtoInfo, nest(protoInfoTCP, attr(protoInfoTCPState)))),
	} {
		if e, err := parse(b); err == nil {
			t.Errorf("%s was taken for %s", name, e)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(message(synOrig, reply, natted, syn, attr(attrID, 1, 2, 3, 4), attr(attrZone, 0, 5)))
	f.Add(message(nest(attrTupleOrig, attr(tupleZone, 0, 3))))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := parse(b)
		if err == nil && len(e.key) <= nlconn.NetfilterHeaderSize {
			t.Error("an entry whose deletion would delete all")
		}
		if e.captured() && e.uncaptured() {
			t.Errorf("%s is captured and not", e)
		}
	})
}
