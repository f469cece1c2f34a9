//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// pace is how often a client asks.
const pace = 20 * time.Millisecond

// inPod opens a pod's network namespace: a socket in it is an app's, for all that the
// redirects, the proxy and the network know.
func inPod(t *testing.T, c *cluster.Cluster, p apiPod) *netlab.NS {
	t.Helper()
	node, err := c.Node(p.Spec.NodeName)
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netip.ParseAddr(p.Status.PodIPs[0].IP)
	if err != nil {
		t.Fatal(err)
	}
	ns := podNetns(t, node, addr)
	ns.Name = p.String()
	return ns
}

// podNetns is inPod for the pod of a node that has an address.
func podNetns(t *testing.T, n *cluster.Node, addr netip.Addr) *netlab.NS {
	t.Helper()
	h, err := n.PodNetns(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return &netlab.NS{Handle: h, Name: addr.String()}
}

// A load is clients that ask without a pause, until they are told to end. They try
// nothing twice: what fails, and how, is written down.
type load struct {
	ctx  context.Context // how long it may take
	stop chan struct{}
	work sync.WaitGroup

	mu       sync.Mutex
	asked    map[string]int // by client
	failures []string
}

func startLoad(t *testing.T) *load {
	l := &load{ctx: t.Context(), stop: make(chan struct{}), asked: map[string]int{}}
	t.Cleanup(l.end)
	return l
}

// end ends the clients, each after its last answer.
func (l *load) end() {
	l.mu.Lock()
	select {
	case <-l.stop:
	default:
		close(l.stop)
	}
	l.mu.Unlock()
	l.work.Wait()
}

// repeat asks until the load ends, or, if it cannot go on, until something has failed.
func (l *load) repeat(client string, goesOn bool, ask func(context.Context) error) {
	l.work.Go(func() {
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for {
			// Longer than a proxy tries: then the failure tells that it was one.
			ctx, cancel := context.WithTimeout(l.ctx, 30*time.Second)
			begun := time.Now()
			err := ask(ctx)
			cancel()
			l.mu.Lock()
			l.asked[client]++
			if err != nil {
				l.failures = append(l.failures, fmt.Sprintf("%s %s: request %d: %v (after %s)",
					begun.UTC().Format("15:04:05.000"), client, l.asked[client], err, time.Since(begun).Round(time.Millisecond)))
			}
			l.mu.Unlock()
			if err != nil && !goesOn {
				return
			}
			select {
			case <-tick.C:
			case <-l.stop:
				return
			}
		}
	})
}

// request asks a URL, over a new connection each time.
func (l *load) request(ns *netlab.NS, url string) {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return ns.Dial(ctx, network, addr)
		},
	}}
	l.repeat(ns.Name+" GET "+url, true, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if body, err := io.ReadAll(response.Body); err != nil || !strings.HasPrefix(string(body), "pod=") {
			return fmt.Errorf("%s, %q, %v", response.Status, body, err)
		}
		return nil
	})
}

// converse sends lines to an echo server, all over one connection.
func (l *load) converse(t *testing.T, ns *netlab.NS, addr string) {
	t.Helper()
	conn, err := ns.Dial(l.ctx, "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nobody sends any more
	answers := bufio.NewReader(conn)
	l.repeat(ns.Name+" echo "+addr, false, func(ctx context.Context) error {
		deadline, _ := ctx.Deadline()
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
		line := fmt.Sprintf("line %d\n", time.Now().UnixNano())
		if _, err := io.WriteString(conn, line); err != nil {
			return err
		}
		answer, err := answers.ReadString('\n')
		if err == nil && answer != line {
			err = fmt.Errorf("the echo of %q is %q", line, answer)
		}
		return err
	})
}

// check ends the load, and fails the test if anything of it has failed, or if there was none.
func (l *load) check(t *testing.T) {
	t.Helper()
	l.end()
	for client, n := range l.asked {
		t.Logf("%s: %d requests", client, n)
		if n < 10 {
			t.Errorf("%s has asked %d times, which is no load", client, n)
		}
	}
	const most = 20
	if n := len(l.failures); n > 0 {
		t.Errorf("%d requests have failed:\n%s", n, strings.Join(l.failures[:min(n, most)], "\n"))
	}
}
