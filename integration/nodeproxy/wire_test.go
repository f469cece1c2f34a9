package nodeproxy_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/integration/nodeproxy"
)

const dscp = 0x2e

// A packet is what the peer's interface received.
type packet struct {
	from     netip.AddrPort
	protocol byte
	dscp     byte
}

// sniff returns a function that returns the TCP and UDP packets that an interface of
// ns has received until then.
func sniff(t *testing.T, ns *netlab.NS) func() []packet {
	t.Helper()
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
	var fd int
	var err error
	ns.Do(t, func() {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, all)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return func() []packet {
		var packets []packet
		buf := make([]byte, 65536)
		for {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if errors.Is(err, unix.EAGAIN) {
				return packets
			}
			if err != nil {
				t.Fatal(err)
			}
			ll := from.(*unix.SockaddrLinklayer)
			if p, ok := parsePacket(buf[:n]); ok && ll.Pkttype == unix.PACKET_HOST {
				packets = append(packets, p)
			}
		}
	}
}

// parsePacket parses an IP packet without extension headers.
func parsePacket(b []byte) (packet, bool) {
	var p packet
	var src netip.Addr
	switch {
	case len(b) >= 28 && b[0]>>4 == 4:
		p.protocol, p.dscp, src = b[9], b[1]>>2, netip.AddrFrom4([4]byte(b[12:16]))
		b = b[int(b[0]&0xf)*4:]
	case len(b) >= 48 && b[0]>>4 == 6:
		p.protocol, p.dscp, src = b[6], byte(binary.BigEndian.Uint16(b)>>6&0x3f), netip.AddrFrom16([16]byte(b[8:24]))
		b = b[40:]
	default:
		return p, false
	}
	if len(b) < 8 || p.protocol != unix.IPPROTO_TCP && p.protocol != unix.IPPROTO_UDP {
		return p, false
	}
	p.from = netip.AddrPortFrom(src, binary.BigEndian.Uint16(b))
	return p, true
}

// Whatever leaves the pod is the proxy's, and says so: from the first SYN to the last
// acknowledgement, over both versions of IP.
func TestEverythingOnTheWireIsTagged(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{DNS: nameServers(t, "10.0.0.2", "fd00::2")})
	packets := sniff(t, p.peer)
	serveNames(t, p.peer, "10.0.0.2:53")
	q, _, _ := query(7, "name")
	p.resolve("10.0.0.99:53", q)
	for family := range podAddrs {
		netlab.ServeEcho(t, p.peer, "peer", "tcp", at(peerAddrs[family], 80))
		netlab.ServeEcho(t, p.app, "app", "tcp", at(podAddrs[family], 80))
		netlab.Ask(t, p.app, "tcp", at(peerAddrs[family], 80))
		netlab.Ask(t, p.peer, "tcp", at(podAddrs[family], 80))
		c := p.dial(p.peer, at(podAddrs[family], 15008))
		p.connect(c, at(podAddrs[family], 80), "")
		_ = c.Close()
	}
	p.wantIdle()
	seen := map[string]int{}
	for _, packet := range packets() {
		what := fmt.Sprintf("%d from %s", packet.protocol, packet.from.Addr())
		if port := packet.from.Port(); packet.protocol == unix.IPPROTO_TCP && port < 20000 {
			what = fmt.Sprintf("%s:%d", what, port)
		}
		if packet.dscp != dscp {
			t.Errorf("%s: DSCP %#x, want %#x", what, packet.dscp, dscp)
		}
		seen[what]++
	}
	for _, want := range []string{
		"17 from 10.0.0.1", "6 from 10.0.0.1", "6 from fd00::1",
		"6 from 10.0.0.1:80", "6 from fd00::1:80", "6 from 10.0.0.1:15008", "6 from fd00::1:15008",
	} {
		if seen[want] == 0 {
			t.Errorf("nothing was seen of %s, but %v", want, seen)
		}
	}
}

// A firewall in the pod looks at what the proxy's sockets send before any rule can
// change the mark.
func TestEveryPacketIsMarked(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{DNS: nameServers(t, "10.0.0.2")}, func(app *netlab.NS) {
		netlab.MustRun(t, app, "nft", `add table inet check
			add chain inet check out { type filter hook output priority -400; }
			add rule inet check out ip dscp 0x2e meta mark & 0xfff == 0x539 counter
			add rule inet check out ip dscp 0x2e meta mark & 0xfff != 0x539 counter
			add rule inet check out ip6 dscp 0x2e meta mark & 0xfff == 0x539 counter
			add rule inet check out ip6 dscp 0x2e meta mark & 0xfff != 0x539 counter`)
	})
	serveNames(t, p.peer, "10.0.0.2:53")
	netlab.ServeEcho(t, p.peer, "names", "tcp", "10.0.0.2:53")
	q, _, _ := query(7, "name")
	p.resolve("10.0.0.2:53", q)
	netlab.Ask(t, p.app, "tcp", "10.0.0.2:53")
	for family := range podAddrs {
		netlab.ServeEcho(t, p.peer, "peer", "tcp", at(peerAddrs[family], 80))
		netlab.ServeEcho(t, p.app, "app", "tcp", at(podAddrs[family], 80))
		netlab.Ask(t, p.app, "tcp", at(peerAddrs[family], 80))
		netlab.Ask(t, p.peer, "tcp", at(podAddrs[family], 80))
		c := p.dial(p.peer, at(podAddrs[family], 15008))
		p.connect(c, at(podAddrs[family], 80), "")
		_ = c.Close()
	}
	p.wantIdle()
	p.wantRelayed(nodeproxy.Relayed{Outbound: 2, Inbound: 2, HBONE: 2, DNS: 2})
	for line := range strings.Lines(netlab.MustRun(t, p.app, "nft", "list", "table", "inet", "check")) {
		if !strings.Contains(line, "counter") {
			continue
		}
		if none, other := strings.Contains(line, "packets 0 "), strings.Contains(line, "!= 0x00000539"); none != other {
			t.Errorf("of what the proxy sends: %s", strings.TrimSpace(line))
		}
	}
}
