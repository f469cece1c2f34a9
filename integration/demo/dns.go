package demo

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// nowhere is the name server that a pod asks: an address that nobody has.
var nowhere = netip.MustParseAddrPort("192.0.2.53:53")

// serveNames starts the node's name server, to which every name is one address.
func serveNames(n *netlab.NS, answer netip.Addr) error {
	conn, err := n.ListenPacket("0.0.0.0:53")
	if err != nil {
		return err
	}
	go func() {
		buf := make([]byte, 512)
		for {
			size, peer, err := conn.ReadFromUDPAddrPort(buf)
			if err != nil {
				continue // an ICMP error for an earlier answer
			}
			if reply := answerQuery(buf[:size], answer); reply != nil {
				_, _ = conn.WriteToUDPAddrPort(reply, peer) // like any datagram, may be lost
			}
		}
	}()
	return nil
}

// answerQuery answers a query of one question with one address.
func answerQuery(query []byte, addr netip.Addr) []byte {
	const header = 12
	end := header // of the question: labels, a zero, type and class
	for end < len(query) && query[end] != 0 {
		end += 1 + int(query[end])
	}
	end += 5
	if end > len(query) {
		return nil
	}
	reply := append([]byte(nil), query[:end]...)
	binary.BigEndian.PutUint16(reply[2:], 0x8180)                      // an answer, without error
	copy(reply[4:], []byte{0, 1, 0, 1, 0, 0, 0, 0})                    // one question, one answer
	reply = append(reply, 0xc0, header, 0, 1, 0, 1, 0, 0, 0, 30, 0, 4) // the question's name, type A, for 30 s
	return append(reply, addr.AsSlice()...)
}

// resolve asks for a name from inside a namespace, at the address nowhere.
func resolve(ctx context.Context, n *netlab.NS, name string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return n.Dial(ctx, network, nowhere.String())
	}}
	addrs, err := resolver.LookupNetIP(ctx, "ip4", name+".")
	if err != nil {
		return netip.Addr{}, fmt.Errorf("no answer: %w", err)
	}
	return addrs[0].Unmap(), nil
}
