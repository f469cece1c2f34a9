package sockets

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

var stateNames = map[string]uint8{
	"ESTABLISHED": stateEstablished, "SYN_SENT": stateSynSent, "SYN_RECV": stateSynRecv, "FIN_WAIT1": stateFinWait1,
	"FIN_WAIT2": stateFinWait2, "TIME_WAIT": 6, "CLOSE": 7, "CLOSE_WAIT": stateCloseWait, "LAST_ACK": stateLastAck,
	"LISTEN": stateListen, "CLOSING": stateClosing,
}

// endpoint reads an address and port, with names for the addresses.
func endpoint(text string) netip.AddrPort {
	names := strings.NewReplacer("pod6", "[fd00::5]", "peer6", "[fd00::9]", "loop6", "[::1]", "any", "0.0.0.0",
		"pod", "10.0.0.5", "peer", "10.0.0.9", "loop", "127.0.0.1", "other", "10.0.0.10")
	return netip.MustParseAddrPort(names.Replace(text))
}

// socketOf reads "ESTABLISHED pod:4000 peer:80", with a mark behind it if it has one.
func socketOf(t *testing.T, text string) socket {
	t.Helper()
	words := strings.Fields(text)
	state, known := stateNames[words[0]]
	if !known {
		t.Fatalf("no state is called %s", words[0])
	}
	s := socket{state: state, local: endpoint(words[1]), remote: endpoint(words[2]), hasMark: true}
	s.family = unix.AF_INET
	if s.local.Addr().Is6() || len(words) > 3 { // proxies listen on IPv6 sockets
		s.family = unix.AF_INET6
	}
	if len(words) > 3 {
		if _, err := fmt.Sscan(words[3], &s.mark); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

const proxy = " 0x539"

var pairings = map[string]struct {
	sockets   []string
	conntrack map[string]string // "pod:4000 peer:80" → as whom the proxy sees it
	want      []string
}{
	"nothing":                    {},
	"outbound":                   {sockets: []string{"ESTABLISHED pod:4000 peer:80"}, want: []string{"pod:4000 peer:80"}},
	"inbound":                    {sockets: []string{"ESTABLISHED pod:80 peer:4000"}, want: []string{"pod:80 peer:4000"}},
	"IPv6":                       {sockets: []string{"ESTABLISHED pod6:4000 peer6:80"}, want: []string{"pod6:4000 peer6:80"}},
	"half open, outbound":        {sockets: []string{"SYN_SENT pod:4000 peer:80"}, want: []string{"pod:4000 peer:80"}},
	"half open, inbound":         {sockets: []string{"SYN_RECV pod:80 peer:4000"}, want: []string{"pod:80 peer:4000"}},
	"another mark":               {sockets: []string{"ESTABLISHED pod:4000 peer:80 0x111"}, want: []string{"pod:4000 peer:80"}},
	"the mark, and other bits":   {sockets: []string{"ESTABLISHED pod:4000 peer:80 0x1539"}},
	"the proxy's own":            {sockets: []string{"ESTABLISHED pod:4000 peer:80" + proxy}},
	"outbound, proxied":          {sockets: []string{"ESTABLISHED pod:4000 peer:80", "ESTABLISHED loop:15001 pod:4000" + proxy}},
	"IPv6, proxied":              {sockets: []string{"ESTABLISHED pod6:4000 peer6:80", "ESTABLISHED loop6:15001 pod6:4000" + proxy}},
	"at the interface's address": {sockets: []string{"ESTABLISHED pod:4000 peer:80", "ESTABLISHED pod:15001 pod:4000" + proxy}},
	"DNS over TCP, proxied":      {sockets: []string{"ESTABLISHED pod:4000 peer:53", "ESTABLISHED loop:15053 pod:4000" + proxy}},
	"inbound, proxied": {sockets: []string{"ESTABLISHED pod:80 peer:4000", "ESTABLISHED peer:4000 pod:80" + proxy,
		"ESTABLISHED pod:15006 peer:4321" + proxy}},
	"inbound over HBONE": {sockets: []string{"ESTABLISHED pod:80 peer:4000", "ESTABLISHED peer:4000 pod:80" + proxy,
		"ESTABLISHED pod:15008 other:4321" + proxy}},
	"HBONE alone":                {sockets: []string{"ESTABLISHED pod:80 peer:4000", "ESTABLISHED pod:15008 peer:4000" + proxy}, want: []string{"pod:80 peer:4000"}},
	"counterpart not marked":     {sockets: []string{"ESTABLISHED pod:4000 peer:80", "ESTABLISHED loop:15001 pod:4000"}, want: []string{"pod:4000 peer:80"}},
	"counterpart of another":     {sockets: []string{"ESTABLISHED pod:4000 peer:80", "ESTABLISHED loop:15001 pod:4001" + proxy}, want: []string{"pod:4000 peer:80"}},
	"counterpart on port 15006":  {sockets: []string{"ESTABLISHED pod:4000 peer:80", "ESTABLISHED pod:15006 pod:4000" + proxy}, want: []string{"pod:4000 peer:80"}},
	"not swapped":                {sockets: []string{"ESTABLISHED pod:80 peer:4000", "ESTABLISHED pod:80 peer:4000" + proxy}, want: []string{"pod:80 peer:4000"}},
	"counterpart not accepted":   {sockets: []string{"ESTABLISHED pod:4000 peer:80", "SYN_RECV loop:15001 pod:4000" + proxy}},
	"both half open":             {sockets: []string{"SYN_SENT pod:4000 peer:80", "SYN_RECV loop:15001 pod:4000" + proxy}},
	"both half open, inbound":    {sockets: []string{"SYN_RECV pod:80 peer:4000", "SYN_SENT peer:4000 pod:80" + proxy}},
	"the proxy does not take it": {sockets: []string{"SYN_SENT pod:4000 peer:80"}, conntrack: map[string]string{"pod:4000 peer:80": "pod:4000"}},
	"half closed by the proxy":   {sockets: []string{"CLOSE_WAIT pod:4000 peer:80", "FIN_WAIT2 loop:15001 pod:4000" + proxy}},
	"end not got across":         {sockets: []string{"ESTABLISHED pod:4000 peer:80", "FIN_WAIT1 loop:15001 pod:4000" + proxy}},
	"the proxy has gone":         {sockets: []string{"CLOSE_WAIT pod:4000 peer:80"}},
	"over, or not open": {sockets: []string{"FIN_WAIT1 pod:1 peer:80", "FIN_WAIT2 pod:2 peer:80", "TIME_WAIT pod:3 peer:80", "CLOSE pod:4 peer:80",
		"LAST_ACK pod:5 peer:80", "CLOSING pod:6 peer:80", "LISTEN pod:7 any:0", "FIN_WAIT1 pod:80 peer:8"}},
	"loopback":       {sockets: []string{"ESTABLISHED loop:4000 loop:80", "ESTABLISHED loop6:80 loop6:4000", "SYN_SENT 127.9.9.9:1 127.1.2.3:80"}},
	"to loopback":    {sockets: []string{"ESTABLISHED pod:4000 loop:80"}},
	"three proxies":  {sockets: []string{"ESTABLISHED pod:4000 peer:80", "ESTABLISHED pod:4001 peer:80", "ESTABLISHED loop:15001 pod:4001" + proxy, "LISTEN any:15001 any:0" + proxy, "LISTEN any:15001 any:0" + proxy, "LISTEN any:15001 any:0" + proxy}, want: []string{"pod:4000 peer:80"}},
	"one port, both": {sockets: []string{"ESTABLISHED pod:4000 peer:80", "ESTABLISHED pod:4000 other:80", "ESTABLISHED loop:15001 pod:4000" + proxy, "ESTABLISHED loop:15001 pod:4321" + proxy}, conntrack: map[string]string{"pod:4000 peer:80": "pod:4000", "pod:4000 other:80": "pod:4321"}},
	"one port, one of them": {sockets: []string{"ESTABLISHED pod:4000 peer:80", "ESTABLISHED pod:4000 other:80", "ESTABLISHED loop:15001 pod:4000" + proxy},
		conntrack: map[string]string{"pod:4000 other:80": "pod:4000"}, want: []string{"pod:4000 peer:80"}},
	"under the port of another": {sockets: []string{"ESTABLISHED pod:4000 peer:80", "ESTABLISHED pod:5000 peer:80", "ESTABLISHED loop:15001 pod:5000" + proxy},
		conntrack: map[string]string{"pod:4000 peer:80": "pod:5000"}, want: []string{"pod:5000 peer:80"}},
	"from one port, closing": {sockets: []string{"ESTABLISHED pod:4000 peer:80", "FIN_WAIT2 pod:4000 other:80", "CLOSE_WAIT loop:15001 pod:4000" + proxy}, want: []string{"pod:4000 peer:80"}},
	"server with all kinds": {sockets: []string{"LISTEN any:80 any:0", "ESTABLISHED pod:80 peer:1", "ESTABLISHED pod:80 peer:2", "ESTABLISHED peer:2 pod:80" + proxy,
		"SYN_RECV pod:80 peer:3"}, want: []string{"pod:80 peer:1", "pod:80 peer:3"}},
}

func TestPairing(t *testing.T) {
	for name, c := range pairings {
		t.Run(name, func(t *testing.T) {
			var all []socket
			for _, text := range c.sockets {
				if s := socketOf(t, text); pairedStates&(1<<s.state) != 0 { // as the kernel is asked
					all = append(all, s)
				}
			}
			entries := map[tuple]netip.AddrPort{}
			for of, as := range c.conntrack {
				words := strings.Fields(of)
				entries[tuple{endpoint(words[0]), endpoint(words[1])}] = endpoint(as)
			}
			var want []tuple
			for _, text := range c.want {
				words := strings.Fields(text)
				want = append(want, tuple{endpoint(words[0]), endpoint(words[1])})
			}
			for range 10 { // the kernel lists them in any order
				rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
				wantPaired(t, all, entries, want)
			}
		})
	}
}

func wantPaired(t *testing.T, all []socket, entries map[tuple]netip.AddrPort, want []tuple) {
	t.Helper()
	found, err := newCensus(slices.Clone(all)).bypassing(func(s socket) (netip.AddrPort, bool, error) {
		as, redirected := entries[tuple{s.local, s.remote}]
		return as, redirected, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	var got []tuple
	for _, s := range found {
		got = append(got, tuple{s.local, s.remote})
	}
	order := func(a, b tuple) int {
		if byLocal := a.local.Compare(b.local); byLocal != 0 {
			return byLocal
		}
		return a.remote.Compare(b.remote)
	}
	slices.SortFunc(got, order)
	slices.SortFunc(want, order)
	if !slices.Equal(got, want) {
		t.Fatalf("of %+v\n got %v\nwant %v", all, got, want)
	}
}

func TestPairingAsksOnlyWhenInDoubt(t *testing.T) {
	fails := errors.New("conntrack fails")
	for doubt, texts := range map[bool][]string{
		false: {"ESTABLISHED pod:1 peer:80", "SYN_RECV pod:80 peer:80", "ESTABLISHED loop:1 loop:80"},
		true:  {"ESTABLISHED pod:1 peer:80", "ESTABLISHED loop:15001 pod:2 0x539"},
	} {
		var all []socket
		for _, text := range texts {
			all = append(all, socketOf(t, text))
		}
		_, err := newCensus(all).bypassing(func(socket) (netip.AddrPort, bool, error) { return netip.AddrPort{}, false, fails })
		if errors.Is(err, fails) != doubt {
			t.Errorf("%q: %v", texts, err)
		}
	}
}

// A world opens connections as a pod would, and knows which of them bypass.
type world struct {
	all     []socket
	entries map[tuple]netip.AddrPort
	used    map[tuple]bool          // connections of the pod's
	sources map[netip.AddrPort]bool // of what was redirected, as the proxy sees them
	want    []tuple
}

// open opens one connection, of a kind, between ports and addresses out of few, so
// that they meet often. What it does not decide is the same for the same bytes.
func (w *world) open(kind, port, peer, more byte) {
	local := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 5}), 4000+uint16(port%8))
	remote := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 9}), 80+uint16(peer%8))
	if more&1 != 0 {
		local = netip.AddrPortFrom(netip.MustParseAddr("fd00::5"), local.Port())
		remote = netip.AddrPortFrom(netip.MustParseAddr("fd00::9"), remote.Port())
	}
	app := tuple{local, remote}
	if w.used[app] {
		return
	}
	w.used[app] = true
	add := func(t tuple, state uint8, mark uint32) {
		w.all = append(w.all, socket{state: state, local: t.local, remote: t.remote, mark: mark, hasMark: true})
	}
	states := []uint8{stateEstablished, stateEstablished, stateSynSent, stateSynRecv}
	switch kind % 5 {
	case 0: // bypasses
		add(app, states[more>>1%4], uint32(more>>3)<<12)
		w.want = append(w.want, app)
	case 1: // is redirected, and given another port where its own is taken
		as := local
		for w.sources[as] {
			as = netip.AddrPortFrom(as.Addr(), as.Port()+1)
		}
		w.sources[as] = true
		w.entries[app] = as
		loop := netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if more&1 != 0 {
			loop = netip.IPv6Loopback()
		}
		proxyStates := []uint8{stateEstablished, stateSynRecv, stateFinWait1}
		add(app, stateEstablished, 0)
		add(tuple{netip.AddrPortFrom(loop, ruleset.OutboundPort), as}, proxyStates[more>>1%3], ruleset.ProxyMark)
	case 2: // comes from the proxy
		add(app, stateEstablished, 0)
		add(tuple{remote, local}, stateEstablished, ruleset.ProxyMark|uint32(more>>3)<<12)
	case 3: // is the proxy's own
		add(app, stateEstablished, ruleset.ProxyMark)
	case 4: // is closing, or was only half closed
		add(app, stateFinWait1, 0)
	}
}

// FuzzPairing compares what pairing finds with what is known about a world.
func FuzzPairing(f *testing.F) {
	f.Add([]byte("\x00\x01\x01\x00\x01\x01\x02\x00\x01\x01\x03\x00"))
	f.Add([]byte("\x01\x01\x01\x00\x01\x01\x02\x00\x01\x01\x03\x00\x00\x03\x01\x00\x00\x01\x04\x02\x02\x01\x05\x01"))
	for range 20 {
		seed := make([]byte, 120)
		for i := range seed {
			seed[i] = byte(rand.Uint32())
		}
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		w := world{entries: map[tuple]netip.AddrPort{}, used: map[tuple]bool{}, sources: map[netip.AddrPort]bool{}}
		for ; len(script) >= 4; script = script[4:] {
			w.open(script[0], script[1], script[2], script[3])
		}
		order := rand.New(rand.NewPCG(uint64(len(w.all)), uint64(len(w.want)))) // the same each time
		order.Shuffle(len(w.all), func(i, j int) { w.all[i], w.all[j] = w.all[j], w.all[i] })
		wantPaired(t, w.all, w.entries, w.want)
	})
}
