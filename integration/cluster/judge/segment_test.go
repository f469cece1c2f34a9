package judge

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
)

// A packet is one to be parsed.
type packet struct {
	from, to string
	class    byte // type of service, or traffic class
	flags    byte
	data     int
	change   func([]byte) []byte
}

const (
	fin = 1 << iota
	flagSYN
	rst
	psh
	ack
)

func (p packet) bytes() []byte {
	from, to := netip.MustParseAddrPort(p.from), netip.MustParseAddrPort(p.to)
	b, _ := synPacket(from, to)
	ip := len(b) - 20
	if from.Addr().Is4() {
		b[1] = p.class
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)+p.data))
	} else {
		binary.BigEndian.PutUint16(b, 0x6000|uint16(p.class)<<4)
		binary.BigEndian.PutUint16(b[4:], uint16(20+p.data))
	}
	b[ip+13] = p.flags
	if p.change != nil {
		b = p.change(b)
	}
	return b
}

// behind puts extension headers between the IP header and the rest.
func behind(first byte, headers ...byte) func([]byte) []byte {
	return func(b []byte) []byte {
		b[6] = first
		binary.BigEndian.PutUint16(b[4:], binary.BigEndian.Uint16(b[4:])+uint16(len(headers)))
		return append(b[:40:40], append(headers, b[40:]...)...)
	}
}

func TestParse(t *testing.T) {
	const a, b, a6, b6 = "10.244.1.5:4242", "10.244.2.7:80", "[fd00::5]:4242", "[fd00::7]:80"
	ipOptions := func(p []byte) []byte {
		p[0] = 0x46
		binary.BigEndian.PutUint16(p[2:], binary.BigEndian.Uint16(p[2:])+4)
		return append(p[:20:20], append([]byte{1, 1, 1, 0}, p[20:]...)...)
	}
	tcpOptions := func(p []byte) []byte {
		p[32] = 10 << 4
		binary.BigEndian.PutUint16(p[2:], binary.BigEndian.Uint16(p[2:])+20)
		return append(p, make([]byte, 20)...)
	}
	at := func(place int, value byte) func([]byte) []byte {
		return func(p []byte) []byte { p[place] = value; return p }
	}
	for _, test := range []struct {
		name string
		packet
		want string
	}{
		{"SYN", packet{from: a, to: b, flags: flagSYN}, "10.244.1.5:4242 10.244.2.7:80 a SYN"},
		{"SYN, IPv6", packet{from: a6, to: b6, flags: flagSYN}, "[fd00::5]:4242 [fd00::7]:80 a SYN"},
		{"answered", packet{from: a, to: b, flags: flagSYN | ack}, "10.244.1.5:4242 10.244.2.7:80 a SYN that answers"},
		{"data", packet{from: a, to: b, flags: ack, data: 1}, "10.244.1.5:4242 10.244.2.7:80 payload"},
		{"data, IPv6", packet{from: a6, to: b6, flags: ack, data: 1}, "[fd00::5]:4242 [fd00::7]:80 payload"},
		{"the last data", packet{from: a, to: b, flags: ack | fin | psh, data: 1400}, "10.244.1.5:4242 10.244.2.7:80 payload"},
		{"tagged SYN", packet{from: a, to: b, class: 0xb8, flags: flagSYN}, "tagged 10.244.1.5:4242 10.244.2.7:80 a SYN"},
		{"tagged, IPv6", packet{from: a6, to: b6, class: 0xb8, flags: ack, data: 9}, "tagged [fd00::5]:4242 [fd00::7]:80 payload"},
		{"tagged, and ECN", packet{from: a, to: b, class: 0xba, flags: ack, data: 9}, "tagged 10.244.1.5:4242 10.244.2.7:80 payload"},
		{"tagged, and ECN, IPv6", packet{from: a6, to: b6, class: 0xbb, flags: ack, data: 9}, "tagged [fd00::5]:4242 [fd00::7]:80 payload"},
		{"another tag", packet{from: a, to: b, class: 0x2e, flags: flagSYN}, "10.244.1.5:4242 10.244.2.7:80 a SYN"},
		{"another tag, IPv6", packet{from: a6, to: b6, class: 0x2e, flags: flagSYN}, "[fd00::5]:4242 [fd00::7]:80 a SYN"},
		{"confirms", packet{from: a, to: b, flags: ack}, ""},
		{"confirms, IPv6", packet{from: a6, to: b6, flags: ack}, ""},
		{"ends", packet{from: a, to: b, flags: ack | fin}, ""},
		{"resets", packet{from: a, to: b, flags: rst}, ""},
		{"options of IP", packet{from: a, to: b, flags: ack, change: ipOptions}, ""},
		{"options of IP, data", packet{from: a, to: b, flags: ack, data: 1, change: ipOptions}, "10.244.1.5:4242 10.244.2.7:80 payload"},
		{"options of TCP", packet{from: a, to: b, flags: ack, change: tcpOptions}, ""},
		{"options of TCP, data", packet{from: a, to: b, flags: ack, data: 1, change: tcpOptions}, "10.244.1.5:4242 10.244.2.7:80 payload"},
		{"UDP", packet{from: a, to: b, flags: flagSYN, change: at(9, 17)}, ""},
		{"UDP, IPv6", packet{from: a6, to: b6, flags: flagSYN, change: at(6, 17)}, ""},
		{"no length, as of what is too long", packet{from: a, to: b, flags: ack, data: -40}, "10.244.1.5:4242 10.244.2.7:80 payload"},
		{"no length, IPv6", packet{from: a6, to: b6, flags: ack, data: -20}, "[fd00::5]:4242 [fd00::7]:80 payload"},
		{"a first fragment", packet{from: a, to: b, flags: flagSYN, change: at(6, 0x20)}, "10.244.1.5:4242 10.244.2.7:80 a SYN"},
		{"a later fragment", packet{from: a, to: b, flags: ack, change: at(7, 1)}, "10.244.1.5:0 10.244.2.7:0 a part"},
		{"a first fragment, IPv6", packet{from: a6, to: b6, flags: ack, data: 1, change: behind(44, 6, 0, 0, 1, 0, 0, 0, 0)}, "[fd00::5]:4242 [fd00::7]:80 payload"},
		{"a later fragment, IPv6", packet{from: a6, to: b6, flags: ack, change: behind(44, 6, 0, 0, 8, 0, 0, 0, 0)}, "[fd00::5]:0 [fd00::7]:0 a part"},
		{"extension headers", packet{from: a6, to: b6, flags: ack, change: behind(0, 60, 0, 1, 4, 0, 0, 0, 0, 6, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)}, ""},
		{"extension headers, data", packet{from: a6, to: b6, flags: ack, data: 1, change: behind(0, 6, 0, 1, 4, 0, 0, 0, 0)}, "[fd00::5]:4242 [fd00::7]:80 payload"},
		{"UDP behind an extension header", packet{from: a6, to: b6, flags: ack, change: behind(0, 17, 0, 1, 4, 0, 0, 0, 0)}, ""},
		{"too many extension headers", packet{from: a6, to: b6, flags: ack, change: behind(0, 6, 40, 1, 4, 0, 0, 0, 0)}, "[fd00::5]:0 [fd00::7]:0 a part"},
		{"a later fragment of UDP, IPv6", packet{from: a6, to: b6, flags: ack, change: behind(44, 17, 0, 0, 8, 0, 0, 0, 0)}, ""},
		{"a later fragment of what begins with an extension header", packet{from: a6, to: b6, flags: ack, change: behind(44, 60, 0, 0, 8, 0, 0, 0, 0)}, "[fd00::5]:0 [fd00::7]:0 a part"},
		{"extension headers behind extension headers", packet{from: a6, to: b6, flags: ack, change: behind(0, 60, 40, 1, 4, 0, 0, 0, 0)}, "[fd00::5]:0 [fd00::7]:0 a part"},
		{"a cut TCP header", packet{from: a, to: b, flags: ack, change: func(p []byte) []byte { return p[:39] }}, "10.244.1.5:0 10.244.2.7:0 a part"},
		{"no packet", packet{from: a, to: b, change: func([]byte) []byte { return nil }}, ""},
		{"neither version of IP", packet{from: a, to: b, flags: flagSYN, change: at(0, 0x55)}, ""},
	} {
		got := ""
		if s, tagged, ok := parse(test.bytes()); ok {
			got = fmt.Sprintf("%s %s %s", s.From, s.To, s.What)
			if tagged {
				got = "tagged " + got
			}
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// Whatever comes, and however short it was cut.
func FuzzParse(f *testing.F) {
	f.Add(packet{from: "10.0.0.1:1", to: "10.0.0.2:2"}.bytes())
	f.Add(packet{from: "[fd00::1]:1", to: "[fd00::2]:2", change: behind(44, 6, 0, 0, 1, 0, 0, 0, 0)}.bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, _, ok := parse(b); ok && !s.From.IsValid() {
			t.Errorf("%x is from nowhere", b)
		}
	})
}
