package proxylink

import "testing"

func TestKeepIsForSnapshotsAlone(t *testing.T) {
	l := start(t, nil)
	l.Keep("k")
	l.verdict("k", "noProxy")
	l.pod("a")
	l.Open()
	p := l.dial().hello()
	p.expect("keep k")
	l.verdict("k", "kept")
	if got := l.acks("k"); got != "1 waiting" {
		t.Errorf("acks: %s", got)
	}
	p.ack()
	p.expect("add a", "snapshot")
	p.ack()
	l.idle()
	// The ack proves nothing.
	l.verdict("k", "kept")
	if got := l.acks("k"); got != "1 kept" {
		t.Errorf("acks: %s", got)
	}
	if s := l.Sessions()[0]; s.Acked != 1 {
		t.Errorf("%d workloads are served, want 1", s.Acked)
	}

	// This one has acked its snapshot: a Keep would end its process.
	l.Keep("late")
	l.Keep("k")
	l.idle()
	l.verdict("late", "kept")
	if got := l.acks("late"); got != "" {
		t.Errorf("acks: %s", got)
	}
	l.pod("b")
	p.expect("add b")
	p.ack()

	next := l.dial().hello()
	next.expect("keep k", "add a", "keep late", "add b", "snapshot")
	next.ack()
	l.verdict("late", "kept")
}

func TestKeepWhileTheSnapshotsEndIsInFlight(t *testing.T) {
	l := start(t, nil)
	l.Open()
	p := l.dial().hello()
	p.expect("snapshot")
	l.Keep("k")
	p.ack()
	l.idle()
	w := l.pod("k")
	p.expect("add k")
	p.ack()
	l.verdict("k", "acked by us")
	l.Keep("k") // what is announced stays so
	l.Announce(w)
	l.idle()
	l.verdict("k", "acked by us")
}

func TestAnnounceTakesTheKeepsPlace(t *testing.T) {
	for name, test := range map[string]func(l *link, p *proxy){
		"before it is sent": func(l *link, p *proxy) {
			p.expect("keep j")
			l.pod("k")
			p.ack()
			p.expect("add k", "snapshot")
		},
		"while it is in flight": func(l *link, p *proxy) {
			p.expect("keep j", "keep k")
			l.pod("k")
			l.verdict("k", "queued")
			p.ack()
			p.expect("add k", "snapshot")
		},
		"during the snapshot": func(l *link, p *proxy) {
			p.expect("keep j", "keep k", "snapshot")
			l.pod("k")
			p.ack()
			p.expect("add k")
		},
		"afterwards": func(l *link, p *proxy) {
			p.expect("keep j", "keep k", "snapshot")
			p.ack()
			l.idle()
			l.pod("k")
			p.expect("add k")
			l.verdict("k", "waiting")
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := start(t, nil)
			l.Keep("j")
			l.Keep("k")
			l.Open()
			p := l.dial().hello()
			test(l, p)
			p.ack()
			l.verdict("k", "acked by us")
			l.verdict("j", "kept")
			l.dial().hello().expect("keep j", "add k", "snapshot")
		})
	}
}

func TestWithdrawDropsAKeep(t *testing.T) {
	for name, test := range map[string]func(l *link, p *proxy){
		"before it is sent": func(l *link, p *proxy) {
			p.expect("keep j")
			l.Withdraw("k")
			p.ack()
			p.expect("snapshot")
			p.ack()
		},
		"while it is in flight": func(l *link, p *proxy) {
			p.expect("keep j", "keep k")
			l.Withdraw("k")
			l.verdict("k", "withdrawing")
			p.ack()
			p.expect("snapshot", "del k")
			p.ack()
		},
		"afterwards": func(l *link, p *proxy) {
			p.expect("keep j", "keep k", "snapshot")
			p.ack()
			l.Withdraw("k")
			p.expect("del k")
			p.ack()
		},
		"and it is kept again": func(l *link, p *proxy) {
			p.expect("keep j", "keep k")
			l.Withdraw("k")
			l.Keep("k")
			p.ack()
			p.expect("snapshot", "del k")
			p.ack()
			l.verdict("k", "kept")
			l.Withdraw("k")
		},
		"and announced": func(l *link, p *proxy) {
			p.expect("keep j", "keep k")
			l.pod("k")
			l.Withdraw("k")
			p.ack()
			p.expect("snapshot", "del k")
			p.ack()
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := start(t, nil)
			l.Keep("j")
			l.Keep("k")
			l.Open()
			p := l.dial().hello()
			test(l, p)
			l.verdict("k", "gone")
			l.dial().hello().expect("keep j", "snapshot")
		})
	}
}

func TestAProxyRefusesAKeep(t *testing.T) {
	l := start(t, nil)
	l.Keep("k")
	l.Open()
	p := l.dial().hello()
	p.expect("keep k")
	p.nack("what?")
	p.closedByAgent()
	l.verdict("k", "noProxy")
}
