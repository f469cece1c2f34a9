package proxylink

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// TestReactions goes through what the real proxy does with what it is sent: the
// agent has to make the best of it, and must never send what ends the proxy. The
// model complains if it does.
func TestReactions(t *testing.T) {
	for _, test := range []struct {
		row   string
		story func(l *link, m *model)
	}{
		{"Add: ack", func(l *link, m *model) {
			l.pod("a")
			l.verdict("a", "acked by us")
			m.expect("a []")
		}},
		{"Add, a duplicate: ack, and nothing restarts", func(l *link, m *model) {
			l.pod("a")
			l.verdict("a", "acked by us")
			m.reconnect(l)
			l.verdict("a", "acked by us")
			m.expect("a []")
			if m.adds != 2 {
				l.t.Errorf("%d Adds, want 2", m.adds)
			}
		}},
		{"Add, same uid, another netns: replaced", func(l *link, m *model) {
			l.pod("a")
			l.verdict("a", "acked by us")
			l.pod("a")
			l.settled()
			l.verdict("a", "acked by us")
			m.expect("a [a]")
		}},
		{"Add whose listeners cannot start: nack, the others go on", func(l *link, m *model) {
			m.set(func() { m.refuse["a"] = "bind [::1]:15053: cannot assign requested address" })
			a := l.pod("a")
			l.pod("b")
			l.verdict("a", "nacked by us: bind [::1]:15053: cannot assign requested address")
			l.verdict("b", "acked by us")
			m.expect("a! b []")
			// Announced again it is not sent again: the proxy tries by itself.
			l.Announce(a)
			l.settled()
			m.expect("a! b []")
			// While it is pending the whole proxy is not ready. Withdrawn it is.
			l.Withdraw("a")
			l.verdict("a", "gone")
			m.expect("b [a]")
			m.set(func() { delete(m.refuse, "a") })
			l.Announce(a)
			l.verdict("a", "acked by us")
			m.expect("a b [a]")
		}},
		{"too long a record is not sent", func(l *link, m *model) {
			long := workload(l.t, "long")
			long.ServiceAccount = strings.Repeat("s", ztunnelproto.MaxRecord)
			l.Announce(long)
			l.pod("a")
			l.verdict("a", "acked by us")
			if v := l.Verdict("long"); v.State != Unsent || !strings.Contains(v.Text, "the longest record is 1024") {
				l.t.Errorf("%+v", v)
			}
			m.expect("a []")
		}},
		{"nack and disconnect: told everything again", func(l *link, m *model) {
			l.pod("a")
			l.verdict("a", "acked by us")
			m.set(func() { m.leave["b"] = true })
			l.pod("b")
			closed := l.metrics.ends.WithLabelValues(endClosed)
			eventually(l.t, "ends", func() bool { return testutil.ToFloat64(closed) >= 3 })
			m.set(func() { delete(m.leave, "b") })
			l.verdict("b", "acked by us")
			l.verdict("a", "acked by us")
			m.expect("a b []")
		}},
		{"Add has workload_info, empty as it may be", func(l *link, m *model) {
			w := workload(l.t, "a")
			l.Announce(Workload{UID: "a", Netns: w.Netns})
			l.verdict("a", "acked by us")
			m.expect("a []")
		}},
		{"no Keep after SnapshotSent, no second SnapshotSent", func(l *link, m *model) {
			l.Keep("k")
			l.pod("a")
			l.verdict("a", "acked by us")
			l.Open()
			l.Withdraw("k")
			l.Keep("k")
			l.settled()
			l.verdict("k", "kept")
			m.reconnect(l)
			m.expect("a []")
		}},
		{"Keep for a uid it does not have: an ack that proves nothing", func(l *link, m *model) {
			l.Keep("k")
			m.reconnect(l)
			l.verdict("k", "kept")
			if got := l.acks("k"); !strings.HasSuffix(got, " kept") {
				l.t.Errorf("acks: %s", got)
			}
			m.expect(" []")
		}},
		{"Del: stopped; of an unknown uid: ack", func(l *link, m *model) {
			l.pod("a")
			l.verdict("a", "acked by us")
			m.set(func() { delete(m.has, "a") })
			l.Withdraw("a")
			l.verdict("a", "gone")
			l.pod("a")
			l.verdict("a", "acked by us")
			l.Withdraw("a")
			l.verdict("a", "gone")
			m.expect(" [a]")
		}},
		{"SnapshotSent stops what was not named", func(l *link, m *model) {
			l.pod("a")
			l.verdict("a", "acked by us")
			m.set(func() { m.has["kept"], m.has["found"], m.has["old"] = 1, 2, 3 })
			l.Keep("kept")
			l.pod("found")
			m.reconnect(l)
			m.expect("a found kept [found old]")
		}},
		{"the connection closes: everything runs on, and it is back at once", func(l *link, m *model) {
			a := l.pod("a")
			l.verdict("a", "acked by us")
			path := l.cfg.Path
			l.stop()
			m.expect("a []")
			m.halt() // so that the successor's start sees none of its sockets

			successor := start(l.t, func(cfg *Config) { cfg.Path = path })
			m.start()
			successor.Announce(a)
			successor.Keep("k")
			successor.Open()
			successor.verdict("a", "acked by us")
			m.expect("a []")
		}},
	} {
		t.Run(test.row, func(t *testing.T) {
			l := start(t, nil)
			l.Open()
			m := newModel(t, l.cfg.Path, 1)
			m.start()
			l.settled()
			test.story(l, m)
		})
	}
}

func (m *model) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func (m *model) expect(want string) {
	m.t.Helper()
	if diff := cmp.Diff(want, m.String()); diff != "" {
		m.t.Errorf("the proxy (-want +got):\n%s", diff)
	}
}

// reconnect drops the connection and waits until the next one is settled.
func (m *model) reconnect(l *link) {
	l.t.Helper()
	id := l.Sessions()[0].ID
	m.drop()
	eventually(l.t, "a new connection", func() bool { s := l.Sessions(); return len(s) == 1 && s[0].ID != id })
	l.settled()
}

// settled waits until there are sessions, all synced and with nothing to do.
func (l *link) settled() {
	l.t.Helper()
	eventually(l.t, "all sessions to be settled", func() bool {
		l.Server.mu.Lock()
		defer l.Server.mu.Unlock()
		for _, c := range l.sessions {
			if c.state != Synced || !c.idle {
				return false
			}
		}
		return len(l.sessions) > 0
	})
}

// A proxy that cannot live with one workload dials at once, for ever. It is slowed
// down, and the workload's verdict names the proxy, not its absence alone.
func TestAProxyThatLeavesAgainAndAgain(t *testing.T) {
	l := startWith(t, nil, func(s *Server) { s.conducts.first, s.conducts.most = time.Millisecond, time.Hour })
	l.Open()
	m := newModel(t, l.cfg.Path, 1)
	m.set(func() { m.leave["a"] = true })
	m.start()
	l.settled()
	l.pod("a")
	eventually(t, "the verdict to tell", func() bool {
		v := l.Verdict("a")
		return v.State == NoProxy && strings.Contains(v.Text, "times in a row: the proxy closed the connection")
	})
}
