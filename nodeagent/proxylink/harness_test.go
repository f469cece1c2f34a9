package proxylink

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(dialVariable); path != "" {
		if err := dialForTest(path); err != nil {
			panic(fmt.Errorf("cannot dial for a test: %w", err))
		}
		return
	}
	netlab.Main(m, 85)
}

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// link is a running Server.
type link struct {
	*Server
	t        *testing.T
	registry *prometheus.Registry
	logs     *netlab.Log
	stop     func()

	mu      sync.Mutex
	changed map[string]int
}

// start runs a Server whose time-outs are too long, and pauses too short, to
// matter, unless change says otherwise. Its end must leave no goroutine and no
// descriptor behind.
func start(t *testing.T, change func(*Config)) *link {
	t.Helper()
	return startWith(t, change, func(s *Server) { s.conducts.first, s.conducts.most = time.Millisecond, time.Millisecond })
}

func startWith(t *testing.T, change func(*Config), set func(*Server)) *link {
	t.Helper()
	netlab.CheckLeaks(t)
	ignore := goleak.IgnoreCurrent()
	l := &link{t: t, registry: prometheus.NewPedanticRegistry(), logs: new(netlab.Log), changed: map[string]int{}}
	cfg := Config{
		Path:       filepath.Join(t.TempDir(), "zds.sock"),
		AckTimeout: time.Minute, AckPreference: time.Minute, HelloTimeout: time.Minute,
		AllowedUIDs: []uint32{uint32(os.Getuid())},
		Changed: func(uid string) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.changed[uid]++
		},
		Logger:     slog.New(slog.NewTextHandler(l.logs, nil)),
		Registerer: l.registry,
	}
	if change != nil {
		change(&cfg)
	}
	server, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	set(server)
	l.Server = server
	ctx, cancel := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- server.Run(ctx) }()
	l.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-result; err != nil {
			t.Errorf("Run: %v", err)
		}
		if sessions := server.Sessions(); len(sessions) != 0 {
			t.Errorf("after Run there are sessions: %+v", sessions)
		}
	})
	t.Cleanup(func() {
		l.stop()
		goleak.VerifyNone(t, ignore)
	})
	eventually(t, "the socket", func() bool { _, err := os.Stat(cfg.Path); return err == nil })
	return l
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain for %s", patience, what)
		}
	}
}

func (l *link) changes(uid string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed[uid]
}

// idle waits until no session has anything to do.
func (l *link) idle() { l.t.Helper(); l.idleBut(0) }

// idleBut waits until all sessions but n have nothing to do.
func (l *link) idleBut(n int) {
	l.t.Helper()
	eventually(l.t, "idle sessions", func() bool {
		l.Server.mu.Lock()
		defer l.Server.mu.Unlock()
		busy := 0
		for _, c := range l.sessions {
			if !c.idle {
				busy++
			}
		}
		return busy == n
	})
}

// verdict waits for one of uid, as "state", "state by proxy" or "state by proxy: text".
func (l *link) verdict(uid, want string) {
	l.t.Helper()
	var got string
	defer func() {
		if got != want {
			l.t.Errorf("the verdict on %s is %q, want %q", uid, got, want)
		}
	}()
	eventually(l.t, "the verdict "+want, func() bool {
		got = summary(l.Verdict(uid))
		return got == want
	})
}

func summary(v Verdict) string {
	s := string(v.State)
	switch v.Proxy {
	case "":
	case fmt.Sprintf("pid %d", os.Getpid()):
		s += " by us"
	default:
		s += " by " + v.Proxy
	}
	if v.Text != "" {
		s += ": " + v.Text
	}
	return s
}

// acks says what each session says, newest first.
func (l *link) acks(uid string) string {
	var s []string
	for _, a := range l.Verdict(uid).Acks {
		s = append(s, fmt.Sprintf("%d %s", a.Session, a.State))
	}
	return strings.Join(s, ", ")
}

// pod announces a workload with a new namespace.
func (l *link) pod(uid string) Workload {
	l.t.Helper()
	w := workload(l.t, uid)
	l.Announce(w)
	return w
}

func workload(t *testing.T, uid string) Workload {
	t.Helper()
	netlab.Kernel(t)
	h, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return Workload{UID: uid, Name: "pod-" + uid, Namespace: "ns", ServiceAccount: "sa", Netns: h}
}

func inode(t *testing.T, f *os.File) uint64 {
	t.Helper()
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	return stat.Ino
}

// proxy is a proxy that does what a test says, over the real socket.
type proxy struct {
	t     *testing.T
	conn  *ztunnelproto.Conn
	inode uint64 // of the namespace that came last
}

func (l *link) dial() *proxy {
	l.t.Helper()
	conn, err := ztunnelproto.Dial(l.t.Context(), l.cfg.Path)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		l.t.Fatal(err)
	}
	return &proxy{t: l.t, conn: conn}
}

func (p *proxy) hello() *proxy {
	p.t.Helper()
	p.send(&ztunnelproto.ZdsHello{Version: ztunnelproto.Version_V1})
	return p
}

// dialSynced is a proxy that has acked its snapshot.
func (l *link) dialSynced() *proxy {
	l.t.Helper()
	p := l.dial().hello().sync()
	l.idle()
	return p
}

// sync acks all there is up to the snapshot's end.
func (p *proxy) sync() *proxy {
	p.t.Helper()
	for {
		r := p.receive()
		p.ack()
		if r == "snapshot" {
			return p
		}
	}
}

func (p *proxy) send(m proto.Message) {
	p.t.Helper()
	if err := p.conn.Send(m, nil); err != nil {
		p.t.Fatal(err)
	}
}

func (p *proxy) ack()             { p.t.Helper(); p.send(ztunnelproto.NewResponse("")) }
func (p *proxy) nack(text string) { p.t.Helper(); p.send(ztunnelproto.NewResponse(text)) }

func (p *proxy) receive() string {
	p.t.Helper()
	text, err := p.tryReceive()
	if err != nil {
		p.t.Fatal(err)
	}
	return text
}

// tryReceive gives a request as text, and checks that a namespace came with it
// exactly if it is an Add.
func (p *proxy) tryReceive() (string, error) {
	var r ztunnelproto.WorkloadRequest
	f, err := p.conn.Receive(&r)
	if err != nil {
		return "", err
	}
	if (f != nil) != (r.GetAdd() != nil) {
		return "", fmt.Errorf("%v came with file %v", &r, f)
	}
	switch {
	case r.GetAdd() != nil:
		p.inode = inode(p.t, f)
		if err := f.Close(); err != nil {
			return "", err
		}
		i := r.GetAdd().GetWorkloadInfo()
		return fmt.Sprintf("add %s %s/%s %s", r.GetAdd().Uid, i.GetNamespace(), i.GetName(), i.GetServiceAccount()), nil
	case r.GetDel() != nil:
		return "del " + r.GetDel().Uid, nil
	case r.GetKeep() != nil:
		return "keep " + r.GetKeep().Uid, nil
	case r.GetSnapshotSent() != nil:
		return "snapshot", nil
	}
	return "", fmt.Errorf("unknown request %v", &r)
}

// expect receives requests; "add UID" stands for one in full. Each but the last is
// acked.
func (p *proxy) expect(want ...string) {
	p.t.Helper()
	for i, w := range want {
		if uid, ok := strings.CutPrefix(w, "add "); ok {
			w = fmt.Sprintf("add %s ns/pod-%s sa", uid, uid)
		}
		if got := p.receive(); got != w {
			p.t.Fatalf("received %q, want %q", got, w)
		}
		if i < len(want)-1 {
			p.ack()
		}
	}
}

func (p *proxy) closedByAgent() {
	p.t.Helper()
	for {
		_, err := p.tryReceive()
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ECONNRESET) {
			return
		}
		if err != nil {
			p.t.Fatalf("not closed: %v", err)
		}
	}
}

func (p *proxy) close() {
	p.t.Helper()
	if err := p.conn.Close(); err != nil {
		p.t.Fatal(err)
	}
}
