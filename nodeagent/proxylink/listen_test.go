package proxylink

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// startWatching is start with a look at the socket each millisecond. Its path is in
// a directory that can be removed.
func startWatching(t *testing.T) *link {
	t.Helper()
	return startWith(t,
		func(cfg *Config) { cfg.Path = filepath.Join(filepath.Dir(cfg.Path), "run", "zds.sock") },
		func(s *Server) { s.watch = time.Millisecond },
	)
}

func TestTheSocketIsBoundAgain(t *testing.T) {
	for name, displace := range map[string]func(path string) error{
		"removed": os.Remove,
		"replaced by another listener": func(path string) error {
			other, err := ztunnelproto.Listen(path)
			if err != nil {
				return err
			}
			return other.Close()
		},
		"directory moved": func(path string) error { return os.Rename(filepath.Dir(path), filepath.Dir(path)+".old") },
		"directory removed": func(path string) error { // at once, or the socket would be back before the directory is empty
			dir := filepath.Dir(path)
			return errors.Join(os.Rename(dir, dir+".old"), os.RemoveAll(dir+".old"))
		},
		"directory replaced": func(path string) error {
			dir := filepath.Dir(path)
			if err := os.Mkdir(dir+".old", 0o755); err != nil {
				return err
			}
			return unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, dir+".old", unix.RENAME_EXCHANGE)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := startWatching(t)
			l.Open()
			old := l.dialSynced()
			for i := range 3 {
				_ = os.RemoveAll(filepath.Dir(l.cfg.Path) + ".old") // the last round's
				if err := displace(l.cfg.Path); err != nil {
					t.Fatal(err)
				}
				eventually(t, "the socket", func() bool { return testutil.ToFloat64(l.metrics.rebound) == float64(i+1) })
			}
			newer := l.dialSynced()
			l.pod("a")
			for _, p := range []*proxy{old, newer} {
				p.expect("add a")
				p.ack()
			}
			l.verdict("a", "acked by us")
			if n := strings.Count(l.logs.String(), "removed or replaced"); n != 3 {
				t.Errorf("%d lines of log for 3 times:\n%s", n, l.logs)
			}
		})
	}
}

func TestTheSocketCannotBeBoundAgain(t *testing.T) {
	l := startWatching(t)
	l.Open()
	old := l.dialSynced()
	path := l.cfg.Path
	if err := errors.Join(os.WriteFile(path+".file", nil, 0o600), os.Rename(path+".file", path)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the error", func() bool { return strings.Contains(l.logs.String(), "exists and is not a socket: remove it") })
	l.pod("a")
	old.expect("add a")
	old.ack()
	l.verdict("a", "acked by us")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the socket", func() bool { return testutil.ToFloat64(l.metrics.rebound) == 1 })
	l.dialSynced()
	if n := strings.Count(l.logs.String(), "level=ERROR"); n != 1 {
		t.Errorf("%d errors logged, want 1:\n%s", n, l.logs)
	}
}

// While the socket is away a proxy dials in vain, and finds it when it is back.
func TestAProxyDialsWhileTheSocketIsBoundAgain(t *testing.T) {
	l := startWatching(t)
	l.Open()
	for range 50 {
		if err := os.Remove(l.cfg.Path); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a connection", func() bool {
			conn, err := ztunnelproto.Dial(context.Background(), l.cfg.Path)
			if err != nil {
				return false
			}
			defer func() { _ = conn.Close() }()
			p := &proxy{t: t, conn: conn}
			p.hello().sync()
			return true
		})
	}
}
