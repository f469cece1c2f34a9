package nodeproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// What a client of port 15008 may take to say where it wants to go.
const (
	maxHead     = 8 << 10
	headTimeout = 5 * time.Second
)

// A refusal is an error whose text the client has been sent.
type refusal struct {
	status int
	error
}

// toConnected is the route of connections to port 15008, which are not redirected:
// they say where they want to go.
func (s *server) toConnected(ctx context.Context, c *connection) (*net.TCPConn, error) {
	app, err := s.readAndConnect(ctx, c)
	var r refusal
	if errors.As(err, &r) {
		r.send(c)
	}
	return app, err
}

func (s *server) readAndConnect(ctx context.Context, c *connection) (*net.TCPConn, error) {
	to, early, err := readConnect(c)
	if err != nil {
		return nil, err
	}
	s.heading(c, to)
	if err := s.mayConnect(to); err != nil {
		return nil, err
	}
	app, err := s.dialAs(ctx, c.client.Addr(), to)
	if err != nil {
		return nil, refusal{http.StatusBadGateway, err}
	}
	_, err = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	if err == nil {
		_, err = app.Write(early)
	}
	if err != nil {
		reset(app)
		return nil, err
	}
	return app, nil
}

// readConnect reads a CONNECT request. It returns where the client wants to go and
// what it has sent after the request.
func readConnect(c net.Conn) (to netip.AddrPort, early []byte, err error) {
	bad := func(format string, args ...any) error {
		return refusal{http.StatusBadRequest, fmt.Errorf(format, args...)}
	}
	if err := c.SetReadDeadline(time.Now().Add(headTimeout)); err != nil {
		return to, nil, err
	}
	limited := &io.LimitedReader{R: c, N: maxHead}
	head := bufio.NewReaderSize(limited, maxHead)
	request, err := http.ReadRequest(head)
	switch {
	case err != nil && limited.N == 0:
		return to, nil, bad("the request is longer than %d bytes", maxHead)
	case err != nil:
		return to, nil, bad("cannot read an HTTP/1.1 request within %s: %v", headTimeout, err)
	case request.Method != http.MethodConnect:
		return to, nil, bad("the method is %s, only CONNECT is served here", request.Method)
	}
	if to, err = netip.ParseAddrPort(request.RequestURI); err != nil {
		return to, nil, bad("the target is not an IP address and a port: %v", err)
	}
	if early, err = head.Peek(head.Buffered()); err != nil {
		return to, nil, err
	}
	return netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), early, c.SetReadDeadline(time.Time{})
}

// mayConnect says why a target is none for a client from outside the pod.
func (s *server) mayConnect(to netip.AddrPort) error {
	forbid := func(why string) error {
		return refusal{http.StatusForbidden, fmt.Errorf("%s is %s", to, why)}
	}
	if own(to.Port()) {
		return forbid("the proxy itself")
	}
	var addrs []net.Addr
	err := s.netns.Do(func() (err error) {
		addrs, err = net.InterfaceAddrs()
		return err
	})
	if err != nil {
		return refusal{http.StatusBadGateway, fmt.Errorf("cannot list the pod's addresses: %v", err)}
	}
	for _, a := range addrs {
		prefix, err := netip.ParsePrefix(a.String())
		if err == nil && prefix.Addr() == to.Addr() && !to.Addr().IsLoopback() {
			return nil
		}
	}
	return forbid("not an address of this pod")
}

// send tells the client, and waits a little until it has read it: closing on what it
// is still sending would cut the answer off.
func (r refusal) send(c *connection) {
	// It is the last thing to be said, and nobody is left to tell of a failure.
	_ = c.SetDeadline(time.Now().Add(time.Second))
	text := r.Error() + "\n"
	_, _ = fmt.Fprintf(c, "HTTP/1.1 %d %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		r.status, http.StatusText(r.status), len(text), text)
	_ = c.CloseWrite()
	_, _ = io.Copy(io.Discard, io.LimitReader(c, math.MaxUint16))
}
