package nodeproxy_test

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/integration/nodeproxy"
)

func nameServers(t *testing.T, texts ...string) []netip.AddrPort {
	t.Helper()
	var servers []netip.AddrPort
	for _, text := range texts {
		server, err := nodeproxy.ParseNameServer(text)
		if err != nil {
			t.Fatal(err)
		}
		servers = append(servers, server)
	}
	return servers
}

func TestParseNameServer(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.10":    "10.0.0.10:53",
		"10.0.0.10:54": "10.0.0.10:54",
		"fd00::a":      "[fd00::a]:53",
		"[fd00::a]:54": "[fd00::a]:54",
		"dns.example":  `bad name server "dns.example"`,
		"10.0.0.10:":   `bad name server "10.0.0.10:"`,
		"":             `bad name server ""`,
	} {
		got, err := nodeproxy.ParseNameServer(text)
		if got.String() != want && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, %v, want %s", text, got, err, want)
		}
	}
}

func TestNameServers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	for conf, want := range map[string]string{
		"# comment\nsearch a b\nnameserver 127.0.0.53\nnameserver 10.0.0.10\nnameserver fd00::a # kube-dns\n\nnameserver\noptions x": "",
		"nameserver 127.0.0.53\nnameserver ::1\n": "names no server that pods can reach",
		"":                     "names no server that pods can reach",
		"nameserver localhost": `bad name server "localhost"`,
	} {
		if err := os.WriteFile(path, []byte(conf), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := nodeproxy.NameServers(path)
		switch {
		case want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%q: %v, %v, want %q", conf, got, err, want)
		case want == "" && !slices.Equal(got, nameServers(t, "10.0.0.10", "fd00::a")):
			t.Errorf("%q: %v, %v", conf, got, err)
		}
	}
	if got, err := nodeproxy.NameServers(path + "-none"); err == nil {
		t.Errorf("a file that does not exist: %v", got)
	}
}

// dialUDP opens a socket that is closed at the end of the test.
func (n *node) dialUDP(from *netlab.NS, addr string, options ...netlab.Option) net.Conn {
	n.t.Helper()
	c, err := from.Dial(n.t.Context(), "udp", addr, options...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		n.t.Fatal(err)
	}
	return c
}

// A nameServer answers UDP queries in a namespace with the query, marked as an answer.
type nameServer struct {
	conn    *net.UDPConn
	clients chan netip.AddrPort // of each query
}

func serveNames(t *testing.T, ns *netlab.NS, addr string) *nameServer {
	t.Helper()
	conn, err := ns.ListenPacket(addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{conn: conn, clients: make(chan netip.AddrPort, 1000)}
	done := make(chan struct{})
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	go func() {
		defer close(done)
		s.serve()
	}()
	return s
}

func (s *nameServer) serve() {
	buf := make([]byte, 65535)
	for {
		n, client, err := s.conn.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		s.clients <- client
		// What a stranger could send, and then the answer.
		stray := bytes.Clone(buf[:n])
		stray[0]++
		_, _ = s.conn.WriteToUDPAddrPort(stray, client) // may be lost, as any datagram
		buf[2] |= 0x80
		_, _ = s.conn.WriteToUDPAddrPort(buf[:n], client)
	}
}

// query is a DNS query for a name of one label, and its answer, from no server or one.
func query(id uint16, name string) (query, answered, failed []byte) {
	query = binary.BigEndian.AppendUint16(nil, id)
	query = append(query, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, byte(len(name)))
	query = append(append(query, name...), 0, 0, 1, 0, 1)
	answered, failed = bytes.Clone(query), bytes.Clone(query)
	answered[2] |= 0x80
	failed[2] |= 0x80
	failed[3] |= 2
	return query, answered, failed
}

// resolve sends a query and returns the answer.
func (p *pod) resolve(server string, query []byte) []byte {
	p.t.Helper()
	c := p.dialUDP(p.app, server)
	if _, err := c.Write(query); err != nil {
		p.t.Fatal(err)
	}
	answer := make([]byte, 65535)
	n, err := c.Read(answer)
	if err != nil {
		p.t.Fatal(err)
	}
	return answer[:n]
}

func TestDNSOverUDP(t *testing.T) {
	netlab.Kernel(t)
	for family, peer := range peerAddrs {
		t.Run(family, func(t *testing.T) {
			p := newPod(t, nodeproxy.Config{DNS: nameServers(t, peer)})
			server := serveNames(t, p.peer, at(peer, 53))
			for i := range uint16(20) {
				q, want, _ := query(i, "name")
				if got := p.resolve(at(peer, 53), q); !bytes.Equal(got, want) {
					t.Fatalf("the answer is %x, want %x", got, want)
				}
				if client := <-server.clients; client.Addr().String() != podAddrs[family] {
					t.Errorf("the query came from %s", client)
				}
			}
			p.wantRelayed(nodeproxy.Relayed{DNS: 20})
		})
	}
}

// The answer comes from the server that the app asked, wherever the proxy has it from.
func TestDNSGoesToTheConfiguredServers(t *testing.T) {
	netlab.Kernel(t)
	// Nobody listens at the first: the second is asked.
	p := newPod(t, nodeproxy.Config{DNS: nameServers(t, "10.0.0.2:5353", "10.0.0.2:5354")})
	serveNames(t, p.peer, "10.0.0.2:5354")
	netlab.ServeEcho(t, p.peer, "over tcp", "tcp", "10.0.0.2:5354")
	for family, peer := range peerAddrs {
		q, want, _ := query(7, family)
		if got := p.resolve(at(peer, 53), q); !bytes.Equal(got, want) {
			t.Errorf("the answer is %x, want %x", got, want)
		}
		if got := netlab.Ask(t, p.app, "tcp", at(peer, 53)); got.Server != "over tcp" {
			t.Errorf("reached %+v", got)
		}
	}
	p.wantRelayed(nodeproxy.Relayed{DNS: 4})
}

func TestDNSWithoutAnyServerFailsAtOnce(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{DNS: nameServers(t, "10.0.0.2", "fd00::2")})
	q, _, want := query(7, "name")
	if got := p.resolve("10.0.0.2:53", q); !bytes.Equal(got, want) {
		t.Errorf("the answer is %x, want %x", got, want)
	}
	p.wantRefused(p.app, "10.0.0.2:53")
	p.wantRelayed(nodeproxy.Relayed{})
}

func TestDNSFromASilentServer(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{DNS: nameServers(t, "10.0.0.2"), DNSTimeout: 50 * time.Millisecond})
	silent, err := p.peer.ListenPacket("10.0.0.2:53")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	q, _, want := query(7, "name")
	if got := p.resolve("10.0.0.2:53", q); !bytes.Equal(got, want) {
		t.Errorf("the answer is %x, want %x", got, want)
	}
}

func TestManyQueriesAtOnce(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{DNS: nameServers(t, "10.0.0.2")})
	serveNames(t, p.peer, "10.0.0.2:53")
	const each = 200
	var work sync.WaitGroup
	for i := range uint16(each) {
		// Left to themselves two of them might choose the same port.
		c := p.dialUDP(p.app, "10.0.0.2:53", netlab.From(at("10.0.0.1", 20000+int(i))))
		work.Go(func() {
			q, want, _ := query(i, "name")
			got := make([]byte, len(want))
			if _, err := c.Write(q); err != nil {
				t.Error(err)
			}
			if _, err := c.Read(got); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the answer is %x, %v, want %x", got, err, want)
			}
		})
	}
	work.Wait()
	p.wantRelayed(nodeproxy.Relayed{DNS: each})
	// What is no query gets no answer, and does no harm.
	c := p.dialUDP(p.app, "10.0.0.2:53")
	if _, err := c.Write([]byte("too short")); err != nil {
		t.Fatal(err)
	}
	q, want, _ := query(7, "name")
	if got := p.resolve("10.0.0.2:53", q); !bytes.Equal(got, want) {
		t.Errorf("the answer is %x, want %x", got, want)
	}
}
