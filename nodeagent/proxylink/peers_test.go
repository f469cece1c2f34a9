package proxylink

import (
	"context"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// rawDial connects without Conn, which refuses to misbehave.
func (l *link) rawDial() *net.UnixConn {
	l.t.Helper()
	c, err := new(net.Dialer).DialContext(l.t.Context(), "unixpacket", l.cfg.Path)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { _ = c.Close() })
	return c.(*net.UnixConn)
}

const (
	helloRecord = "\x08\x01"
	ackRecord   = "\x0a\x00"
)

func (l *link) write(c *net.UnixConn, record string, files ...*os.File) {
	l.t.Helper()
	var control []byte
	for _, f := range files {
		control = append(control, unix.UnixRights(int(f.Fd()))...)
	}
	if _, _, err := c.WriteMsgUnix([]byte(record), control, nil); err != nil {
		l.t.Fatal(err)
	}
}

func TestBadPeers(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for _, test := range []struct {
		name      string
		misbehave func(l *link, c *net.UnixConn, p *proxy)
		reason    string
		log       string
	}{
		{"dials and goes", func(_ *link, _ *net.UnixConn, p *proxy) { p.close() },
			endClosed, "the proxy closed the connection"},
		{"says nothing", func(*link, *net.UnixConn, *proxy) {},
			endHelloTimeout, "no hello within 100ms"},
		{"hello of another version", func(l *link, c *net.UnixConn, _ *proxy) { l.write(c, "\x08\x02") },
			endProtocol, "the proxy speaks version 2, this agent speaks version 1"},
		{"an ack for a hello", func(l *link, c *net.UnixConn, _ *proxy) { l.write(c, ackRecord) },
			endProtocol, "the proxy speaks version 0"},
		{"garbage for a hello", func(l *link, c *net.UnixConn, _ *proxy) { l.write(c, "\xff\xff\xff") },
			endError, "cannot decode ZdsHello"},
		{"an endless hello", func(l *link, c *net.UnixConn, _ *proxy) { l.write(c, strings.Repeat("\x08\x01", 1000)) },
			endError, "longer than 1024 bytes"},
		{"a file with its hello", func(l *link, c *net.UnixConn, _ *proxy) { l.write(c, helloRecord, null) },
			endProtocol, "a file descriptor came with the record"},
		{"many files with its hello", func(l *link, c *net.UnixConn, _ *proxy) { l.write(c, helloRecord, null, null, null) },
			endError, "file descriptors"},
		{"an empty record", func(l *link, c *net.UnixConn, _ *proxy) { l.write(c, helloRecord); l.write(c, "") },
			endClosed, "the proxy closed the connection"},
		{"answers before it is asked", func(l *link, c *net.UnixConn, _ *proxy) {
			// The session cannot go on to its first request meanwhile.
			l.Server.mu.Lock()
			defer l.Server.mu.Unlock()
			l.write(c, helloRecord)
			l.write(c, ackRecord)
		}, endProtocol, "a response came without a request"},
		{"answers twice", func(_ *link, _ *net.UnixConn, p *proxy) {
			p.hello().expect("add a", "add b", "snapshot")
			p.ack()
			p.ack()
		}, endProtocol, "a response came without a request"},
		{"floods", func(l *link, c *net.UnixConn, p *proxy) {
			p.hello().expect("add a", "add b", "snapshot")
			for {
				if _, err := c.Write([]byte(ackRecord)); err != nil {
					return
				}
			}
		}, endProtocol, "a response came without a request"},
		{"answers something unknown", func(l *link, c *net.UnixConn, p *proxy) {
			p.hello().expect("add a")
			l.write(c, "\x3a\x00")
		}, endProtocol, "a response of an unknown kind came"},
		{"garbage for an answer", func(l *link, c *net.UnixConn, p *proxy) {
			p.hello().expect("add a")
			l.write(c, "\x0a\x50")
		}, endError, "cannot decode WorkloadResponse"},
		{"an endless nack", func(l *link, c *net.UnixConn, p *proxy) {
			p.hello().expect("add a")
			l.write(c, "\x0a\xd3\x0f\x0a\xd0\x0f"+strings.Repeat("x", 2000))
		}, endError, "longer than 1024 bytes"},
		{"a file with its answer", func(l *link, c *net.UnixConn, p *proxy) {
			p.hello().expect("add a")
			l.write(c, ackRecord, null)
		}, endProtocol, "a file descriptor came with the record"},
		{"does not answer", func(_ *link, _ *net.UnixConn, p *proxy) { p.hello().expect("add a") },
			endAckTimeout, "no answer to add of ns/pod-a (a) within 100ms"},
		{"does not answer the snapshot", func(_ *link, _ *net.UnixConn, p *proxy) {
			p.hello().expect("add a", "add b", "snapshot")
		}, endAckTimeout, "no answer to snapshot within 100ms"},
		{"dies with an Add in flight", func(_ *link, _ *net.UnixConn, p *proxy) {
			p.hello().expect("add a", "add b")
			p.close()
		}, endClosed, "the proxy closed the connection"},
		{"dies without reading", func(l *link, _ *net.UnixConn, p *proxy) {
			p.hello()
			eventually(l.t, "the Add", func() bool { ready, err := p.conn.Ready(); return ready && err == nil })
			p.close()
		}, endClosed, "the proxy closed the connection"},
		{"dies when all is done", func(l *link, _ *net.UnixConn, p *proxy) {
			p.hello().expect("add a", "add b", "snapshot")
			p.ack()
			p.close()
		}, endClosed, "the proxy closed the connection"},
		{"nacks the snapshot", func(_ *link, _ *net.UnixConn, p *proxy) {
			p.hello().expect("add a", "add b", "snapshot")
			p.nack("second one")
		}, endProtocol, "the proxy refused snapshot: second one"},
		{"nacks a Del", func(l *link, _ *net.UnixConn, p *proxy) {
			p.hello().expect("add a", "add b", "snapshot")
			p.ack()
			l.pod("c")
			p.expect("add c")
			p.ack()
			l.Withdraw("c")
			p.expect("del c")
			p.nack("no")
		}, endProtocol, "the proxy refused del of c: no"},
	} {
		t.Run(test.name, func(t *testing.T) {
			// Only what has to run out may: a slow machine is no bad peer.
			l := start(t, func(cfg *Config) {
				switch test.reason {
				case endHelloTimeout:
					cfg.HelloTimeout = 100 * time.Millisecond
				case endAckTimeout:
					cfg.AckTimeout = 100 * time.Millisecond
				}
			})
			l.pod("a")
			l.pod("b")
			l.Open()
			c := l.rawDial()
			bad := &proxy{t: t, conn: ztunnelproto.NewConn(c)}
			test.misbehave(l, c, bad)
			ends := l.metrics.ends.WithLabelValues(test.reason)
			eventually(t, "the end of the session: "+test.reason, func() bool { return testutil.ToFloat64(ends) == 1 })
			eventually(t, "the log", func() bool { return strings.Contains(l.logs.String(), test.log) })

			good := l.dial().hello()
			good.expect("add a", "add b", "snapshot")
			good.ack()
			l.verdict("a", "acked by us")
			l.verdict("b", "acked by us")
		})
	}
}

func TestABadPeerHarmsNoOther(t *testing.T) {
	l := start(t, nil)
	l.Open()
	good := l.dialSynced()
	silent := l.dial()
	stuck := l.dial().hello()
	stuck.expect("snapshot")
	flood := l.rawDial()
	l.write(flood, helloRecord)
	for {
		if _, err := flood.Write([]byte(ackRecord)); err != nil {
			break
		}
	}
	l.pod("a")
	good.expect("add a")
	good.ack()
	l.verdict("a", "acked by us")
	silent.close()
	stuck.close()
}

func TestOtherUsersAreRefused(t *testing.T) {
	l := start(t, func(cfg *Config) { cfg.AllowedUIDs = []uint32{uint32(os.Getuid()) + 1} })
	l.dial().closedByAgent()
	eventually(t, "the count", func() bool {
		return testutil.ToFloat64(l.metrics.ends.WithLabelValues(endRefused)) == 1
	})
	if !strings.Contains(l.logs.String(), "only root's processes may be proxies") {
		t.Error(l.logs)
	}
	if s := l.Sessions(); len(s) != 0 {
		t.Errorf("sessions: %+v", s)
	}
}

func TestRunOutOfFileDescriptors(t *testing.T) {
	l := start(t, nil)
	l.Open()
	// The proxy's own socket is made before there are none left.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: l.cfg.Path}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the error", func() bool { return strings.Contains(l.logs.String(), "too many open files") })
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the session", func() bool { return len(l.Sessions()) == 1 })
}

func TestRunEndsInEveryState(t *testing.T) {
	l := start(t, nil)
	l.pod("a")
	l.dial()         // silent
	l.dial().hello() // waits for Open
	eventually(t, "the sessions", func() bool { return len(l.Sessions()) == 2 })
	l.idleBut(1)
	l.Open()
	l.dial().hello().expect("add a") // in flight
	l.dial().hello().expect("add a", "snapshot")
	l.stop()
	if n := strings.Count(l.logs.String(), "reason=shutdown"); n != 4 {
		t.Errorf("%d sessions ended by the shutdown, not 4:\n%s", n, l.logs)
	}
	if _, err := ztunnelproto.Dial(t.Context(), l.cfg.Path); err == nil {
		t.Error("it still listens")
	}
}

func TestRunCannotListen(t *testing.T) {
	cfg := minimal(t)
	cfg.Path = "/dev/null/zds.sock"
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "cannot listen at /dev/null/zds.sock") {
		t.Error(err)
	}
}
