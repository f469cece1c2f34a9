package sockets

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func TestExactRequest(t *testing.T) {
	zeros := func(n int) string { return strings.Repeat("00", n) }
	const any32, anyCookie = "ffffffff", "ffffffffffffffff"
	for name, c := range map[string]struct {
		protocol uint8
		local    string
		want     string
	}{
		"TCP, IPv4": {unix.IPPROTO_TCP, "127.0.0.1:15001", "02060000" + any32 + "3a990000" + "7f000001" + zeros(12) + zeros(16) + zeros(4) + anyCookie},
		"TCP, IPv6": {unix.IPPROTO_TCP, "[::1]:15006", "0a060000" + any32 + "3a9e0000" + zeros(15) + "01" + zeros(16) + zeros(4) + anyCookie},
		"UDP, IPv4": {unix.IPPROTO_UDP, "127.0.0.1:15053", "02110000" + any32 + "00003acd" + zeros(16) + "7f000001" + zeros(12) + zeros(4) + anyCookie},
		"UDP, IPv6": {unix.IPPROTO_UDP, "[::1]:15053", "0a110000" + any32 + "00003acd" + zeros(16) + zeros(15) + "01" + zeros(4) + anyCookie},
	} {
		got := hex.EncodeToString(exact(c.protocol, netip.MustParseAddrPort(c.local)))
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", name, got, c.want)
		}
	}
}

// The filter as the kernel runs it, at its edges.
func TestLocalPortsFilter(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "pod")
	c := open(t, n)
	for _, port := range []string{"15000", "15001", "15005", "15008", "15009"} {
		listen(t, n, "127.0.0.1:"+port)
	}
	var got []uint16
	request := list(unix.AF_INET, unix.IPPROTO_TCP, 1<<stateListen, localPorts(15001, 15008))
	err := c.conn.Request(t.Context(), sockDiagByFamily, unix.NLM_F_DUMP, request, func(reply []byte) error {
		s, err := parse(reply)
		got = append(got, s.local.Port())
		return err
	})
	if err != nil || len(got) != 3 {
		t.Errorf("ports %d, %v; want 15001, 15005, 15008 in any order", got, err)
	}
}

func reply(state uint8, port uint16, inode uint32) []byte {
	b := make([]byte, replySize)
	b[0], b[1] = unix.AF_INET, state
	b[4], b[5] = byte(port>>8), byte(port)
	b[68], b[69] = byte(inode), byte(inode>>8)
	return b
}

func TestParse(t *testing.T) {
	for name, b := range map[string][]byte{
		"nothing":       nil,
		"one byte less": reply(1, 15001, 1)[:replySize-1],
		"half":          reply(1, 15001, 1)[:40],
		"no such state": reply(32, 15001, 1),
	} {
		if s, err := parse(b); err == nil {
			t.Errorf("%s was taken for %+v", name, s)
		}
	}
	got, err := parse(append(reply(10, 15001, 7), 1, 2, 3)) // attributes follow
	if want := (socket{family: unix.AF_INET, state: 10, local: netip.MustParseAddrPort("0.0.0.0:15001"), remote: netip.MustParseAddrPort("0.0.0.0:0"), inode: 7}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestWhichSocketsAreProxied(t *testing.T) {
	for state := range uint8(14) {
		s := socket{state: state, local: netip.MustParseAddrPort("10.0.0.5:15001"), inode: 5}
		want := state >= 1 && state <= 11 && state != 6 && state != 7 && state != stateListen
		if got := s.proxied(); got != want {
			t.Errorf("state %d: %t, want %t", state, got, want)
		}
		s.inode = 0
		if got := s.proxied(); got != (want && state != stateFinWait2) {
			t.Errorf("state %d, without an owner: %t", state, got)
		}
		s.local = netip.MustParseAddrPort("127.0.0.1:15053")
		if s.proxied() {
			t.Errorf("state %d on port 15053 is proxied", state)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(reply(10, 15001, 7))
	f.Add(reply(5, 15008, 0)[:71])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parse(b)
		if err != nil {
			return
		}
		if s.proxied() && (s.local.Port() < 15001 || s.local.Port() > 15008) {
			t.Errorf("%+v is proxied", s)
		}
		if again, err := parse(bytes.Clone(b[:replySize])); err != nil || again != s {
			t.Errorf("what follows the reply changes it: %+v, %+v, %v", s, again, err)
		}
	})
}
