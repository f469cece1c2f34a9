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

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// model is a proxy that does what the protocol says a proxy does, with the
// requests it gets, and complains about those it must not get. It lives on when
// its connection ends, and dials again.
type model struct {
	t    *testing.T
	path string

	mu     sync.Mutex
	random *rand.Rand
	unruly bool              // nacks some Adds, and drops some connections
	has    map[string]uint64 // uid → inode of the namespace, served or still tried
	nacked map[string]bool
	conn   *ztunnelproto.Conn
}

func (m *model) run(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := ztunnelproto.Dial(ctx, m.path)
		if err != nil {
			if ctx.Err() == nil {
				m.t.Errorf("the proxy cannot connect: %v", err)
			}
			return
		}
		m.mu.Lock()
		m.conn = conn
		m.mu.Unlock()
		stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
		m.serve(conn)
		stop()
		_ = conn.Close()
	}
}

func (m *model) serve(conn *ztunnelproto.Conn) {
	if conn.Send(&ztunnelproto.ZdsHello{Version: ztunnelproto.Version_V1}, nil) != nil {
		return
	}
	named := map[string]bool{}
	for {
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
		if m.dies() || conn.Send(ztunnelproto.NewResponse(answer), nil) != nil {
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
		uid := r.GetAdd().Uid
		if r.GetAdd().WorkloadInfo == nil {
			return "", errors.New("an Add without info")
		}
		var stat unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
			return "", err
		}
		if *named != nil {
			(*named)[uid] = true
		}
		m.has[uid] = stat.Ino
		m.nacked[uid] = m.unruly && m.random.IntN(4) == 0
		if m.nacked[uid] {
			return "cannot bind", nil
		}
	case r.GetDel() != nil && *named == nil:
		delete(m.has, r.GetDel().Uid)
	case r.GetSnapshotSent() != nil && *named != nil:
		maps.DeleteFunc(m.has, func(uid string, _ uint64) bool { return !(*named)[uid] })
		*named = nil
	default:
		return "", errors.New("out of turn")
	}
	return "", nil
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
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i := range n {
		m := &model{
			t: t, path: f.cfg.Path, random: rand.New(rand.NewPCG(seed, uint64(i))),
			has: map[string]uint64{}, nacked: map[string]bool{},
		}
		f.models = append(f.models, m)
		running.Go(func() { m.run(ctx) })
	}
	t.Cleanup(func() { cancel(); running.Wait() })
	return f
}

// settle waits until all proxies are told all, and compares what each has, and
// what the verdicts say, with what is desired.
func (f *fleet) settle(desired map[string]Workload) {
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
		if diff := cmp.Diff(want, m.has); diff != "" {
			t.Fatalf("proxy %d has (-want +got):\n%s", i, diff)
		}
		m.mu.Unlock()
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
	desired := map[string]Workload{}
	f.Open()
	for step := range 600 {
		if step%12 == 11 {
			f.settle(desired)
			continue
		}
		uid := uids[random.IntN(len(uids))]
		switch random.IntN(8) {
		case 0, 1, 2:
			w := pool[uid][random.IntN(3)]
			f.Announce(w)
			desired[uid] = w
		case 3, 4:
			f.Withdraw(uid)
			delete(desired, uid)
		case 5:
			f.models[random.IntN(len(f.models))].drop()
		case 6:
			f.models[random.IntN(len(f.models))].setUnruly(true)
		case 7: // let something happen in between
			f.Verdict(uid)
			eventually(t, "a session", func() bool { return len(f.Sessions()) > 0 })
		}
	}
	for _, uid := range uids {
		f.Withdraw(uid)
	}
	f.settle(nil)
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
	f.settle(desired)
}
