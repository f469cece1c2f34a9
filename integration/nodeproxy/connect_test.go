package nodeproxy_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/integration/nodeproxy"
)

// connect sends a CONNECT request, with more right behind it, and returns what the
// proxy answers.
func (p *pod) connect(c *net.TCPConn, target, early string) (*http.Response, *bufio.Reader) {
	p.t.Helper()
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n%s", target, target, early); err != nil {
		p.t.Fatal(err)
	}
	return p.response(c)
}

func (p *pod) response(c *net.TCPConn) (*http.Response, *bufio.Reader) {
	p.t.Helper()
	r := bufio.NewReader(c)
	response, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		p.t.Fatal(err)
	}
	return response, r
}

func TestConnect(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	for family, addr := range podAddrs {
		netlab.ServeEcho(t, p.app, family, "tcp", at(addr, 80))
		c := p.dial(p.peer, at(addr, 15008))
		response, r := p.connect(c, at(addr, 80), "sent at once, ")
		if response.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s", family, response.Status)
		}
		if _, err := io.WriteString(c, "sent later"); err != nil {
			t.Fatal(err)
		}
		if err := c.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		reply, err := netlab.ReadReply(r)
		if err != nil {
			t.Fatal(err)
		}
		if reply.Server != family || reply.Peer.Addr().String() != peerAddrs[family] {
			t.Errorf("reached %+v", reply)
		}
		if echo, err := io.ReadAll(r); string(echo) != "sent at once, sent later" || err != nil {
			t.Errorf("%s: echoed %q, %v", family, echo, err)
		}
	}
	p.wantIdle()
	p.wantRelayed(nodeproxy.Relayed{HBONE: 2})
}

// The pod's other addresses are its own too.
func TestConnectByAnotherAddress(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	netlab.MustRun(t, p.app, "ip", "address", "add", "10.9.9.9/32", "dev", "lo")
	netlab.ServeEcho(t, p.app, "app", "tcp", "10.9.9.9:80")
	response, _ := p.connect(p.dial(p.peer, "10.0.0.1:15008"), "10.9.9.9:80", "")
	if response.StatusCode != http.StatusOK {
		t.Error(response.Status)
	}
}

func TestConnectIsRefused(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	netlab.ServeEcho(t, p.app, "private", "tcp", "127.0.0.1:80")
	netlab.ServeEcho(t, p.peer, "peer", "tcp", "10.0.0.2:80")
	const connect = "CONNECT %s HTTP/1.1\r\n\r\n"
	for _, test := range []struct {
		request string
		status  int
		text    string
	}{
		{fmt.Sprintf(connect, "10.0.0.2:80"), 403, "10.0.0.2:80 is not an address of this pod"},
		{fmt.Sprintf(connect, "127.0.0.1:80"), 403, "127.0.0.1:80 is not an address of this pod"},
		{fmt.Sprintf(connect, "[::ffff:127.0.0.1]:80"), 403, "127.0.0.1:80 is not an address of this pod"},
		{fmt.Sprintf(connect, "0.0.0.0:80"), 403, "0.0.0.0:80 is not an address of this pod"},
		{fmt.Sprintf(connect, "[::1]:80"), 403, "[::1]:80 is not an address of this pod"},
		{fmt.Sprintf(connect, "10.0.0.1:15008"), 403, "10.0.0.1:15008 is the proxy itself"},
		{fmt.Sprintf(connect, "10.0.0.1:15006"), 403, "10.0.0.1:15006 is the proxy itself"},
		{fmt.Sprintf(connect, "10.0.0.1:15001"), 403, "10.0.0.1:15001 is the proxy itself"},
		{fmt.Sprintf(connect, "localhost:80"), 400, "not an IP address and a port"},
		{fmt.Sprintf(connect, "10.0.0.1"), 400, "not an IP address and a port"},
		{"GET / HTTP/1.1\r\nHost: 10.0.0.1\r\n\r\n", 400, "the method is GET, only CONNECT is served here"},
		{"\x16\x03\x01 this is TLS\r\n\r\n", 400, "cannot read an HTTP/1.1 request"},
		{fmt.Sprintf(connect, strings.Repeat("x", 9000)), 400, "the request is longer than 8192 bytes"},
		{fmt.Sprintf(connect, "10.0.0.1:81"), 502, "cannot connect to 10.0.0.1:81: connection refused"},
		{fmt.Sprintf(connect, "[fd00::1]:80"), 502, "its client 10.0.0.2 is of the other IP version"},
	} {
		c := p.dial(p.peer, "10.0.0.1:15008")
		if _, err := io.WriteString(c, test.request); err != nil {
			t.Fatal(err)
		}
		response, _ := p.response(c)
		text, err := io.ReadAll(response.Body)
		if response.StatusCode != test.status || !strings.Contains(string(text), test.text) || err != nil {
			t.Errorf("%.60q: %s %q, %v, want %d %q", test.request, response.Status, text, err, test.status, test.text)
		}
		if err := c.CloseWrite(); err != nil {
			t.Error(err)
		}
	}
	p.wantRelayed(nodeproxy.Relayed{})
	p.wantIdle()
}
