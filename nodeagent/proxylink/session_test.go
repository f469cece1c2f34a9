package proxylink

import (
	"os"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

func TestSnapshotThenLive(t *testing.T) {
	l := start(t, nil)
	l.verdict("a", "gone")
	a := l.pod("a")
	l.pod("b")
	l.verdict("a", "noProxy")
	l.Open()

	p := l.dial().hello()
	p.expect("add a")
	if err := a.Netns.File(func(f *os.File) error {
		if want := inode(t, f); p.inode != want {
			t.Errorf("the namespace that came is %d, not %d", p.inode, want)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	l.verdict("a", "queued")
	p.ack()
	p.expect("add b", "snapshot")
	l.verdict("a", "queued") // the snapshot is not acked
	p.ack()
	l.verdict("a", "acked by us")

	l.idle()
	l.pod("c")
	p.expect("add c")
	l.verdict("c", "waiting")
	p.ack()
	l.verdict("c", "acked by us")
	l.Withdraw("a")
	l.verdict("a", "withdrawing")
	p.expect("del a")
	if got := l.Sessions(); len(got) != 1 || got[0].State != Synced || got[0].Acked != 2 || got[0].PID != int32(os.Getpid()) {
		t.Errorf("sessions %+v", got)
	}
	p.ack()
	l.verdict("a", "gone")
	l.verdict("b", "acked by us")
	eventually(t, "changes", func() bool {
		return l.changes("") == 2 && l.changes("a") == 2 && l.changes("b") == 1 && l.changes("c") == 2
	})

	p.close()
	l.verdict("b", "noProxy")
	eventually(t, "the change", func() bool { return l.changes("") == 3 })
	l.stop()
	if got := strings.Count(l.logs.String(), "level=INFO"); got != 2 {
		t.Errorf("%d info lines, want 2:\n%s", got, l.logs)
	}
}

func TestNothingGoesOutBeforeOpen(t *testing.T) {
	l := start(t, nil)
	l.pod("a")
	p, silent := l.dial().hello(), l.dial()
	eventually(t, "the hello", func() bool {
		s := l.Sessions()
		return len(s) == 2 && s[0].State == Hello && s[1].State == Snapshot
	})
	l.idleBut(1)
	l.pod("b")
	l.Withdraw("a")
	l.idleBut(1)
	if ready, err := p.conn.Ready(); ready || err != nil {
		t.Errorf("something came before Open: %v, %v", ready, err)
	}
	l.verdict("b", "queued")
	l.Open()
	p.expect("add b", "snapshot")
	p.ack()
	silent.hello()
	silent.expect("add b", "snapshot")
	silent.ack()
	l.idle()
}

func TestAnEmptyNodeHasASnapshot(t *testing.T) {
	l := start(t, nil)
	l.Open()
	p := l.dial().hello()
	p.expect("snapshot")
	p.ack()
	l.idle()
}

func TestWithdraw(t *testing.T) {
	for name, test := range map[string]func(l *link, p *proxy){
		"before the Add is sent": func(l *link, p *proxy) {
			p.expect("add a")
			l.Withdraw("b")
			l.verdict("b", "gone")
			p.ack()
			p.expect("snapshot")
			p.ack()
		},
		"while the Add is in flight": func(l *link, p *proxy) {
			p.expect("add a", "add b", "snapshot")
			p.ack()
			l.pod("c")
			p.expect("add c")
			l.Withdraw("c")
			l.verdict("c", "withdrawing")
			p.ack()
			p.expect("del c")
			l.verdict("c", "withdrawing")
			p.ack()
			l.verdict("c", "gone")
		},
		"while the Add is in flight, and it is nacked": func(l *link, p *proxy) {
			p.expect("add a", "add b", "snapshot")
			p.ack()
			l.pod("c")
			p.expect("add c")
			l.Withdraw("c")
			p.nack("boom")
			p.expect("del c")
			p.ack()
			l.verdict("c", "gone")
		},
		"while the Add is in flight, and announced anew": func(l *link, p *proxy) {
			p.expect("add a", "add b", "snapshot")
			p.ack()
			w := l.pod("c")
			p.expect("add c")
			l.Withdraw("c")
			l.Announce(w)
			l.verdict("c", "queued")
			p.ack()
			p.expect("del c", "add c")
			l.verdict("c", "waiting")
			p.ack()
			l.verdict("c", "acked by us")
		},
		"while the Del is in flight, and announced anew": func(l *link, p *proxy) {
			p.expect("add a", "add b", "snapshot")
			p.ack()
			w := l.pod("c")
			p.expect("add c")
			p.ack()
			l.idle()
			l.Withdraw("c")
			p.expect("del c")
			l.Announce(w)
			p.ack()
			p.expect("add c")
			p.ack()
			l.verdict("c", "acked by us")
		},
		"during the snapshot": func(l *link, p *proxy) {
			p.expect("add a", "add b")
			l.Withdraw("b")
			p.ack()
			// Before the snapshot is acked there are only Adds.
			p.expect("snapshot")
			l.Withdraw("a")
			l.verdict("b", "withdrawing")
			p.ack()
			p.expect("del a", "del b")
			p.ack()
			l.verdict("a", "gone")
			l.verdict("b", "gone")
		},
		"during the snapshot, and announced anew": func(l *link, p *proxy) {
			p.expect("add a", "add b")
			l.Withdraw("a")
			l.pod("a")
			p.ack()
			p.expect("snapshot", "del a", "add a")
			p.ack()
			l.verdict("a", "acked by us")
		},
		"after it was replaced, before that was sent": func(l *link, p *proxy) {
			p.expect("add a", "add b")
			l.pod("a")
			l.Withdraw("a")
			p.ack()
			p.expect("snapshot", "del a")
			p.ack()
			l.verdict("a", "gone")
		},
		"twice, and what was never there": func(l *link, p *proxy) {
			p.expect("add a", "add b", "snapshot")
			p.ack()
			l.idle()
			l.Withdraw("never")
			l.Withdraw("a")
			l.Withdraw("a")
			p.expect("del a")
			l.Withdraw("a")
			p.ack()
			l.verdict("a", "gone")
			l.idle()
			l.Withdraw("a")
		},
		"when the proxy dies with the Del in flight": func(l *link, p *proxy) {
			p.expect("add a", "add b", "snapshot")
			p.ack()
			l.Withdraw("a")
			p.expect("del a")
			p.close()
			l.verdict("a", "gone")
			l.dial().hello().expect("add b", "snapshot")
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := start(t, nil)
			l.pod("a")
			l.pod("b")
			l.Open()
			p := l.dial().hello()
			test(l, p)
			if ready, err := p.conn.Ready(); err == nil && ready {
				t.Errorf("something more came")
			}
		})
	}
}

func TestAnnounceIsIdempotentAndReplaces(t *testing.T) {
	l := start(t, nil)
	l.Open()
	p := l.dialSynced()
	w := l.pod("a")
	p.expect("add a")
	first := p.inode
	p.ack()
	l.verdict("a", "acked by us")
	l.Announce(w)
	l.idle()

	l.pod("a")
	p.expect("add a")
	if p.inode == first {
		t.Error("the same namespace came again")
	}
	l.verdict("a", "waiting")
	p.ack()
	l.verdict("a", "acked by us")
}

func TestANackConcernsItsWorkloadAlone(t *testing.T) {
	l := start(t, nil)
	a := l.pod("a")
	l.pod("b")
	l.Open()
	p := l.dial().hello()
	p.expect("add a")
	p.nack("cannot bind [::1]:15053")
	p.expect("add b", "snapshot")
	l.verdict("a", "queued") // nobody who may decide has spoken
	p.ack()
	l.verdict("a", "nacked by us: cannot bind [::1]:15053")
	l.verdict("b", "acked by us")

	l.Announce(a)
	l.idle()
	l.verdict("a", "nacked by us: cannot bind [::1]:15053")
	l.Withdraw("a")
	l.Announce(a)
	p.expect("del a", "add a")
	p.ack()
	l.verdict("a", "acked by us")
	if got := strings.Count(l.logs.String(), "level=WARN"); got != 1 {
		t.Errorf("%d warnings, want 1:\n%s", got, l.logs)
	}
}

func TestWhatCannotBeSentConcernsItsWorkloadAlone(t *testing.T) {
	l := start(t, nil)
	closed, long := workload(t, "closed"), workload(t, "long")
	if err := closed.Netns.Close(); err != nil {
		t.Fatal(err)
	}
	long.Name = strings.Repeat("n", ztunnelproto.MaxRecord)
	l.Announce(closed)
	l.Announce(long)
	l.pod("a")
	l.Open()
	p := l.dial().hello()
	p.expect("add a", "snapshot")
	p.ack()
	l.verdict("a", "acked by us")
	l.idle()
	for uid, want := range map[string]string{"closed": "closed", "long": "the longest record is 1024"} {
		if v := l.Verdict(uid); v.State != Unsent || !strings.Contains(v.Text, want) {
			t.Errorf("the verdict on %s is %+v", uid, v)
		}
	}

	// Nobody has them, so there is nothing to wait for.
	l.Withdraw("closed")
	l.verdict("closed", "gone")
	l.pod("closed")
	p.expect("add closed")
	p.ack()
	l.verdict("closed", "acked by us")

	// The proxy has it in the namespace it had before: that it has to give up.
	w := workload(t, "closed")
	if err := w.Netns.Close(); err != nil {
		t.Fatal(err)
	}
	l.Announce(w)
	eventually(t, "the failure", func() bool { return l.Verdict("closed").State == Unsent })
	l.Withdraw("closed")
	p.expect("del closed")
	p.ack()
	l.verdict("closed", "gone")
}

func TestWithdrawnWhileItTurnsOutThatItCannotBeSent(t *testing.T) {
	s, err := New(minimal(t))
	if err != nil {
		t.Fatal(err)
	}
	c := &session{server: s, state: Synced, records: map[string]*record{}}
	s.sessions = append(s.sessions, c)
	s.Open()
	s.Announce(Workload{UID: "a"})
	r := c.next()
	s.Withdraw("a")
	if v := s.Verdict("a"); v.State != Withdrawing {
		t.Errorf("in flight: %+v", v)
	}
	c.answered(r, Unsent, "closed")
	if v := s.Verdict("a"); v.State != Gone {
		t.Errorf("no proxy has it, none will be told: %+v", v)
	}
}
