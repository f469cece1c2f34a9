package netlab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
)

// ServeNames starts a name server in a namespace, over UDP, to which every name is one
// address. The caller closes it.
func ServeNames(n *NS, addr string, answer netip.Addr) (io.Closer, error) {
	conn, err := n.ListenPacket(addr)
	if err != nil {
		return nil, err
	}
	go func() {
		buf := make([]byte, 512)
		for {
			size, peer, err := conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // an ICMP error for an earlier answer
			}
			if reply := answerQuery(buf[:size], answer); reply != nil {
				_, _ = conn.WriteToUDPAddrPort(reply, peer) // like any datagram, may be lost
			}
		}
	}()
	return conn, nil
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

// Resolve asks for the address of a name, over a connection that dial makes to a name
// server.
func Resolve(ctx context.Context, name string, dial func(ctx context.Context, network string) (net.Conn, error)) (netip.Addr, error) {
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return dial(ctx, network)
	}}
	addrs, err := resolver.LookupNetIP(ctx, "ip4", name+".")
	if err != nil {
		return netip.Addr{}, fmt.Errorf("no answer: %w", err)
	}
	return addrs[0].Unmap(), nil
}
