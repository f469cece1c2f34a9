package demo

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// webPort is where every web server of the story listens.
const webPort = 8080

// greeting is what a web server says first: what it saw of its client.
type greeting struct {
	Peer   netip.AddrPort
	Tagged bool // the packets carried the reference proxy's tag
}

// A web is a server that greets its clients and then echoes what they say.
type web struct {
	listeners []net.Listener
	mu        sync.Mutex
	conns     map[*net.TCPConn]bool
}

// serveWeb starts a server inside a namespace, for each IP version.
func serveWeb(n *netlab.NS) (*web, error) {
	w := &web{conns: map[*net.TCPConn]bool{}}
	for _, family := range families() {
		addr, options := netip.IPv4Unspecified(), []netlab.Option(nil)
		if family == unix.AF_INET6 {
			addr, options = netip.IPv6Unspecified(), []netlab.Option{v6only}
		}
		l, err := n.Listen(netip.AddrPortFrom(addr, webPort).String(), options...)
		if err != nil {
			w.close()
			return nil, err
		}
		w.listeners = append(w.listeners, l)
		go w.accept(l)
	}
	return w, nil
}

func v6only(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 1) }

// families are the IP versions that the kernel has.
func families() []int {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return []int{unix.AF_INET}
	}
	_ = unix.Close(fd) // was never used
	return []int{unix.AF_INET, unix.AF_INET6}
}

func (w *web) accept(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return // closed
		}
		go w.serve(conn.(*net.TCPConn))
	}
}

func (w *web) serve(conn *net.TCPConn) {
	w.mu.Lock()
	w.conns[conn] = true
	w.mu.Unlock()
	defer func() {
		_ = conn.Close() // reset may have been quicker
		w.mu.Lock()
		delete(w.conns, conn)
		w.mu.Unlock()
	}()
	class, err := trafficClass(conn)
	if err != nil {
		return // the client sees a connection without a greeting
	}
	hello := greeting{Peer: conn.RemoteAddr().(*net.TCPAddr).AddrPort(), Tagged: class>>2 == proxyTag}
	hello.Peer = netip.AddrPortFrom(hello.Peer.Addr().Unmap(), hello.Peer.Port())
	if json.NewEncoder(conn).Encode(hello) == nil {
		_, _ = io.Copy(conn, conn) // ends when the client does, however it does
	}
}

// reset cuts every connection that is open.
func (w *web) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for conn := range w.conns {
		_ = conn.SetLinger(0) // fails, as does Close, only on a closed one
		_ = conn.Close()
	}
}

func (w *web) close() {
	for _, l := range w.listeners {
		_ = l.Close() // the server is over either way
	}
	w.reset()
}

// proxyTag is the DSCP value of the packets that the reference proxy sends.
const proxyTag = 0x2e

// trafficClass returns the TOS or traffic class byte that the client's packets
// carried when the connection was made.
func trafficClass(conn *net.TCPConn) (int, error) {
	level, receive, options := unix.SOL_IP, unix.IP_RECVTOS, unix.IP_PKTOPTIONS
	if conn.LocalAddr().(*net.TCPAddr).IP.To4() == nil {
		level, receive, options = unix.SOL_IPV6, unix.IPV6_RECVTCLASS, unix.IPV6_2292PKTOPTIONS
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	class := 0
	if err := raw.Control(func(fd uintptr) {
		if failed = unix.SetsockoptInt(int(fd), level, receive, 1); failed == nil {
			class, failed = packetOption(fd, level, options)
		}
	}); err != nil {
		return 0, err
	}
	return class, failed
}

// packetOption reads the one control message that a socket keeps of its peer's packets.
func packetOption(fd uintptr, level, options int) (int, error) {
	buf := make([]byte, 64)
	size := uint32(len(buf))
	if _, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, fd, uintptr(level), uintptr(options),
		uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(&size)), 0); errno != 0 {
		return 0, fmt.Errorf("cannot read the traffic class: %w", errno)
	}
	messages, err := unix.ParseSocketControlMessage(buf[:size])
	if err != nil || len(messages) != 1 {
		return 0, fmt.Errorf("cannot read the traffic class from %x: %v", buf[:size], err)
	}
	switch data := messages[0].Data; len(data) {
	case 1: // IPv4
		return int(data[0]), nil
	case 4: // IPv6
		return int(binary.NativeEndian.Uint32(data)), nil
	default:
		return 0, fmt.Errorf("the traffic class has %d bytes", len(data))
	}
}

// A conversation is a client's connection to a web server.
type conversation struct {
	greeting
	conn  net.Conn
	lines *bufio.Reader
	count int
}

// patience is how long a connection, or an answer on one, may take.
const patience = 5 * time.Second

// converse connects from inside a namespace and reads the greeting.
func converse(ctx context.Context, n *netlab.NS, to netip.AddrPort) (*conversation, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	conn, err := n.Dial(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	c := &conversation{conn: conn}
	if err := c.greet(); err != nil {
		c.close()
		return nil, fmt.Errorf("%s accepted the connection, and then: %w", to, err)
	}
	return c, nil
}

// greet reads the server's greeting.
func (c *conversation) greet() error {
	c.lines = bufio.NewReader(c.conn)
	line, err := c.line()
	if err != nil {
		return err
	}
	return json.Unmarshal(line, &c.greeting)
}

func (c *conversation) line() ([]byte, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	return c.lines.ReadBytes('\n')
}

// say sends a line and waits for its echo.
func (c *conversation) say() error {
	c.count++
	message := fmt.Sprintf("line %d\n", c.count)
	if _, err := io.WriteString(c.conn, message); err != nil {
		return err
	}
	echo, err := c.line()
	if err == nil && string(echo) != message {
		err = fmt.Errorf("the server answered %q to %q", echo, message)
	}
	return err
}

// local is the address of the client's own socket.
func (c *conversation) local() netip.AddrPort { return c.conn.LocalAddr().(*net.TCPAddr).AddrPort() }

func (c *conversation) close() { _ = c.conn.Close() } // all of it has been read
