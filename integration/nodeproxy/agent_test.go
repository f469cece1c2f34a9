package nodeproxy_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/integration/nodeproxy"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

func TestMain(m *testing.M) { netlab.Main(m, 55) }

// patience is how long a test waits for what has to come.
const patience = 10 * time.Second

// A node is a proxy that runs, and the agent's socket that it dials.
type node struct {
	t     *testing.T
	proxy *nodeproxy.Proxy
	path  string
	agent *ztunnelproto.Listener
	stop  context.CancelFunc
	ended chan error // what Run returned
}

// newNode runs a proxy until the end of the test. Nothing of it may be left then.
func newNode(t *testing.T, cfg nodeproxy.Config) *node {
	t.Helper()
	netlab.CheckLeaks(t)
	// Not t.Cleanup's order alone: goroutines of the test's own end before, too.
	t.Cleanup(func() { goleak.VerifyNone(t) })
	return startNode(t, cfg)
}

// startNode is newNode in a test that has one already.
func startNode(t *testing.T, cfg nodeproxy.Config) *node {
	t.Helper()
	n := &node{t: t, path: filepath.Join(t.TempDir(), "zds"), ended: make(chan error, 1)}
	n.listen()
	cfg.ZDS = n.path
	if cfg.Drain == 0 {
		cfg.Drain = time.Nanosecond
	}
	proxy, err := nodeproxy.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n.proxy = proxy
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	go func() {
		n.ended <- proxy.Run(ctx)
		close(n.ended)
	}()
	t.Cleanup(func() {
		stop()
		for range n.ended { // read by the test already, or nil
		}
	})
	return n
}

// listen makes the agent listen.
func (n *node) listen() {
	n.t.Helper()
	l, err := ztunnelproto.Listen(n.path)
	if err != nil {
		n.t.Fatal(err)
	}
	n.agent = l
	n.t.Cleanup(func() { _ = l.Close() })
}

// accept returns a new connection of the proxy's, on which it has said hello.
func (n *node) accept() *link {
	n.t.Helper()
	l := n.acceptSilent()
	var hello ztunnelproto.ZdsHello
	if _, err := l.conn.Receive(&hello); err != nil || hello.Version != ztunnelproto.Version_V1 {
		n.t.Fatalf("instead of a hello the proxy sent %v, %v", &hello, err)
	}
	return l
}

// acceptSilent returns a new connection of the proxy's.
func (n *node) acceptSilent() *link {
	n.t.Helper()
	defer time.AfterFunc(patience, func() { _ = n.agent.Close() }).Stop()
	conn, err := n.agent.Accept()
	if err != nil {
		n.t.Fatalf("the proxy does not connect: %v", err)
	}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	return &link{t: n.t, conn: conn}
}

// acceptSynced returns a new connection on which the snapshot, of no workload, is acked.
func (n *node) acceptSynced() *link {
	n.t.Helper()
	l := n.accept()
	l.wantAck(snapshot())
	return l
}

// wantEnd waits until Run has returned an error that holds text.
func (n *node) wantEnd(text string) {
	n.t.Helper()
	select {
	case err := <-n.ended:
		if err == nil || !strings.Contains(err.Error(), text) {
			n.t.Errorf("the proxy ended with %v, want %q", err, text)
		}
	case <-time.After(patience):
		n.t.Fatalf("the proxy does not end")
	}
}

func (n *node) wantReady() {
	n.t.Helper()
	netlab.Eventually(n.t, n.proxy.Ready)
}

// wantUnready waits until the proxy says that it is not ready, for a reason that
// holds text.
func (n *node) wantUnready(text string) {
	n.t.Helper()
	netlab.Eventually(n.t, func() error {
		err := n.proxy.Ready()
		if err == nil || !strings.Contains(err.Error(), text) {
			return fmt.Errorf("ready: %v, want %q", err, text)
		}
		return nil
	})
}

func (n *node) workload(uid string) nodeproxy.WorkloadState {
	return n.proxy.State().WorkloadState[uid]
}

// A link is the agent's end of a connection.
type link struct {
	t    *testing.T
	conn *ztunnelproto.Conn
}

func (l *link) send(request *ztunnelproto.WorkloadRequest, file *os.File) {
	l.t.Helper()
	if err := l.conn.Send(request, file); err != nil {
		l.t.Fatal(err)
	}
}

// answer returns the text of the next answer, which is empty for an ack.
func (l *link) answer() string {
	l.t.Helper()
	var response ztunnelproto.WorkloadResponse
	if _, err := l.conn.Receive(&response); err != nil {
		l.t.Fatalf("no answer: %v", err)
	}
	if response.GetAck() == nil {
		l.t.Fatalf("the answer is no ack: %v", &response)
	}
	return response.GetAck().GetError()
}

func (l *link) wantAck(request *ztunnelproto.WorkloadRequest) {
	l.t.Helper()
	l.send(request, nil)
	if text := l.answer(); text != "" {
		l.t.Fatalf("%v was nacked: %s", request, text)
	}
}

func (l *link) wantNack(request *ztunnelproto.WorkloadRequest, file *os.File, text string) {
	l.t.Helper()
	l.send(request, file)
	if got := l.answer(); !strings.Contains(got, text) || got == "" {
		l.t.Fatalf("the answer to %v is %q, want %q", request, got, text)
	}
}

// wantClosed waits until the proxy has closed the connection.
func (l *link) wantClosed() {
	l.t.Helper()
	if _, err := l.conn.Receive(&ztunnelproto.WorkloadResponse{}); !errors.Is(err, io.EOF) {
		l.t.Fatalf("the connection is not closed: %v", err)
	}
}

// sendRequest sends a request that carries a namespace.
func (l *link) sendRequest(request *ztunnelproto.WorkloadRequest, h *netns.Handle) {
	l.t.Helper()
	if err := h.File(func(f *os.File) error { return l.conn.Send(request, f) }); err != nil {
		l.t.Fatal(err)
	}
}

func (l *link) add(uid string, ns *netlab.NS) {
	l.t.Helper()
	l.sendRequest(add(uid), ns.Handle)
	if text := l.answer(); text != "" {
		l.t.Fatalf("Add of %s was nacked: %s", uid, text)
	}
}

func (l *link) nackedAdd(uid string, ns *netlab.NS, text string) {
	l.t.Helper()
	l.sendRequest(add(uid), ns.Handle)
	if got := l.answer(); !strings.Contains(got, text) || got == "" {
		l.t.Fatalf("the answer to Add of %s is %q, want %q", uid, got, text)
	}
}

func add(uid string) *ztunnelproto.WorkloadRequest {
	info := &ztunnelproto.WorkloadInfo{Name: "name-" + uid, Namespace: "ns", ServiceAccount: "sa"}
	return &ztunnelproto.WorkloadRequest{Payload: &ztunnelproto.WorkloadRequest_Add{
		Add: &ztunnelproto.AddWorkload{Uid: uid, WorkloadInfo: info},
	}}
}

func keep(uid string) *ztunnelproto.WorkloadRequest {
	return &ztunnelproto.WorkloadRequest{Payload: &ztunnelproto.WorkloadRequest_Keep{
		Keep: &ztunnelproto.KeepWorkload{Uid: uid},
	}}
}

func del(uid string) *ztunnelproto.WorkloadRequest {
	return &ztunnelproto.WorkloadRequest{Payload: &ztunnelproto.WorkloadRequest_Del{
		Del: &ztunnelproto.DelWorkload{Uid: uid},
	}}
}

func snapshot() *ztunnelproto.WorkloadRequest {
	return &ztunnelproto.WorkloadRequest{Payload: &ztunnelproto.WorkloadRequest_SnapshotSent{
		SnapshotSent: &ztunnelproto.SnapshotSent{},
	}}
}
