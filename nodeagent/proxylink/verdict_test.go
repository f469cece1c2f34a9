package proxylink

import (
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestDecide takes voices newest first, as "state" or "state, not synced", at
// times after the announcement.
func TestDecide(t *testing.T) {
	const preference = 2 * time.Second
	announced := time.Unix(1000, 0)
	at := announced.Add
	says := func(pid int32, state State, since time.Duration) voice {
		v := voice{Ack: Ack{PID: pid, State: state, At: at(time.Second)}, synced: true, since: at(since)}
		if state == Nacked || state == Unsent {
			v.Text = "boom"
		}
		return v
	}
	early := func(v voice) voice { v.synced = false; return v }
	decided := func(state State, proxy, text string) Verdict {
		return Verdict{State: state, Proxy: proxy, Text: text, Since: at(time.Second)}
	}
	waiting := func(recheck time.Duration) Verdict {
		return Verdict{State: Waiting, Since: at(time.Second), Recheck: recheck}
	}
	queued := func(recheck time.Duration) Verdict {
		return Verdict{State: Queued, Since: announced, Recheck: recheck}
	}
	const before = -time.Hour
	for _, test := range []struct {
		name   string
		now    time.Duration
		voices []voice
		want   Verdict
	}{
		{"one acked", 1500 * time.Millisecond, []voice{says(1, Acked, before)}, decided(Acked, "pid 1", "")},
		{"one nacked", 1500 * time.Millisecond, []voice{says(1, Nacked, before)}, decided(Nacked, "pid 1", "boom")},
		{"one could not be sent it", 0, []voice{says(1, Unsent, before)}, decided(Unsent, "pid 1", "boom")},
		{"one waits, for long", time.Hour, []voice{says(1, Waiting, before)}, waiting(0)},
		{"one has others to answer first", time.Hour, []voice{says(1, Queued, before)}, queued(0)},
		{"one gives up what it had", time.Hour, []voice{says(1, Withdrawing, before)}, queued(0)},

		{"the newest decides: acked", 0, []voice{says(2, Acked, before), says(1, Nacked, before)}, decided(Acked, "pid 2", "")},
		{"the newest decides: nacked", time.Hour, []voice{says(2, Nacked, before), says(1, Acked, before)}, decided(Nacked, "pid 2", "boom")},
		{"the newest is waited for", 500 * time.Millisecond,
			[]voice{says(2, Waiting, before), says(1, Acked, before)}, waiting(1500 * time.Millisecond)},
		{"for so long", preference,
			[]voice{says(2, Waiting, before), says(1, Acked, before)}, decided(Acked, "pid 1", "")},
		{"the older one's nack is not final", time.Hour,
			[]voice{says(2, Waiting, before), says(1, Nacked, before)}, waiting(0)},
		{"the newest has others to answer first, the older was sent it", time.Hour,
			[]voice{says(2, Queued, before), says(1, Waiting, before)}, queued(0)},
		{"the newest was sent it, the older has others to answer first", time.Hour,
			[]voice{says(2, Waiting, before), says(1, Queued, before)}, waiting(0)},
		{"the newest has others to answer first, and an older's ack is not needed yet", 500 * time.Millisecond,
			[]voice{says(2, Queued, before), says(1, Acked, before)}, queued(1500 * time.Millisecond)},
		{"but then it is", preference,
			[]voice{says(2, Queued, before), says(1, Acked, before)}, decided(Acked, "pid 1", "")},
		{"the newest of those that acked", time.Hour,
			[]voice{says(4, Waiting, before), says(3, Nacked, before), says(2, Acked, before), says(1, Acked, before)},
			decided(Acked, "pid 2", "")},

		{"the newest synced just now", time.Hour,
			[]voice{says(2, Waiting, time.Hour), says(1, Acked, before)}, waiting(preference)},
		{"the newest has not acked its snapshot", time.Second,
			[]voice{early(says(2, Nacked, before)), says(1, Acked, before)}, decided(Acked, "pid 1", "")},
		{"none has, one acked", time.Second,
			[]voice{early(says(2, Waiting, 0)), early(says(1, Acked, before))}, queued(time.Second)},
		{"none has, one acked long ago", 3 * time.Second,
			[]voice{early(says(2, Waiting, 0)), early(says(1, Acked, before))}, decided(Acked, "pid 1", "")},
		{"none has, all nacked", time.Hour, []voice{early(says(1, Nacked, before))}, queued(0)},
		{"none has, one was sent it", time.Hour, []voice{early(says(1, Waiting, before))}, queued(0)},
		{"the newest has not, the one that has was sent it", time.Hour,
			[]voice{early(says(2, Queued, before)), says(1, Waiting, before)}, waiting(0)},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := decide(test.voices, announced, at(test.now), preference)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestTwoProxies(t *testing.T) {
	l := start(t, nil)
	l.Open()
	older, newer := l.dialSynced(), l.dialSynced()
	l.pod("a")
	older.expect("add a")
	newer.expect("add a")
	older.ack()
	eventually(t, "the older one's ack", func() bool { return l.acks("a") == "2 waiting, 1 acked" })
	if v := l.Verdict("a"); v.State != Waiting || v.Recheck <= 0 || v.Recheck > time.Minute {
		t.Errorf("the newest has not answered: %+v", v)
	}
	newer.nack("boom")
	l.verdict("a", "nacked by us: boom")
	if got := l.acks("a"); got != "2 nacked, 1 acked" {
		t.Errorf("acks: %s", got)
	}
	newer.close()
	l.verdict("a", "acked by us")
	if v := l.Verdict("a"); len(v.Acks) != 1 || v.Acks[0].Session != 1 {
		t.Errorf("acks: %+v", v.Acks)
	}

	newest := l.dialSynced()
	l.Withdraw("a")
	older.expect("del a")
	newest.expect("del a")
	older.ack()
	eventually(t, "the older one's ack", func() bool { return l.acks("a") == "3 withdrawing" })
	l.verdict("a", "withdrawing")
	newest.ack()
	l.verdict("a", "gone")
}

func TestTheOlderProxysAckCountsInTheEnd(t *testing.T) {
	l := start(t, func(cfg *Config) { cfg.AckPreference = time.Millisecond })
	l.Open()
	older, newer := l.dialSynced(), l.dialSynced()
	l.pod("a")
	newer.expect("add a")
	older.expect("add a")
	older.ack()
	l.verdict("a", "acked by us")
	if got := l.acks("a"); got != "2 waiting, 1 acked" {
		t.Errorf("acks: %s", got)
	}
}

// A proxy that takes its time answers one after the other. Who comes late is not
// unanswered for as long.
func TestASlowProxysQueue(t *testing.T) {
	l := start(t, nil)
	l.Open()
	p := l.dialSynced()
	l.pod("a")
	p.expect("add a")
	l.verdict("a", "waiting")
	l.pod("b")
	l.pod("c")
	l.verdict("b", "queued")
	if b, a := l.Verdict("b").Before, l.Verdict("a"); b.PID != int32(os.Getpid()) || b.Since.IsZero() || b.Since.Before(a.Since) || a.Before != (Unanswered{}) {
		t.Errorf("b is behind %+v, a was sent at %v and is behind %+v", b, a.Since, a.Before)
	}
	before := l.Verdict("c").Before
	announced := l.Verdict("b").Since
	changes := l.changes("b")
	p.ack()
	p.expect("add b")
	eventually(t, "the change from queued to waiting", func() bool { return l.changes("b") > changes })
	l.verdict("b", "waiting")
	if sent := l.Verdict("b").Since; !sent.After(announced) {
		t.Errorf("b was announced at %v and waits since %v", announced, sent)
	}
	l.verdict("c", "queued")
	if now := l.Verdict("c").Before; !now.Since.After(before.Since) {
		t.Errorf("c is behind %+v, and was behind %+v", now, before)
	}

	newer := l.dial().hello()
	newer.expect("add a", "add b")
	eventually(t, "the newer proxy's ack", func() bool { return l.acks("a") == "2 acked, 1 acked" })
	l.verdict("b", "waiting") // the older decides until the newer has acked its snapshot
	if got := l.acks("b") + "; " + l.acks("c"); got != "2 waiting, 1 waiting; 2 queued, 1 queued" {
		t.Errorf("acks: %s", got)
	}
	p.close()
	l.verdict("b", "queued") // in a snapshot
	newer.ack()
	newer.expect("add c", "snapshot")
	l.verdict("c", "queued")
	if !l.Verdict("c").Before.Snapshot {
		t.Errorf("c is behind %+v", l.Verdict("c").Before)
	}
	newer.ack()
	l.verdict("c", "acked by us")
}
