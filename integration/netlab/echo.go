package netlab

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Reply is what an echo server tells whoever asks it, before it echoes.
type Reply struct {
	Server      string         // the name of the server that was reached
	Peer        netip.AddrPort // the client's address, as the server saw it
	Local       netip.AddrPort // the server's own address of that connection
	OriginalDst netip.AddrPort // TCP: where the client wanted to go, if it was redirected
}

// An Echo is a server: on each TCP connection it sends its Reply as a line of JSON
// and then echoes; to each datagram it answers with the Reply, a line end and the
// datagram.
type Echo struct {
	name   string
	socket io.Closer
	work   sync.WaitGroup
	mu     sync.Mutex
	conns  map[net.Conn]bool // nil once closed
}

// StartEcho starts an echo server inside a namespace.
func StartEcho(n *NS, name, network, addr string, options ...Option) (*Echo, error) {
	e := &Echo{name: name, conns: map[net.Conn]bool{}}
	switch network {
	case "udp":
		conn, err := n.ListenPacket(addr, options...)
		if err != nil {
			return nil, err
		}
		e.socket = conn
		e.work.Go(func() { e.answer(conn) })
	default:
		l, err := n.Listen(addr, options...)
		if err != nil {
			return nil, err
		}
		e.socket = l
		e.work.Go(func() { e.accept(l) })
	}
	return e, nil
}

// Close ends the server and its connections.
func (e *Echo) Close() error {
	err := e.socket.Close()
	e.mu.Lock()
	for conn := range e.conns {
		_ = conn.Close() // the peer sees the end either way
	}
	e.conns = nil
	e.mu.Unlock()
	e.work.Wait()
	return err
}

func (e *Echo) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		e.mu.Lock()
		if e.conns == nil {
			e.mu.Unlock()
			_ = conn.Close() // the server has just been closed
			return
		}
		e.conns[conn] = true
		e.work.Go(func() { e.serve(conn) })
		e.mu.Unlock()
	}
}

func (e *Echo) serve(conn net.Conn) {
	defer func() {
		_ = conn.Close() // Close may have been quicker
		e.mu.Lock()
		delete(e.conns, conn)
		e.mu.Unlock()
	}()
	reply := Reply{Server: e.name, Peer: addrPort(conn.RemoteAddr()), Local: addrPort(conn.LocalAddr())}
	if original, err := OriginalDst(conn.(*net.TCPConn)); err == nil && original != reply.Local {
		reply.OriginalDst = original
	}
	if json.NewEncoder(conn).Encode(reply) == nil {
		_, _ = io.Copy(conn, conn) // ends when the peer does, however it does
	}
}

func (e *Echo) answer(conn *net.UDPConn) {
	buf := make([]byte, 65536)
	for {
		size, peer, err := conn.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // an ICMP error for an earlier answer
		}
		reply, err := json.Marshal(Reply{Server: e.name, Peer: unmap(peer), Local: addrPort(conn.LocalAddr())})
		if err != nil {
			return
		}
		_, _ = conn.WriteToUDPAddrPort(append(append(reply, '\n'), buf[:size]...), peer) // like any datagram, may be lost
	}
}

// ReadReply reads the Reply that an echo server sends first.
func ReadReply(r *bufio.Reader) (Reply, error) {
	var reply Reply
	line, err := r.ReadBytes('\n')
	if err != nil {
		return reply, fmt.Errorf("no reply: %w", err)
	}
	if err := json.Unmarshal(line, &reply); err != nil {
		return reply, fmt.Errorf("cannot parse reply %q: %w", line, err)
	}
	return reply, nil
}

// AskEcho opens a connection from inside a namespace, or sends a datagram, and
// returns the answering server's Reply once an echo has come back too.
func AskEcho(ctx context.Context, n *NS, network, addr string, options ...Option) (Reply, error) {
	conn, err := n.Dial(ctx, network, addr, options...)
	if err != nil {
		return Reply{}, err
	}
	defer func() { _ = conn.Close() }() // all of it has been read
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	reply, err := exchange(conn)
	if err != nil {
		return reply, fmt.Errorf("cannot ask %s %s from %s: %w", network, addr, n.Name, err)
	}
	return reply, nil
}

// exchange sends one message and reads the reply and the echo.
func exchange(conn net.Conn) (Reply, error) {
	const message = "over and back"
	if _, err := io.WriteString(conn, message); err != nil {
		return Reply{}, err
	}
	r := bufio.NewReaderSize(conn, 65536)
	reply, err := ReadReply(r)
	if err != nil {
		return reply, err
	}
	echo := make([]byte, len(message))
	if _, err := io.ReadFull(r, echo); err != nil {
		return reply, fmt.Errorf("no echo from %s: %w", reply.Server, err)
	}
	if string(echo) != message {
		return reply, fmt.Errorf("%s echoed %q", reply.Server, echo)
	}
	return reply, nil
}

// ServeEcho is StartEcho for a test, at whose end the server is closed.
func ServeEcho(t testing.TB, n *NS, name, network, addr string, options ...Option) *Echo {
	t.Helper()
	e, err := StartEcho(n, name, network, addr, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() }) // fails only if the test has closed it
	return e
}

// Ask is AskEcho for a test, which it fails if there is no answer in 5 seconds.
func Ask(t testing.TB, n *NS, network, addr string, options ...Option) Reply {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	reply, err := AskEcho(ctx, n, network, addr, options...)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// OriginalDst returns where a connection was going before it was redirected.
func OriginalDst(conn *net.TCPConn) (netip.AddrPort, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return netip.AddrPort{}, err
	}
	const soOriginalDst = 80 // SO_ORIGINAL_DST, and IP6T_SO_ORIGINAL_DST
	level := unix.SOL_IP
	if addrPort(conn.LocalAddr()).Addr().Is6() {
		level = unix.SOL_IPV6
	}
	var sa unix.RawSockaddrInet6
	var errno unix.Errno
	if err := raw.Control(func(fd uintptr) {
		size := uint32(unsafe.Sizeof(sa))
		_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, uintptr(level), soOriginalDst,
			uintptr(unsafe.Pointer(&sa)), uintptr(unsafe.Pointer(&size)), 0)
	}); err != nil {
		return netip.AddrPort{}, err
	}
	if errno != 0 {
		return netip.AddrPort{}, errno
	}
	port := sa.Port>>8 | sa.Port<<8
	if sa.Family == unix.AF_INET {
		return netip.AddrPortFrom(netip.AddrFrom4((*unix.RawSockaddrInet4)(unsafe.Pointer(&sa)).Addr), port), nil
	}
	return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), port), nil
}

func addrPort(a net.Addr) netip.AddrPort {
	return unmap(netip.MustParseAddrPort(a.String()))
}

func unmap(ap netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
