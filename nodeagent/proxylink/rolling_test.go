package proxylink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// await polls uid's verdict until it is want, and gives the states on the way. It
// may be called from any goroutine.
func (l *link) await(uid string, want State) (way []State, err error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); ; <-tick.C {
		v := l.Verdict(uid)
		if len(way) == 0 || way[len(way)-1] != v.State {
			way = append(way, v.State)
		}
		if v.State == want {
			return way, nil
		}
		if time.Now().After(deadline) {
			return way, fmt.Errorf("the verdict on %s was %v, and not %s", uid, way, want)
		}
	}
}

// TestFiftyADDs has one steady proxy answer fifty parallel ADDs, each of which has to
// see its workload queued, then sent, then acked, and never in another order.
func TestFiftyADDs(t *testing.T) {
	f := startFleet(t, 1, 7)
	f.Open()
	f.settled()
	desired := map[string]Workload{}
	for i := range 50 {
		uid := fmt.Sprint("pod", i)
		desired[uid] = workload(t, uid)
	}
	var all sync.WaitGroup
	for uid, w := range desired {
		all.Go(func() {
			f.Announce(w)
			way, err := f.await(uid, Acked)
			if err != nil {
				t.Error(err)
			}
			if order := []State{Queued, Waiting, Acked}; !slices.IsSortedFunc(way, func(a, b State) int {
				return slices.Index(order, a) - slices.Index(order, b)
			}) || slices.Contains(way, NoProxy) {
				t.Errorf("%s went %v", uid, way)
			}
		})
	}
	all.Wait()
	f.settle(desired, nil)
}

// watch has every verdict on uids looked at until the returned function is called:
// they may never be anything but acked.
func (l *link) watch(uids []string) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(100 * time.Microsecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			for _, uid := range uids {
				if v := l.Verdict(uid); v.State != Acked {
					l.t.Errorf("the verdict on %s is %+v", uid, v)
					return
				}
			}
			<-tick.C
		}
	}()
	return func() { cancel(); <-ended }
}

// TestRollingReplacements replaces the proxy again and again, with newcomers that
// die in their snapshot or hang, while pods come and go. What is served stays so.
func TestRollingReplacements(t *testing.T) {
	l := start(t, nil)
	l.Open()
	seed := uint64(0)
	newcomer := func(prepare func(*model)) *model {
		seed++
		m := newModel(t, l.cfg.Path, seed)
		prepare(m)
		m.start()
		return m
	}
	current := newcomer(func(*model) {})
	l.settled()
	var uids []string
	desired := map[string]Workload{}
	for i := range 10 {
		uid := fmt.Sprint("old", i)
		uids = append(uids, uid)
		desired[uid] = l.pod(uid)
		l.verdict(uid, "acked by us")
	}
	stopWatch := l.watch(uids)
	stopChurn := l.churn(workload(t, "new"), workload(t, "new"))
	synced := func(n int) {
		eventually(t, fmt.Sprint(n, " synced sessions"), func() bool {
			s := l.Sessions()
			return len(s) == n && !slices.ContainsFunc(s, func(i SessionInfo) bool { return i.State != Synced })
		})
	}
	for i := range 30 {
		switch i % 3 {
		case 1: // dies in its snapshot, which is at least ten Adds and the end
			dying := newcomer(func(m *model) { m.dieAfter = 1 + i%10 })
			<-dying.died
			dying.halt()
		case 2: // hangs in its snapshot
			hung := newcomer(func(m *model) { m.hangAfter = 1 + i%10 })
			eventually(t, "the newcomer to hang", func() bool { return len(l.Sessions()) == 2 })
			hung.halt()
		}
		synced(1)
		next := newcomer(func(*model) {})
		synced(2)
		current.halt() // SIGTERM: it closes its connection at once
		synced(1)
		current = next
	}
	stopWatch()
	stopChurn()
	l.settled()
	(&fleet{link: l, models: []*model{current}}).settle(desired, nil)
}

// churn has a pod come and go until the returned function is called.
func (l *link) churn(a, b Workload) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			l.Announce(a)
			_, err1 := l.await(a.UID, Acked)
			l.Announce(b)
			_, err2 := l.await(a.UID, Acked)
			l.Withdraw(a.UID)
			_, err3 := l.await(a.UID, Gone)
			if err := errors.Join(err1, err2, err3); err != nil {
				l.t.Error(err)
				return
			}
		}
	}()
	return func() { cancel(); <-ended }
}

func TestEitherOfTwoProxiesDies(t *testing.T) {
	for name, test := range map[string]func(l *link, older, newer *proxy){
		"the newer first, with the answers of both due": func(l *link, older, newer *proxy) {
			newer.close()
			l.verdict("a", "waiting")
			older.ack()
			l.verdict("a", "acked by us")
		},
		"the newer first, when the older has acked": func(l *link, older, newer *proxy) {
			older.ack()
			l.verdict("a", "waiting")
			newer.close()
			l.verdict("a", "acked by us")
		},
		"the newer first, when the older has nacked": func(l *link, older, newer *proxy) {
			older.nack("boom")
			newer.ack()
			l.verdict("a", "acked by us")
			newer.close()
			l.verdict("a", "nacked by us: boom")
		},
		"the older first": func(l *link, older, newer *proxy) {
			older.close()
			l.verdict("a", "waiting")
			newer.ack()
			l.verdict("a", "acked by us")
		},
		"both": func(l *link, older, newer *proxy) {
			newer.close()
			older.close()
			l.verdict("a", "noProxy")
			l.dial().hello().expect("add a", "snapshot")
			l.verdict("a", "queued")
		},
		"the older first, with the newer in its snapshot": func(l *link, older, newer *proxy) {
			older.ack()
			newer.ack()
			newest := l.dial().hello()
			newest.expect("add a")
			l.verdict("a", "acked by us")
			older.close()
			newer.close()
			l.verdict("a", "queued")
			newest.ack()
			newest.expect("snapshot")
			newest.ack()
			l.verdict("a", "acked by us")
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := start(t, nil)
			l.Open()
			older, newer := l.dialSynced(), l.dialSynced()
			l.pod("a")
			older.expect("add a")
			newer.expect("add a")
			test(l, older, newer)
		})
	}
}

func TestAHungNewcomer(t *testing.T) {
	l := start(t, nil)
	l.pod("a")
	l.Open()
	older := l.dialSynced()
	l.verdict("a", "acked by us")
	hung := l.dial().hello()
	hung.expect("add a")

	// It has not acked its snapshot: it decides nothing, and nobody waits for it.
	l.pod("b")
	older.expect("add b")
	l.verdict("b", "waiting")
	older.ack()
	l.verdict("b", "acked by us")
	l.Withdraw("a")
	older.expect("del a")
	older.ack()
	eventually(t, "the older one to be done", func() bool { return l.acks("a") == "2 withdrawing" })
	hung.close()
	l.verdict("a", "gone")
}

// An ack that comes when it is not waited for any more is no other request's.
func TestALateAck(t *testing.T) {
	l := start(t, func(cfg *Config) { cfg.AckTimeout = 100 * time.Millisecond })
	l.pod("a")
	l.pod("b")
	l.Open()
	late := l.dial().hello()
	late.expect("add a")
	ends := l.metrics.ends.WithLabelValues(endAckTimeout)
	eventually(t, "the end", func() bool { return testutil.ToFloat64(ends) == 1 })
	_ = late.conn.Send(ztunnelproto.NewResponse(""), nil) // the connection may be closed already
	late.closedByAgent()
	for _, uid := range []string{"a", "b"} {
		l.verdict(uid, "noProxy")
	}
	l.dial().hello().expect("add a")
}

// One proxy is in its snapshot, the other is not, when a pod is deleted.
func TestADeleteThatRacesASnapshot(t *testing.T) {
	l := start(t, nil)
	l.pod("a")
	l.pod("b")
	l.Open()
	older := l.dialSynced()
	newer := l.dial().hello()
	newer.expect("add a", "add b")
	l.Withdraw("b")
	l.Withdraw("a")
	older.expect("del b", "del a")
	older.ack()
	l.idleBut(1)
	l.verdict("a", "withdrawing")
	newer.ack()
	newer.expect("snapshot")
	l.verdict("b", "withdrawing")
	newer.ack()
	newer.expect("del a", "del b")
	newer.ack()
	l.verdict("a", "gone")
	l.verdict("b", "gone")

	// Deleted before it was its turn, it is not in the snapshot at all.
	l.pod("c")
	l.pod("d")
	older.expect("add c", "add d")
	older.ack()
	newer.expect("add c", "add d")
	newer.ack()
	l.idle()
	newest := l.dial().hello()
	newest.expect("add c")
	l.Withdraw("d")
	newest.ack()
	newest.expect("snapshot")
	newest.ack()
	older.expect("del d")
	older.ack()
	newer.expect("del d")
	newer.ack()
	l.verdict("d", "gone")
}
