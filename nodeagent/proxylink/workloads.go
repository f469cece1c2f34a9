package proxylink

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// Workload is a pod that proxies are to serve.
type Workload struct {
	UID, Name, Namespace, ServiceAccount string
	// Netns is borrowed: its owner may close it at any time, from then on the
	// workload cannot be sent.
	Netns *netns.Handle
}

// announcement is a workload that is desired, from its Announce or Keep to the
// Withdraw or to an Announce with another Handle.
type announcement struct {
	Workload
	keep     bool // its namespace is not known
	number   uint64
	at       time.Time
	timeouts int // sessions that ended without an answer to it
}

// suspect says whether proxies seem to hang on the workload, so that others should
// be told of before it.
func (a *announcement) suspect() bool { return a != nil && a.timeouts >= 2 }

// Announce makes w desired, by every session now and to come. Announced again
// with the same Handle nothing is sent anew, not even after a nack: for that,
// withdraw it first. With another Handle it is sent again, which replaces the
// proxy's namespace if it is another one.
func (s *Server) Announce(w Workload) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.desired[w.UID]; old != nil && !old.keep && old.Netns == w.Netns {
		return
	}
	s.want(&announcement{Workload: w})
}

// Keep makes uid desired while its namespace is not known: snapshots name it by a
// Keep, so that a proxy that has it from an earlier connection goes on with it. A
// proxy that has acked its snapshot is not told: it has stopped the workload, or
// never had it. What is announced already stays so, and an Announce to come takes
// the Keep's place.
func (s *Server) Keep(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.desired[uid] == nil {
		s.want(&announcement{Workload: Workload{UID: uid}, keep: true})
	}
}

func (s *Server) want(a *announcement) {
	s.numbered++
	a.number, a.at = s.numbered, time.Now()
	s.desired[a.UID] = a
	for _, c := range s.sessions {
		c.push(a.UID)
		c.wake()
	}
}

// Withdraw makes uid no longer desired: every session that was sent it is sent a
// Del. An unknown uid is fine.
func (s *Server) Withdraw(uid string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.desired, uid)
	for _, c := range s.sessions {
		switch r := c.records[uid]; {
		case r == nil || !r.withdrawn.IsZero():
		case !r.held:
			delete(c.records, uid)
		default:
			r.withdrawn = time.Now()
			c.push(uid)
			c.wake()
		}
	}
}

// record is what a session knows about a workload it was told to send.
type record struct {
	announced *announcement // the one sent last, or tried to
	held      bool          // the proxy may have it, acked or not: owed a Del
	state     State         // Waiting, Acked, Nacked, Unsent, Kept
	text      string
	at        time.Time // of state
	withdrawn time.Time // zero: it is not
}

// request is one thing for a session to do.
type request struct {
	kind     string
	workload *announcement // of an Add or Keep
	uid      string        // of an Add, Keep or Del
	held     bool          // of an Add or Keep: the proxy may have had the workload before
	decides  bool          // of an Add: to a session that may decide on the workload
	message  *ztunnelproto.WorkloadRequest
}

const (
	kindAdd      = "add"
	kindKeep     = "keep"
	kindDel      = "del"
	kindSnapshot = "snapshot_sent"
)

// next takes the session's next request, and marks it idle if there is none. The
// server's lock is held, here and below.
func (c *session) next() *request {
	if c.server.open {
		for uid, ok := c.pop(); ok; uid, ok = c.pop() {
			if r := c.about(uid); r != nil {
				return r
			}
		}
		if c.state == Snapshot {
			return &request{kind: kindSnapshot, message: &ztunnelproto.WorkloadRequest{
				Payload: &ztunnelproto.WorkloadRequest_SnapshotSent{SnapshotSent: &ztunnelproto.SnapshotSent{}},
			}}
		}
	}
	c.sleep()
	return nil
}

// about compares what is desired of uid with what was sent.
func (c *session) about(uid string) *request {
	want, r := c.server.desired[uid], c.records[uid]
	if r != nil && !r.withdrawn.IsZero() {
		return c.del(uid)
	}
	// A Keep after SnapshotSent would end the proxy's process.
	if want == nil || r != nil && r.announced == want || want.keep && c.state != Snapshot {
		return nil
	}
	c.records[uid] = &record{announced: want, held: true, state: Waiting, at: time.Now()}
	q := &request{kind: kindAdd, workload: want, uid: uid, held: r != nil && r.held, decides: c.state == Synced}
	if want.keep {
		q.kind = kindKeep
		q.message = &ztunnelproto.WorkloadRequest{Payload: &ztunnelproto.WorkloadRequest_Keep{Keep: &ztunnelproto.KeepWorkload{Uid: uid}}}
		return q
	}
	q.message = &ztunnelproto.WorkloadRequest{Payload: &ztunnelproto.WorkloadRequest_Add{Add: &ztunnelproto.AddWorkload{
		Uid: uid,
		WorkloadInfo: &ztunnelproto.WorkloadInfo{
			Name: want.Name, Namespace: want.Namespace, ServiceAccount: want.ServiceAccount,
		},
	}}}
	return q
}

// del is nothing until the snapshot is acked: answered makes up for it.
func (c *session) del(uid string) *request {
	if c.state != Synced {
		return nil
	}
	return &request{kind: kindDel, uid: uid, message: &ztunnelproto.WorkloadRequest{
		Payload: &ztunnelproto.WorkloadRequest_Del{Del: &ztunnelproto.DelWorkload{Uid: uid}},
	}}
}

// helloSaid starts the snapshot: everything desired, in the order announced, with
// what is suspect last.
func (c *session) helloSaid() {
	c.enter(Snapshot)
	byNumber := func(a, b *announcement) int { return cmp.Compare(a.number, b.number) }
	for _, a := range slices.SortedFunc(maps.Values(c.server.desired), byNumber) {
		c.push(a.UID)
	}
}

func (c *session) push(uid string) {
	if c.server.desired[uid].suspect() {
		c.last.push(uid)
		return
	}
	c.todo.push(uid)
}

func (c *session) pop() (uid string, ok bool) {
	if uid, ok = c.todo.pop(); ok {
		return uid, true
	}
	return c.last.pop()
}

// timedOut counts an answer that did not come against the workload, and says
// whether that has made it suspect.
func (c *session) timedOut(r *request) bool {
	if r.workload == nil {
		return false
	}
	before := r.workload.suspect()
	r.workload.timeouts++
	return !before && r.workload.suspect()
}

// answered records what became of r: it was acked, or state and text say why not.
func (c *session) answered(r *request, state State, text string) {
	switch r.kind {
	case kindAdd, kindKeep:
		rec := c.records[r.uid]
		rec.state, rec.text, rec.at = state, text, time.Now()
		if r.kind == kindKeep && state == Acked {
			rec.state = Kept
		}
		rec.held = r.held || state != Unsent
		if !rec.held && !rec.withdrawn.IsZero() {
			delete(c.records, r.uid)
		}
	case kindDel:
		delete(c.records, r.uid)
		c.push(r.uid) // it may be desired again
	case kindSnapshot:
		c.enter(Synced)
		for _, uid := range slices.Sorted(maps.Keys(c.records)) {
			if !c.records[uid].withdrawn.IsZero() {
				c.push(uid)
			}
		}
	}
}

// queue holds uids in order, each once.
type queue struct {
	order []string
	in    map[string]bool
}

func (q *queue) push(uid string) {
	if q.in[uid] {
		return
	}
	if q.in == nil {
		q.in = map[string]bool{}
	}
	q.in[uid] = true
	q.order = append(q.order, uid)
}

func (q *queue) pop() (uid string, ok bool) {
	if len(q.order) == 0 {
		return "", false
	}
	uid, q.order = q.order[0], q.order[1:]
	delete(q.in, uid)
	return uid, true
}
