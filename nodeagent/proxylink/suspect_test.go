package proxylink

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// script has a session do what the server tells it, with a test for its proxy.
type script struct {
	t *testing.T
	s *Server
	c *session
}

func newScript(t *testing.T) *script {
	t.Helper()
	s, err := New(minimal(t))
	if err != nil {
		t.Fatal(err)
	}
	s.Open()
	return &script{t: t, s: s}
}

// connect makes a new session the only one.
func (sc *script) connect() {
	t := sc.t
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	file, peer := os.NewFile(uintptr(fds[0]), "agent"), os.NewFile(uintptr(fds[1]), "proxy")
	conn, err := net.FileConn(file)
	if err != nil {
		t.Fatal(err)
	}
	_ = file.Close() // conn has another
	t.Cleanup(func() { _, _ = conn.Close(), peer.Close() })
	sc.c = &session{
		server: sc.s, conn: ztunnelproto.NewConn(conn.(*net.UnixConn)),
		records: map[string]*record{}, state: Hello,
	}
	sc.s.sessions = []*session{sc.c}
	sc.c.helloSaid()
}

// announce announces uids one after the other, in namespaces that are never sent.
func (sc *script) announce(uids string) {
	for _, uid := range strings.Fields(uids) {
		sc.s.Announce(Workload{UID: uid})
	}
}

// send sends all there is to do, and acks it, but for uid: that gets no answer.
func (sc *script) send(hang string) (sent string) {
	sc.t.Helper()
	for r := sc.c.next(); r != nil; r = sc.c.next() {
		sent += strings.TrimSuffix(r.kind+" "+r.uid, " ") + ", "
		if hang != "" && r.uid == hang {
			sc.c.timedOut(r)
			break
		}
		sc.c.answered(r, Acked, "")
	}
	return strings.TrimSuffix(sent, ", ")
}

func (sc *script) expect(hang, want string) {
	sc.t.Helper()
	if got := sc.send(hang); got != want {
		sc.t.Errorf("sent %q, want %q", got, want)
	}
}

func TestWhatTwoSessionsTimedOutOnIsSentLast(t *testing.T) {
	sc := newScript(t)
	sc.announce("a b c")
	for range 2 {
		sc.connect()
		sc.expect("b", "add a, add b")
	}
	sc.connect()
	sc.expect("b", "add a, add c, add b")
	sc.announce("d")
	sc.connect()
	sc.expect("", "add a, add c, add d, add b, snapshot_sent")

	// What comes meanwhile is not behind it either.
	sc.connect()
	first := sc.c.next()
	sc.announce("e")
	sc.c.answered(first, Acked, "")
	sc.expect("", "add c, add d, add e, add b, snapshot_sent")

	sc.s.Withdraw("b")
	sc.expect("", "del b")
	sc.announce("b f")
	sc.connect()
	sc.expect("", "add a, add c, add d, add e, add b, add f, snapshot_sent")
}

func TestTwoSuspectsAreBothSent(t *testing.T) {
	sc := newScript(t)
	sc.announce("a b c")
	for _, hang := range []string{"a", "a", "b", "b"} {
		sc.connect()
		sc.send(hang)
	}
	sc.connect()
	sc.expect("", "add c, add a, add b, snapshot_sent")
}

// The same over the socket, with a proxy that hangs.
func TestAProxyHangsOnAWorkload(t *testing.T) {
	l := start(t, func(cfg *Config) { cfg.AckTimeout = 100 * time.Millisecond })
	l.pod("a")
	l.pod("b")
	l.Open()
	for range 2 {
		p := l.dial().hello()
		p.expect("add a")
		p.closedByAgent()
		eventually(t, "the end", func() bool { return len(l.Sessions()) == 0 })
	}
	l.dial().hello().expect("add b")
	if n := strings.Count(l.logs.String(), "proxies are told of other workloads first"); n != 1 {
		t.Errorf("%d lines of log, want 1:\n%s", n, l.logs)
	}
}
