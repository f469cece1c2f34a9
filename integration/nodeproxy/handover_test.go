package nodeproxy_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/integration/nodeproxy"
)

var leastConnections = flag.Int("connections", 500, "how many connections TestRollingReplacements makes, at least")

// successor starts another proxy, which serves the pod as well.
func (p *pod) successor(cfg nodeproxy.Config) *node {
	p.t.Helper()
	n := startNode(p.t, cfg)
	n.acceptSynced().add("uid0", p.app)
	return n
}

// end tells a proxy to end, and waits until it has.
func (n *node) end() {
	n.t.Helper()
	n.stop()
	select {
	case err := <-n.ended:
		if err != nil {
			n.t.Errorf("the proxy ended with %v", err)
		}
	case <-time.After(patience):
		n.t.Fatal("the proxy does not end")
	}
}

// Traffic is what clients do until they are told to stop, or one fails.
type traffic struct {
	clients sync.WaitGroup
	stopped atomic.Bool
	count   atomic.Int64

	mu   sync.Mutex
	errs []error
}

func newTraffic(t *testing.T) *traffic {
	tr := new(traffic)
	t.Cleanup(func() {
		tr.stopped.Store(true)
		tr.clients.Wait()
	})
	return tr
}

// repeat has some clients do the same again and again.
func (tr *traffic) repeat(clients int, do func() error) {
	for range clients {
		tr.clients.Go(func() {
			for !tr.stopped.Load() {
				if err := do(); err != nil {
					tr.mu.Lock()
					tr.errs = append(tr.errs, err)
					tr.mu.Unlock()
				}
				tr.count.Add(1)
			}
		})
	}
}

func (tr *traffic) stop(t *testing.T) {
	t.Helper()
	tr.stopped.Store(true)
	tr.clients.Wait()
	if len(tr.errs) > 0 {
		t.Errorf("%d of %d failed, for example: %v", len(tr.errs), tr.count.Load(), tr.errs[0])
	}
}

// ask connects, and has a few bytes echoed, and the end.
func ask(from *netlab.NS, addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	c := conn.(*net.TCPConn)
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	_, err = c.Write([]byte("hello"))
	if err == nil {
		err = c.CloseWrite()
	}
	if err != nil {
		return err
	}
	got, err := io.ReadAll(c)
	if err == nil && string(got) != "hello" {
		err = fmt.Errorf("read %q", got)
	}
	return err
}

// lookUp asks a name server and waits for its answer.
func lookUp(from *netlab.NS, addr string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := from.Dial(ctx, "udp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write([]byte("0123456789ab")); err != nil {
		return err
	}
	_, err = c.Read(make([]byte, 100))
	return err
}

// serveBytes echoes what comes, without a word of its own.
func serveBytes(t *testing.T, ns *netlab.NS, addr string) {
	t.Helper()
	l, err := ns.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				_, _ = io.Copy(c, c) // the client sees how it ends
				_ = c.Close()
			})
		}
	})
}

// One proxy after the other takes over, and nobody notices.
func TestRollingReplacements(t *testing.T) {
	netlab.Kernel(t)
	const replacements = 20
	cfg := nodeproxy.Config{DNS: nameServers(t, "10.0.0.2"), Drain: time.Minute}
	p := newPod(t, cfg)
	serveBytes(t, p.peer, "[::]:80")
	serveBytes(t, p.app, "[::]:80")
	names := serveNames(t, p.peer, "10.0.0.2:53")
	ended := make(chan struct{})
	t.Cleanup(func() { close(ended) })
	go func() {
		for {
			select {
			case <-names.clients:
			case <-ended:
				return
			}
		}
	}()
	tr := newTraffic(t)
	tr.repeat(20, func() error { return ask(p.app, "10.0.0.2:80") })
	tr.repeat(1, func() error { return ask(p.app, "[fd00::2]:80") })
	tr.repeat(20, func() error { return ask(p.peer, "10.0.0.1:80") })
	tr.repeat(1, func() error { return ask(p.peer, "[fd00::1]:80") })
	tr.repeat(1, func() error { return lookUp(p.app, "10.0.0.99:53") })

	serving := p.node
	for i := 0; i < replacements || tr.count.Load() < int64(*leastConnections); i++ {
		next := p.successor(cfg)
		serving.end()
		serving = next
	}
	netlab.Eventually(t, func() error { // all of it works with the last one, too
		r := serving.proxy.State().Relayed
		if r.Outbound < 10 || r.Inbound < 10 || r.DNS < 10 {
			return fmt.Errorf("the last proxy has relayed %+v", r)
		}
		return nil
	})
	tr.stop(t)
	t.Logf("%d connections and queries, %d failed", tr.count.Load(), len(tr.errs))
}

// Three proxies serve a pod; whichever ends, and in whatever order, loses nothing.
func TestHandoverInAnyOrder(t *testing.T) {
	netlab.Kernel(t)
	cfg := nodeproxy.Config{DNS: nameServers(t, "10.0.0.2"), Drain: time.Minute}
	for _, order := range [][]int{{0, 1}, {0, 2}, {1, 0}, {1, 2}, {2, 1}, {2, 0}} {
		t.Run(fmt.Sprint(order), func(t *testing.T) {
			netlab.Kernel(t)
			p := newPod(t, cfg)
			serveBytes(t, p.peer, "[::]:80")
			all := []*node{p.node, p.successor(cfg), p.successor(cfg)}
			tr := newTraffic(t)
			tr.repeat(30, func() error { return ask(p.app, "10.0.0.2:80") })
			for _, i := range order {
				all[i].end()
			}
			last := all[3-order[0]-order[1]]
			before := last.proxy.State().Relayed.Outbound
			netlab.Eventually(t, func() error {
				if now := last.proxy.State().Relayed.Outbound; now < before+10 {
					return fmt.Errorf("the last proxy has relayed %d connections", now)
				}
				return nil
			})
			tr.stop(t)
		})
	}
}

// A proxy that cannot serve a pod, and tries again and again, takes nothing from one
// that can.
func TestAProxyThatCannotServeTakesNothing(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{})
	serveBytes(t, p.peer, "[::]:80")
	squatter, err := p.app.Listen("127.0.0.1:15053")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = squatter.Close() })
	tr := newTraffic(t)
	tr.repeat(30, func() error { return ask(p.app, "10.0.0.2:80") })
	other := startNode(t, nodeproxy.Config{DNS: nameServers(t, "10.0.0.2"), Retry: time.Millisecond})
	link := other.acceptSynced()
	for range 20 {
		link.nackedAdd("uid0", p.app, "cannot listen on tcp 127.0.0.1:15053")
	}
	netlab.Eventually(t, func() error {
		if count := tr.count.Load(); count < 500 {
			return fmt.Errorf("%d connections", count)
		}
		return nil
	})
	tr.stop(t)
}

// With nobody to hand over to, what has been accepted goes on, and the rest is refused.
func TestDrainWithoutASuccessor(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{DNS: nameServers(t, "10.0.0.2"), Drain: time.Minute})
	client, server := p.pair(p.app, p.peer, "10.0.0.2:80")
	p.stop()
	netlab.Eventually(t, func() error {
		if err := ask(p.app, "10.0.0.2:80"); !errors.Is(err, unix.ECONNREFUSED) {
			return fmt.Errorf("not refused, but: %v", err)
		}
		return nil
	})
	wantAlive(t, client, server)
	_ = client.Close()
	_ = server.Close()
	p.end()
}

// A query that is being answered is, though the proxy has been told to end.
func TestAQueryOutlivesTheDrain(t *testing.T) {
	netlab.Kernel(t)
	p := newPod(t, nodeproxy.Config{DNS: nameServers(t, "10.0.0.2"), Drain: time.Minute})
	names, err := p.peer.ListenPacket("10.0.0.2:53")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = names.Close() })
	c := p.dialUDP(p.app, "10.0.0.99:53")
	if _, err := c.Write([]byte("0123456789ab")); err != nil {
		t.Fatal(err)
	}
	var buf [100]byte
	n, from, err := names.ReadFromUDPAddrPort(buf[:])
	if err != nil {
		t.Fatal(err)
	}
	p.stop()
	p.wantUnready("ending")
	if _, err := names.WriteToUDPAddrPort(buf[:n], from); err != nil {
		t.Fatal(err)
	}
	if n, err := c.Read(buf[:]); err != nil || string(buf[:n]) != "0123456789ab" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	p.end()
}
