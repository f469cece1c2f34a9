package nodeproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
)

const (
	maxMessage  = 65535
	dnsInFlight = 256 // queries at once in one pod
	dnsHeader   = 12
)

// toNameServer is the route of captured DNS over TCP.
func (s *server) toNameServer(ctx context.Context, c *connection) (*net.TCPConn, error) {
	var errs []error
	for _, upstream := range s.env.dns {
		s.heading(c, upstream)
		conn, err := s.dial(ctx, upstream)
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// answerQueries answers DNS over UDP until l is closed, or its deadline is over. Then
// what was asked before has been answered. Queries that come too fast are lost, as
// datagrams may be.
func (s *server) answerQueries(ctx context.Context, l *net.UDPConn) {
	defer func() { _ = l.Close() }() // fails only if that was the end
	slots := make(chan struct{}, dnsInFlight)
	buf := make([]byte, maxMessage)
	for {
		n, client, err := l.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			for range cap(slots) {
				slots <- struct{}{}
			}
			return
		}
		if err != nil {
			s.env.log.Error("cannot receive queries, trying again", "error", err)
			pause(ctx, acceptPause)
			continue
		}
		if s.isProbe(client) || n < dnsHeader {
			continue // no query
		}
		select {
		case slots <- struct{}{}:
		default:
			continue
		}
		query := bytes.Clone(buf[:n])
		s.relaying.Go(func() {
			defer func() { <-slots }()
			// Lost only if the workload ends.
			_, _ = l.WriteToUDPAddrPort(s.resolve(ctx, query), client)
		})
	}
}

// resolve asks one name server after the other.
func (s *server) resolve(ctx context.Context, query []byte) []byte {
	for _, upstream := range s.env.dns {
		answer, err := s.ask(ctx, upstream, query)
		if err == nil {
			s.count(dns)
			return answer
		}
		s.env.log.Debug("no answer from a name server", "server", upstream, "error", err)
	}
	return serverFailure(query)
}

func (s *server) ask(ctx context.Context, upstream netip.AddrPort, query []byte) ([]byte, error) {
	// A socket for each query: its port is part of what an answer has to know.
	conn, err := dialUDP(s.netns, upstream)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // nothing to lose
	ctx, cancel := context.WithTimeout(ctx, s.env.dnsTimeout)
	defer cancel()
	// Fails only on a closed connection.
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()
	if _, err := conn.Write(query); err != nil {
		return nil, err
	}
	answer := make([]byte, maxMessage)
	for {
		n, err := conn.Read(answer)
		if err != nil {
			return nil, err
		}
		if n >= dnsHeader && bytes.Equal(answer[:2], query[:2]) {
			return answer[:n], nil
		}
	}
}

// serverFailure makes an answer of a query.
func serverFailure(query []byte) []byte {
	const response, serverFailure = 0x80, 2
	answer := bytes.Clone(query)
	answer[2] |= response
	answer[3] = answer[3]&0xf0 | serverFailure
	return answer
}

// ParseNameServer parses the address of a name server, with or without a port.
func ParseNameServer(text string) (netip.AddrPort, error) {
	const port = 53
	if addr, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(addr, port), nil
	}
	server, err := netip.ParseAddrPort(text)
	if err != nil {
		return server, fmt.Errorf("bad name server %q: it must be an IP address, with or without a port", text)
	}
	return server, nil
}

// NameServers returns the name servers of a file like /etc/resolv.conf that can be
// reached from inside a pod. It fails if there are none: those on the node's own
// loopback cannot.
func NameServers(path string) ([]netip.AddrPort, error) {
	conf, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot find name servers: %w", err)
	}
	var servers []netip.AddrPort
	for line := range strings.Lines(string(conf)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		server, err := ParseNameServer(fields[1])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if reachable(server) {
			servers = append(servers, server)
		}
	}
	if servers == nil {
		return nil, fmt.Errorf("%s names no server that pods can reach: name one, or switch DNS capture off", path)
	}
	return servers, nil
}

// reachable says whether a name server can be reached from inside a pod.
func reachable(server netip.AddrPort) bool {
	return server.IsValid() && !server.Addr().IsLoopback() && !server.Addr().IsUnspecified()
}
