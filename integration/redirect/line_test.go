package redirect_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// line is an open connection to an echo server.
type line struct {
	conn   net.Conn
	reader *bufio.Reader
	server string
}

func (s *stage) open(from *netlab.NS, addr string, options ...netlab.Option) *line {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 10*time.Second)
	defer cancel()
	conn, err := from.Dial(ctx, "tcp", addr, options...)
	s.must(err)
	s.t.Cleanup(func() { _ = conn.Close() }) // of a test that is over
	s.must(conn.SetDeadline(time.Now().Add(20 * time.Second)))
	l := &line{conn: conn, reader: bufio.NewReader(conn)}
	reply, err := netlab.ReadReply(l.reader)
	s.must(err)
	l.server = reply.Server
	return l
}

func (l *line) port() int { return l.conn.LocalAddr().(*net.TCPAddr).Port }

func (l *line) send() error {
	_, err := fmt.Fprintln(l.conn, "still there")
	return err
}

// exchange sends something and reads it back.
func (l *line) exchange() error {
	if err := l.send(); err != nil {
		return err
	}
	echo := make([]byte, len("still there\n"))
	_, err := io.ReadFull(l.reader, echo)
	return err
}

func (l *line) speak(t *testing.T) {
	t.Helper()
	if err := l.exchange(); err != nil {
		t.Errorf("connection to %s (%s): %v", l.conn.RemoteAddr(), l.server, err)
	}
}

func isReset(err error) bool   { return errors.Is(err, unix.ECONNRESET) || errors.Is(err, unix.EPIPE) }
func isRefused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }

// watcher counts packets as they arrive in or leave a namespace, before any other rule there.
type watcher struct {
	ns    *netlab.NS
	table string
}

// watch counts the TCP packets that arrive from any of the source ports.
func (s *stage) watch(n *netlab.NS, ports ...int) watcher {
	s.t.Helper()
	var list []string
	for _, p := range ports {
		list = append(list, strconv.Itoa(p))
	}
	return s.count(n, "prerouting", "-450", "tcp sport { "+strings.Join(list, ", ")+" }")
}

// count counts the packets at a hook that a condition holds for.
func (s *stage) count(n *netlab.NS, hook, priority, condition string) watcher {
	s.t.Helper()
	w := watcher{ns: n, table: fmt.Sprintf("count_%s_%d", hook, time.Now().UnixNano())}
	netlab.MustRun(s.t, n, "nft", fmt.Sprintf(
		"add table inet %[1]s; add chain inet %[1]s c { type filter hook %[2]s priority %[3]s; }; add rule inet %[1]s c %[4]s counter",
		w.table, hook, priority, condition))
	return w
}

func (w watcher) count(t *testing.T) int {
	t.Helper()
	listing := netlab.MustRun(t, w.ns, "nft", "list", "table", "inet", w.table)
	m := regexp.MustCompile(`counter packets (\d+)`).FindStringSubmatch(listing)
	if m == nil {
		t.Fatalf("no counter in\n%s", listing)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// reset ends a connection by a reset.
func reset(conn net.Conn) error {
	if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
		return err
	}
	return conn.Close()
}
