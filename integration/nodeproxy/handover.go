package nodeproxy

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
)

// handoverTime is how long a listener that gets nothing new stays open: for the
// handshakes that it has begun, whose last packet takes as long as the way from the
// client, and which would be reset.
const handoverTime = 200 * time.Millisecond

// drain hands the pod over to another proxy, if there is one, and returns when the
// connections have ended.
func (s *server) drain(ctx context.Context) {
	var leaving sync.WaitGroup
	for _, l := range s.listeners {
		leaving.Go(func() { s.handOver(ctx, l) })
	}
	leaving.Wait()
	s.accepting.Wait()
	s.relaying.Wait()
}

// handOver closes a listener. What comes to its address goes to another proxy's, if
// there is one, before that; what has come is taken.
func (s *server) handOver(ctx context.Context, l *listener) {
	if err := s.turnAway(ctx, l); err != nil && ctx.Err() == nil {
		s.env.log.Warn("cannot hand a port over, new connections may be reset", "port", l.port, "error", err)
	}
	l.empty(ctx)
	if l.udp == nil {
		_ = l.tcp.Close() // may have been closed meanwhile
		return
	}
	// Answers are sent from it. It fails only if it has been closed meanwhile.
	_ = l.udp.SetReadDeadline(time.Unix(1, 0))
}

// turnAway has the kernel give what comes next to another listener of the address,
// and waits until what it had begun to give to l has been taken. With no other it does
// nothing.
func (s *server) turnAway(ctx context.Context, l *listener) error {
	conn, err := nlconn.Open(s.netns, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // was only read
	sharing, err := l.sharing(ctx, conn)
	for err == nil && sharing > 1 && ctx.Err() == nil {
		before := sharing
		if err = s.steer(ctx, l, sharing); err != nil {
			return err
		}
		l.empty(ctx)
		// If one has gone, or come, the places may have changed.
		if sharing, err = l.sharing(ctx, conn); sharing == before {
			break
		}
	}
	return err
}

// steer has the kernel give all that comes to the address of l to one of the sockets
// that share it, but not to l.
//
// Those are a row of which a program, that is one for all of them, names the place. A
// new one is put at its end; when one goes, the last one takes its place. So the last
// is the newest, as long as there were never more than two; but which is whose the
// kernel does not tell, and it could be l. Therefore something is sent there, to see
// whether it comes back.
func (s *server) steer(ctx context.Context, l *listener, sharing int) error {
	for place := sharing - 1; place >= 0; place-- {
		program := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: uint32(place)}}
		err := control(l.socket(), func(fd int) error {
			return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF,
				&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
		})
		if err != nil {
			return fmt.Errorf("cannot choose who gets what comes to %s: %w", l.port, err)
		}
		if back, err := s.comesBack(ctx, l); !back || err != nil {
			return err
		}
	}
	return nil
}

// comesBack sends something to the address of l, from inside the pod, and says
// whether it has come to l within the time of a handover.
func (s *server) comesBack(ctx context.Context, l *listener) (bool, error) {
	came := make(chan struct{}, 1)
	end, err := s.probe(ctx, l, came)
	if err != nil {
		return false, fmt.Errorf("cannot see who gets what comes to %s: %w", l.port, err)
	}
	defer end()
	timer := time.NewTimer(handoverTime)
	defer timer.Stop()
	select {
	case <-came:
		return true, nil
	case <-timer.C:
	case <-ctx.Done():
	}
	return false, nil
}

// probe connects, or sends a datagram that is no query, to the address of l. If
// it comes to l, came is told, until end is called.
func (s *server) probe(ctx context.Context, l *listener, came chan struct{}) (end func(), err error) {
	to := l.addr
	if to.Addr().IsUnspecified() { // if it is IPv6's, it serves both
		to = netip.AddrPortFrom(loopback4, to.Port())
	}
	f, err := open(s.netns, familyOf(to.Addr()), l.kind)
	if err != nil {
		return nil, err
	}
	var from netip.AddrPort
	err = control(f, func(fd int) error {
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(to.Addr(), 0))); err != nil {
			return err
		}
		name, err := unix.Getsockname(fd)
		from = netip.AddrPortFrom(to.Addr(), portOf(name))
		return err
	})
	if err != nil {
		_ = f.Close() // it was never used
		return nil, err
	}
	s.setProbe(from, came)
	end = func() { s.setProbe(from, nil); _ = f.Close() } // nothing to lose
	if l.kind == unix.SOCK_DGRAM {
		err = control(f, func(fd int) error { return unix.Sendto(fd, []byte{0}, 0, sockaddr(to)) })
	} else {
		var conn *net.TCPConn
		conn, err = connectTCP(ctx, f, to)
		if err == nil {
			end = func() { s.setProbe(from, nil); reset(conn) }
		} else if errors.Is(err, unix.ECONNRESET) { // whoever got it can be as quick as this
			err = nil
		}
	}
	if err != nil {
		end()
	}
	return end, err
}

// setProbe says who is to hear that something has come from an address.
func (s *server) setProbe(from netip.AddrPort, came chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if came == nil {
		delete(s.probes, from)
	} else {
		s.probes[from] = came
	}
}

// isProbe says whether what comes from an address was sent by comesBack.
func (s *server) isProbe(from netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	came := s.probes[from]
	if came == nil {
		return false
	}
	select {
	case came <- struct{}{}:
	default: // told already
	}
	return true
}

// empty waits until all that has come has been taken.
func (l *listener) empty(ctx context.Context) {
	for l.queued() && ctx.Err() == nil {
		pause(ctx, time.Millisecond)
	}
}

// queued says whether something has come that has not been taken yet.
func (l *listener) queued() bool {
	queued := false
	// After an error it is closed, and has no queue.
	_ = control(l.socket(), func(fd int) error {
		if l.tcp == nil {
			size, err := unix.IoctlGetInt(fd, unix.TIOCINQ)
			queued = size > 0
			return err
		}
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		queued = err == nil && info.Unacked > 0 // of a listener: the length of its queue
		return err
	})
	return queued
}

// sharing counts the sockets that take what comes to the address of l, l included.
func (l *listener) sharing(ctx context.Context, conn *nlconn.Conn) (int, error) {
	const (
		byFamily    = 20 // SOCK_DIAG_BY_FAMILY
		requestSize = 56 // struct inet_diag_req_v2
		replySize   = 72 // struct inet_diag_msg
		listening   = 10 // TCP_LISTEN
		unconnected = 7  // TCP_CLOSE, which is what UDP's sockets are in
	)
	request := make([]byte, requestSize)
	request[0] = byte(familyOf(l.addr.Addr()))
	request[1] = unix.IPPROTO_TCP
	state := listening
	if l.kind == unix.SOCK_DGRAM {
		request[1], state = unix.IPPROTO_UDP, unconnected
	}
	binary.NativeEndian.PutUint32(request[4:], 1<<state)
	binary.BigEndian.PutUint16(request[8:], l.addr.Port())
	own := l.addr.Addr().AsSlice()
	found, err := nlconn.List(ctx, conn, byFamily, request, func(reply []byte) (struct{}, bool, error) {
		if len(reply) < replySize {
			return struct{}{}, false, fmt.Errorf("sock_diag reply of %d bytes, less than %d", len(reply), replySize)
		}
		port, addr := binary.BigEndian.Uint16(reply[4:]), reply[8:8+len(own)]
		return struct{}{}, port == l.addr.Port() && string(addr) == string(own), nil
	})
	if err != nil {
		return 0, fmt.Errorf("cannot see who else listens on %s: %w", l.port, err)
	}
	return len(found), nil
}
