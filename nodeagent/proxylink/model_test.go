package proxylink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// model is a proxy that does with the requests it gets what the protocol says a
// proxy does, and complains about those it must not get: ztunnel would end its
// process. It lives on when its connection ends, and dials again.
type model struct {
	t    *testing.T
	path string

	mu      sync.Mutex
	random  *rand.Rand
	unruly  bool              // nacks some Adds, and drops some connections
	refuse  map[string]string // uid → why its listeners cannot start
	leave   map[string]bool   // uids whose Adds make it nack and disconnect
	has     map[string]uint64 // uid → inode of the namespace, served or still tried
	nacked  map[string]bool   // still tried; while there is one the proxy is not ready
	stopped []string          // uids, as they were
	adds    int
	conn    *ztunnelproto.Conn

	dieAfter, hangAfter int           // answers
	died                chan struct{} // closed when it has

	halt func() // ends what start began
}

// leaving is the nack after which a proxy disconnects.
const leaving = "wrong number of fds"

func newModel(t *testing.T, path string, seed uint64) *model {
	return &model{
		t: t, path: path, random: rand.New(rand.NewPCG(seed, 1)),
		refuse: map[string]string{}, leave: map[string]bool{},
		has: map[string]uint64{}, nacked: map[string]bool{}, died: make(chan struct{}),
	}
}

// start runs the model until it is halted, or the test ends.
func (m *model) start() {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); m.run(ctx) }()
	m.halt = sync.OnceFunc(func() { cancel(); <-ended })
	m.t.Cleanup(m.halt)
}

func (m *model) run(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		conn, err := ztunnelproto.Dial(ctx, m.path)
		if err != nil { // no agent, for now
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
			continue
		}
		m.mu.Lock()
		m.conn = conn
		m.mu.Unlock()
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		m.serve(ctx, conn)
		stop()
		_ = conn.Close()
		if m.dieAfter > 0 {
			close(m.died)
			return
		}
	}
}

func (m *model) serve(ctx context.Context, conn *ztunnelproto.Conn) {
	if conn.Send(&ztunnelproto.ZdsHello{Version: ztunnelproto.Version_V1}, nil) != nil {
		return
	}
	named := map[string]bool{}
	for answers := 0; ; answers++ {
		var r ztunnelproto.WorkloadRequest
		f, err := conn.Receive(&r)
		if err != nil {
			return
		}
		answer, err := m.handle(&r, f, &named)
		if f != nil {
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			m.t.Errorf("the proxy got %v: %v", &r, err)
			return
		}
		if m.hangAfter > 0 && answers == m.hangAfter {
			<-ctx.Done()
			return
		}
		if m.dieAfter > 0 && answers == m.dieAfter {
			return
		}
		if m.dies() || conn.Send(ztunnelproto.NewResponse(answer), nil) != nil || answer == leaving {
			return
		}
	}
}

func (m *model) dies() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unruly && m.random.IntN(20) == 0
}

// handle obeys r. named is what the snapshot has named so far, nil once it is over.
func (m *model) handle(r *ztunnelproto.WorkloadRequest, f *os.File, named *map[string]bool) (answer string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if (f != nil) != (r.GetAdd() != nil) {
		return "", fmt.Errorf("file %v", f)
	}
	switch {
	case r.GetAdd() != nil:
		return m.add(r.GetAdd(), f, *named)
	case r.GetKeep() != nil && *named != nil:
		(*named)[r.GetKeep().Uid] = true
	case r.GetDel() != nil && *named == nil:
		m.stop(r.GetDel().Uid)
	case r.GetSnapshotSent() != nil && *named != nil:
		for _, uid := range slices.Sorted(maps.Keys(m.has)) {
			if !(*named)[uid] {
				m.stop(uid)
			}
		}
		*named = nil
	default:
		return "", errors.New("out of turn")
	}
	return "", nil
}

func (m *model) add(a *ztunnelproto.AddWorkload, f *os.File, named map[string]bool) (answer string, err error) {
	if a.WorkloadInfo == nil {
		return "", errors.New("an Add without info")
	}
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		return "", err
	}
	if named != nil {
		named[a.Uid] = true
	}
	m.adds++
	if inode, ok := m.has[a.Uid]; ok && inode != stat.Ino {
		m.stop(a.Uid)
	}
	m.has[a.Uid] = stat.Ino
	answer = m.refuse[a.Uid]
	if m.leave[a.Uid] {
		answer = leaving
	}
	if m.unruly && m.random.IntN(4) == 0 {
		answer = "cannot bind"
	}
	m.nacked[a.Uid] = answer != ""
	return answer, nil
}

func (m *model) stop(uid string) {
	if _, ok := m.has[uid]; ok {
		m.stopped = append(m.stopped, uid)
		delete(m.has, uid)
		delete(m.nacked, uid)
	}
}

// String is what the proxy does: "served pending! [stopped]".
func (m *model) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var s []string
	for _, uid := range slices.Sorted(maps.Keys(m.has)) {
		if m.nacked[uid] {
			uid += "!"
		}
		s = append(s, uid)
	}
	return strings.Join(s, " ") + " " + fmt.Sprint(m.stopped)
}

func (m *model) drop() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.conn != nil {
		_ = m.conn.Close()
	}
}

func (m *model) setUnruly(unruly bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unruly = unruly
}

// fleet is some model proxies connected to one link.
type fleet struct {
	*link
	models []*model
}

func startFleet(t *testing.T, n int, seed uint64) *fleet {
	t.Helper()
	f := &fleet{link: start(t, nil)}
	for i := range n {
		m := newModel(t, f.cfg.Path, seed+uint64(i))
		f.models = append(f.models, m)
		m.start()
	}
	return f
}

// settle waits until all proxies are told all, and compares what each has, and
// what the verdicts say, with what is desired. What is kept a proxy may have.
func (f *fleet) settle(desired map[string]Workload, kept map[string]bool) {
	t := f.t
	t.Helper()
	for _, m := range f.models {
		m.setUnruly(false)
	}
	want := map[string]uint64{}
	for uid, w := range desired {
		if err := w.Netns.File(func(file *os.File) error { want[uid] = inode(t, file); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all proxies to have what is desired", func() bool {
		f.Server.mu.Lock()
		defer f.Server.mu.Unlock()
		return len(f.sessions) == len(f.models) && !slices.ContainsFunc(f.sessions, func(c *session) bool {
			return !c.idle || c.state != Synced
		})
	})
	for i, m := range f.models {
		m.mu.Lock()
		has := maps.Clone(m.has)
		m.mu.Unlock()
		maps.DeleteFunc(has, func(uid string, _ uint64) bool { return kept[uid] })
		if diff := cmp.Diff(want, has); diff != "" {
			t.Fatalf("proxy %d has (-want +got):\n%s", i, diff)
		}
	}
	for uid := range kept {
		if v := f.Verdict(uid); v.State != Kept {
			t.Fatalf("the verdict on %s is %+v", uid, v)
		}
	}
	for uid := range desired {
		v := f.Verdict(uid)
		if v.State != v.Acks[0].State || len(v.Acks) != len(f.models) {
			t.Fatalf("the verdict on %s is %+v", uid, v)
		}
	}
	f.compareAcks(desired)
}

// compareAcks counts: which session is whose is not known here.
func (f *fleet) compareAcks(desired map[string]Workload) {
	f.t.Helper()
	for uid := range desired {
		var got, want []string
		for _, a := range f.Verdict(uid).Acks {
			got = append(got, string(a.State))
		}
		for _, m := range f.models {
			m.mu.Lock()
			want = append(want, map[bool]string{true: "nacked", false: "acked"}[m.nacked[uid]])
			m.mu.Unlock()
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			f.t.Fatalf("proxies say of %s: %s; the sessions: %s", uid, strings.Join(want, ", "), strings.Join(got, ", "))
		}
	}
}

func TestEveryStateFromEveryState(t *testing.T) {
	const seed = 20260823
	random := rand.New(rand.NewPCG(seed, 0))
	pool := map[string][]Workload{}
	uids := []string{"a", "b", "c", "d", "e", "f"}
	for _, uid := range uids {
		pool[uid] = []Workload{workload(t, uid), workload(t, uid), workload(t, uid)}
	}
	f := startFleet(t, 3, seed)
	desired, kept := map[string]Workload{}, map[string]bool{}
	f.Open()
	for step := range 600 {
		if step%12 == 11 {
			f.settle(desired, kept)
			continue
		}
		uid := uids[random.IntN(len(uids))]
		switch random.IntN(9) {
		case 0, 1, 2:
			w := pool[uid][random.IntN(3)]
			f.Announce(w)
			desired[uid] = w
			delete(kept, uid)
		case 3, 4:
			f.Withdraw(uid)
			delete(desired, uid)
			delete(kept, uid)
		case 5:
			f.models[random.IntN(len(f.models))].drop()
		case 6:
			f.models[random.IntN(len(f.models))].setUnruly(true)
		case 7: // let something happen in between
			f.Verdict(uid)
			eventually(t, "a session", func() bool { return len(f.Sessions()) > 0 })
		case 8:
			f.Keep(uid)
			if _, announced := desired[uid]; !announced {
				kept[uid] = true
			}
		}
	}
	for _, uid := range uids {
		f.Withdraw(uid)
	}
	f.settle(nil, nil)
	for _, uid := range uids {
		f.verdict(uid, "gone")
	}
}

func TestFiftyAtOnce(t *testing.T) {
	f := startFleet(t, 3, 1)
	for _, m := range f.models {
		m.setUnruly(true)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	desired := map[string]Workload{}
	for i := range 50 {
		w, other := workload(t, fmt.Sprint(i)), workload(t, fmt.Sprint(i))
		all.Go(func() {
			for range 20 {
				f.Keep(w.UID)
				f.Announce(w)
				f.Verdict(w.UID)
				f.Announce(other)
				f.Withdraw(w.UID)
			}
			if i%2 == 0 {
				f.Announce(w)
				mu.Lock()
				desired[w.UID] = w
				mu.Unlock()
			}
		})
		if i == 10 {
			all.Go(f.Open)
		}
		all.Go(f.models[i%3].drop)
	}
	all.Wait()
	f.settle(desired, nil)
}
