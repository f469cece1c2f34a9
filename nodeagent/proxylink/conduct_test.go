package proxylink

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

func TestHolds(t *testing.T) {
	now := time.Unix(1000, 0)
	c := conducts{first: firstHold, most: mostHold, of: map[int32]*conduct{}}
	held := func(pid int32) string {
		until, why := c.hold(pid, now)
		if until.IsZero() {
			return "no"
		}
		return until.Sub(now).String() + ", " + why
	}
	expect := func(pid int32, want string) {
		t.Helper()
		if got := held(pid); got != want {
			t.Errorf("held %s, want %s", got, want)
		}
	}
	expect(1, "no")
	c.endedBadly(1, "boom", now)
	expect(1, "1s, its connection has ended badly once: boom")
	expect(2, "no")
	for i, want := range []string{"2s", "4s", "8s", "16s", "30s", "30s"} {
		c.endedBadly(1, "bang", now)
		expect(1, fmt.Sprintf("%s, its connection has ended badly %d times in a row: bang", want, i+2))
	}
	c.endedBadly(2, "boom", now)
	now = now.Add(29 * time.Second)
	expect(1, "1s, its connection has ended badly 7 times in a row: bang")
	now = now.Add(time.Second)
	expect(1, "no")

	c.endedBadly(1, "boom", now)
	c.endedWell(1)
	expect(1, "no")
	c.endedBadly(1, "boom", now)
	expect(1, "1s, its connection has ended badly once: boom")

	if bad, why := c.lately(1, now.Add(time.Minute)); bad != 1 || why != "boom" {
		t.Errorf("lately %d ended badly: %s", bad, why)
	}
	if bad, why := c.lately(1, now.Add(2*mostHold+2*time.Second)); bad != 0 || why != "" {
		t.Errorf("what was long ago is not over: %d, %s", bad, why)
	}
	c.endedWell(3)
	now = now.Add(2*mostHold + 2*time.Second)
	c.endedBadly(3, "boom", now)
	if len(c.of) != 1 {
		t.Errorf("who was quiet for long is remembered: %v", c.of)
	}
}

func TestTheLogIsNotFilled(t *testing.T) {
	now := time.Unix(1000, 0)
	c := conducts{first: firstHold, most: mostHold, of: map[int32]*conduct{}}
	lines := 0
	for range 1000 {
		if c.mayLog(1, now) {
			lines++
		}
		now = now.Add(100 * time.Millisecond)
		c.endedWell(1)
	}
	if lines != 4 {
		t.Errorf("%d lines in 100 s", lines)
	}
	if !c.mayLog(2, now) {
		t.Error("another process is kept out")
	}
}

func TestSurplus(t *testing.T) {
	pids := func(pids ...int32) (sessions []*session) {
		for i, pid := range pids {
			sessions = append(sessions, &session{id: uint64(i), peer: ztunnelproto.Credentials{PID: pid}, state: Hello})
		}
		return sessions
	}
	many := func(n int) (all []int32) {
		for i := range n {
			all = append(all, int32(i))
		}
		return all
	}
	for _, test := range []struct {
		name     string
		sessions []*session
		want     int // the index of the one to cut, or -1
	}{
		{"none", nil, -1},
		{"as many as may be of one", pids(1, 1, 1, 1), -1},
		{"one too many of one", pids(2, 1, 1, 1, 1, 1), 1},
		{"as many as may be in all", pids(many(32)...), -1},
		{"one too many in all", pids(many(33)...), 0},
		{"one too many in all: who has most is cut", pids(append(many(31), 5, 5)...), 5},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := -1
			if c := surplus(test.sessions); c != nil {
				got = int(c.id)
			}
			if got != test.want {
				t.Errorf("cut %d, want %d", got, test.want)
			}
		})
	}
	some := pids(1, 1, 1, 1, 1, 1, 1, 1)
	some[0].state, some[1].state, some[2].state, some[3].cut = Snapshot, Synced, Held, true
	if c := surplus(some); c != some[2] {
		t.Errorf("proxies and what is cut already do not count, what is held does: %v", c)
	}
}

// startHolding is start with pauses that never end.
func startHolding(t *testing.T) *link {
	t.Helper()
	return startWith(t, nil, func(s *Server) { s.conducts.first, s.conducts.most = time.Hour, time.Hour })
}

// misbehave has a connection of p end badly.
func (p *process) misbehave() {
	p.l.t.Helper()
	bad := p.dial()
	bad.send(&ztunnelproto.ZdsHello{Version: 2})
	bad.closedByAgent()
}

func (l *link) states() string {
	var s []string
	for _, i := range l.Sessions() {
		s = append(s, string(i.State))
	}
	return strings.Join(s, " ")
}

func (l *link) expectStates(want string) {
	l.t.Helper()
	eventually(l.t, "sessions "+want, func() bool { return l.states() == want })
}

func TestWhoBehavesBadlyIsHeld(t *testing.T) {
	l := startHolding(t)
	l.pod("a")
	l.Open()
	bad, good := l.process(4), l.process(1)
	bad.misbehave()
	eventually(t, "the end", func() bool { return len(l.Sessions()) == 0 })

	held := bad.dial().hello()
	l.expectStates("held")
	v := l.Verdict("a")
	for _, want := range []string{bad.String(), "is kept waiting until", "ended badly once: the proxy speaks version 2"} {
		if v.State != NoProxy || !strings.Contains(v.Text, want) {
			t.Errorf("the verdict is %+v, without %q", v, want)
		}
	}
	if s := l.Sessions()[0]; !strings.Contains(s.Text, "ended badly once") || s.EndedBadly != 1 || !strings.Contains(s.Why, "version 2") || time.Until(s.Until) < 50*time.Minute {
		t.Errorf("session %+v", s)
	}
	good.dial().hello().sync()
	l.verdict("a", "acked by "+good.String())
	l.expectStates("synced held")
	if got := l.acks("a"); got != "3 acked" {
		t.Errorf("acks: %s: who is held has no say", got)
	}
	if ready, err := held.conn.Ready(); ready || err != nil {
		t.Errorf("something came: %v, %v", ready, err)
	}

	held.close() // nobody need wait for what is gone
	l.expectStates("synced")
	bad.dial()
	l.expectStates("held synced")
	l.stop() // while one is held
}

func TestWhoIsHeldIsServedInTheEnd(t *testing.T) {
	l := startWith(t, nil, func(s *Server) { s.conducts.first, s.conducts.most = 50*time.Millisecond, 50*time.Millisecond })
	l.Open()
	p := l.process(2)
	p.misbehave()
	eventually(t, "the end", func() bool { return len(l.Sessions()) == 0 })
	c := p.dial()
	l.expectStates("hello")
	c.hello().sync()
	l.expectStates("synced")
}

// A proxy closes its connection and dials again, or stops and is started again.
func TestWhoEndsWellIsServedAtOnce(t *testing.T) {
	l := startHolding(t)
	l.Open()
	p := l.process(4)
	for range 3 {
		c := p.dial().hello().sync()
		l.idle()
		c.close()
		l.expectStates("")
	}
	// One that goes before its snapshot is over may do so for what it was told.
	c := p.dial().hello()
	c.expect("snapshot")
	c.close()
	l.expectStates("")
	until, why := l.conducts.hold(p.pid, time.Now())
	if until.IsZero() || !strings.Contains(why, "ended badly once: the proxy closed the connection") {
		t.Errorf("held until %v: %s", until, why)
	}
}

func TestAFloodHarmsNobodyElse(t *testing.T) {
	l := startHolding(t)
	l.Open()
	flood, slow, good := l.process(41), l.process(1), l.process(1)
	first := slow.dial() // has not said hello yet, and is the oldest
	served := good.dial().hello().sync()
	l.idleBut(1)
	for range 40 {
		flood.dial()
	}
	cut := l.metrics.ends.WithLabelValues(endFlood)
	eventually(t, "the flood to be cut", func() bool { return testutil.ToFloat64(cut) == 40-silentPerProcess })
	l.pod("a")
	served.expect("add a")
	served.ack()
	l.verdict("a", "acked by "+good.String())
	first.hello().sync()
	eventually(t, "the slow one's ack", func() bool { return strings.Count(l.acks("a"), "acked") == 2 })
	if n := strings.Count(l.logs.String(), "ended before its hello"); n != 1 {
		t.Errorf("%d lines of log for one flood:\n%s", n, l.logs)
	}
	flood.dial()
	eventually(t, "its next connection to be held", func() bool { return l.Sessions()[0].State == Held })
}
