package sockets

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
)

// The request to destroy names the socket in all that the kernel compares.
func TestExactlyRequest(t *testing.T) {
	const states, device, cookie = "ffffffff", "07000000", "efcdab8967452301"
	zeros := func(n int) string { return strings.Repeat("00", n) }
	for name, c := range map[string]struct {
		family        uint8
		local, remote string
		want          string
	}{
		"IPv4": {unix.AF_INET, "10.0.0.5:4000", "10.0.0.9:80", "02060000" + states + "0fa00050" + "0a000005" + zeros(12) + "0a000009" + zeros(12) + device + cookie},
		"IPv6": {unix.AF_INET6, "[fd00::5]:4000", "[fd00::9]:80", "0a060000" + states + "0fa00050" + "fd00" + zeros(13) + "05" + "fd00" + zeros(13) + "09" + device + cookie},
		"IPv4 over IPv6": {unix.AF_INET6, "10.0.0.5:4000", "10.0.0.9:80",
			"0a060000" + states + "0fa00050" + zeros(10) + "ffff0a000005" + zeros(10) + "ffff0a000009" + device + cookie},
	} {
		s := socket{family: c.family, local: netip.MustParseAddrPort(c.local), remote: netip.MustParseAddrPort(c.remote), device: 7, cookie: 0x0123456789abcdef}
		if got := hex.EncodeToString(s.exactly()); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
		// What is asked for is laid out as what is told.
		told := append([]byte{c.family, stateEstablished, 0, 0}, s.exactly()[8:]...)
		told = append(told, make([]byte, replySize-len(told))...)
		s.state = stateEstablished
		if got, err := parse(told); err != nil || got != s {
			t.Errorf("%s: told %+v, %v", name, got, err)
		}
	}
}

func TestParseMarked(t *testing.T) {
	plain := reply(stateEstablished, 80, 7)
	for name, c := range map[string]struct {
		attrs   []byte
		mark    uint32
		hasMark bool
		wrong   bool
	}{
		"no mark":        {},
		"mark":           {attrs: nlconn.AppendUint32(nil, attrMark, 0x539), mark: 0x539, hasMark: true},
		"mark 0":         {attrs: nlconn.AppendUint32(nil, attrMark, 0), hasMark: true},
		"among others":   {attrs: nlconn.AppendUint32(nlconn.AppendAttr(nil, 8, []byte{1}), attrMark, 0x1539), mark: 0x1539, hasMark: true},
		"of two bytes":   {attrs: nlconn.AppendAttr(nil, attrMark, []byte{1, 2})},
		"size too big":   {attrs: []byte{200, 0, attrMark, 0, 1, 2, 3, 4}, wrong: true},
		"size too small": {attrs: []byte{3, 0, attrMark, 0, 1, 2, 3, 4}, wrong: true},
	} {
		s, err := parseMarked(append(plain[:replySize:replySize], c.attrs...))
		if (err != nil) != c.wrong || s.mark != c.mark || s.hasMark != c.hasMark {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
	}
	for _, family := range []byte{0, 1, 16} {
		b := reply(stateEstablished, 80, 7)
		b[0] = family
		if s, err := parseMarked(b); err == nil {
			t.Errorf("family %d was taken for %+v", family, s)
		}
	}
}

func entryOf(original, back tuple) []byte {
	message := trackedAs(original)
	other := trackedAs(back)[nlconn.NetfilterHeaderSize:]
	binary.NativeEndian.PutUint16(other[2:], ctTupleReply|unix.NLA_F_NESTED)
	return append(message, other...)
}

func TestParseEntry(t *testing.T) {
	for _, original := range []tuple{{endpoint("pod:4000"), endpoint("peer:80")}, {endpoint("pod6:4000"), endpoint("peer6:80")}} {
		back := tuple{original.remote, original.local}
		message := entryOf(original, back)
		if o, r, err := parseEntry(message); err != nil || o != original || r != back {
			t.Errorf("%v and %v, %v", o, r, err)
		}
		for size := range message {
			if o, r, err := parseEntry(message[:size]); err == nil {
				t.Errorf("%d of %d bytes were taken for %v and %v", size, len(message), o, r)
			}
		}
	}
}

func FuzzParseEntry(f *testing.F) {
	f.Add(entryOf(tuple{endpoint("pod:4000"), endpoint("peer:80")}, tuple{endpoint("loop:15001"), endpoint("pod:4000")}))
	f.Add(entryOf(tuple{endpoint("pod6:4000"), endpoint("peer6:80")}, tuple{endpoint("loop6:15001"), endpoint("pod6:4000")}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		o, r, err := parseEntry(b)
		if err == nil && !(o.local.IsValid() && o.remote.IsValid() && r.local.IsValid() && r.remote.IsValid()) {
			t.Errorf("%v, %v", o, r)
		}
	})
}

func localRoute(family, bits, table, kind byte, dst []byte) []byte {
	b := make([]byte, unix.SizeofRtMsg)
	b[0], b[1], b[4], b[7] = family, bits, table, kind
	if dst == nil {
		return b
	}
	return nlconn.AppendAttr(b, unix.RTA_DST, dst)
}

func TestParseLocalRoute(t *testing.T) {
	for name, c := range map[string]struct {
		message []byte
		want    string // "" if it is not wanted
		wrong   bool
	}{
		"address":        {message: localRoute(unix.AF_INET, 32, 255, unix.RTN_LOCAL, []byte{10, 0, 0, 5}), want: "10.0.0.5/32"},
		"prefix":         {message: localRoute(unix.AF_INET, 8, 255, unix.RTN_LOCAL, []byte{127, 0, 0, 0}), want: "127.0.0.0/8"},
		"IPv6":           {message: localRoute(unix.AF_INET6, 128, 255, unix.RTN_LOCAL, netip.IPv6Loopback().AsSlice()), want: "::1/128"},
		"default":        {message: localRoute(unix.AF_INET, 0, 255, unix.RTN_LOCAL, nil), want: "0.0.0.0/0"},
		"IPv6 default":   {message: localRoute(unix.AF_INET6, 0, 255, unix.RTN_LOCAL, nil), want: "::/0"},
		"broadcast":      {message: localRoute(unix.AF_INET, 32, 255, unix.RTN_BROADCAST, []byte{10, 0, 0, 255})},
		"another table":  {message: localRoute(unix.AF_INET, 0, 100, unix.RTN_LOCAL, nil)},
		"too short":      {message: make([]byte, 11), wrong: true},
		"too many bits":  {message: localRoute(unix.AF_INET, 33, 255, unix.RTN_LOCAL, []byte{10, 0, 0, 5}), wrong: true},
		"attribute lies": {message: append(localRoute(unix.AF_INET, 32, 255, unix.RTN_LOCAL, nil), 99, 0, 1, 0), wrong: true},
	} {
		got, wanted, err := parseLocalRoute(c.message)
		if (err != nil) != c.wrong || wanted != (c.want != "") || wanted && got.String() != c.want {
			t.Errorf("%s: %s, %t, %v", name, got, wanted, err)
		}
	}
}

func FuzzParseLocalRoute(f *testing.F) {
	f.Add(localRoute(unix.AF_INET, 32, 255, unix.RTN_LOCAL, []byte{10, 0, 0, 5}))
	f.Add(localRoute(unix.AF_INET6, 0, 255, unix.RTN_LOCAL, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, wanted, err := parseLocalRoute(b); err == nil && wanted && !p.IsValid() {
			t.Errorf("%s from %x", p, b)
		}
	})
}

// A pod that may, makes as many routes as it likes.
func TestTooManyLocalRoutes(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "pod")
	netlab.MustRun(t, n, "sh", "-c", fmt.Sprintf(
		`i=0; while [ $i -le %d ]; do echo "route add local 10.0.$((i / 256)).$((i %% 256)) dev lo"; i=$((i + 1)); done | ip -batch -`, 3*maxOwn))
	if own, err := ownAddresses(t.Context(), n.Handle); !errors.Is(err, errTooMany) {
		t.Errorf("%d addresses, %v", len(own.prefixes), err)
	}
}

func TestOwn(t *testing.T) {
	own := own{map[netip.Prefix]bool{}, map[int]bool{}}
	for _, prefix := range []string{"127.0.0.0/8", "10.0.0.5/32", "10.9.0.0/16", "::1/128", "fd00::/64"} {
		own.add(netip.MustParsePrefix(prefix))
	}
	for addr, want := range map[string]bool{
		"127.4.5.6": true, "10.0.0.5": true, "10.9.255.255": true, "::1": true, "fd00::ffff": true,
		"128.0.0.1": false, "10.0.0.4": false, "10.8.255.255": false, "::2": false, "fd00:0:0:1::1": false,
	} {
		if got := own.contain(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %t, want %t", addr, got, want)
		}
	}
}
