package proxylink

import (
	"fmt"
	"slices"
	"time"
)

// State is what the proxies say of a workload, all together or one.
type State string

// The states. NoProxy and Gone are a verdict's only.
const (
	NoProxy     State = "noProxy"     // desired, and no proxy is connected
	Queued      State = "queued"      // announced, and not sent: others are before it
	Waiting     State = "waiting"     // sent, and not answered
	Acked       State = "acked"       // served
	Nacked      State = "nacked"      // refused; the proxy keeps trying until it is withdrawn
	Unsent      State = "unsent"      // it could not be sent, by the agent's fault or the workload's
	Kept        State = "kept"        // named by a Keep alone: whether a proxy has it is not known
	Withdrawing State = "withdrawing" // withdrawn, and the Del is not acked
	Gone        State = "gone"        // no connected proxy was told of it and not told otherwise
)

// Ack is one session's state of a workload.
type Ack struct {
	Session uint64
	PID     int32
	State   State
	Text    string // why it is Nacked or Unsent
	At      time.Time
}

// Verdict is what became of a workload.
type Verdict struct {
	State State
	Proxy string // which decided, if one did: "pid 123"
	Text  string // why it is Nacked or Unsent, or why a process that dialled is no proxy yet
	// Since is when the State began: a workload that is Queued was announced then,
	// one that is Waiting was sent then.
	Since time.Time
	// Recheck, unless zero, is when the verdict changes if nothing else does.
	Recheck time.Duration
	// Before, of a workload that is Queued, is what its proxy has to answer first; zero
	// if that is not known.
	Before Unanswered
	Acks   []Ack // newest session first
}

// Unanswered is a request that a proxy has not answered yet.
type Unanswered struct {
	PID      int32
	Since    time.Time
	Snapshot bool // it is the end of the snapshot, and no pod's
}

// Verdict decides by the newest session that has acked its snapshot. Until it has
// answered nobody decides, but after AckPreference any session's ack counts. What
// the deciding session nacked, or could not be sent, stays so until the workload
// is announced anew.
//
// While nobody decides the workload is Waiting if that session was sent it. It is
// Queued if it was not, be it for the requests before it or for the Del of what
// it had, and if no session has acked its snapshot: the proxy, one request after
// the other, owes that workload no answer yet. A queue moves, or its session ends
// with AckTimeout.
//
// Of a workload that is Kept no proxy decides: a proxy acks the Keep of what it
// does not have, too.
func (s *Server) Verdict(uid string) Verdict {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := s.desired[uid]
	var voices []voice
	for _, session := range slices.Backward(s.sessions) {
		if v, ok := session.voice(uid, want); ok {
			voices = append(voices, v)
		}
	}
	v := Verdict{State: Gone}
	switch {
	case want != nil && !slices.ContainsFunc(s.sessions, (*session).connected):
		v.State, v.Since, v.Text = NoProxy, later(want.at, s.lonely), s.held()
	case want != nil && want.keep:
		v.State, v.Since = Kept, want.at
	case want != nil:
		v = decide(voices, want.at, time.Now(), s.cfg.AckPreference)
	case len(voices) > 0:
		v.State = Withdrawing
		for _, voice := range voices {
			v.Since = later(v.Since, voice.At)
		}
	}
	if v.State == Queued {
		v.Before = s.unanswered()
	}
	for _, voice := range voices {
		v.Acks = append(v.Acks, voice.Ack)
	}
	return v
}

// unanswered is the request under way to the session that decides, or will when it has
// acked its snapshot.
func (s *Server) unanswered() Unanswered {
	var decides *session
	for _, c := range slices.Backward(s.sessions) {
		if c.state == Synced || c.state == Snapshot && decides == nil {
			decides = c
		}
		if c.state == Synced {
			break
		}
	}
	if decides == nil || decides.asked == nil {
		return Unanswered{}
	}
	return Unanswered{PID: decides.peer.PID, Since: decides.askedAt, Snapshot: decides.asked.kind == kindSnapshot}
}

// held tells of the newest connection that is kept waiting.
func (s *Server) held() string {
	for _, c := range slices.Backward(s.sessions) {
		if c.state == Held {
			return fmt.Sprintf("pid %d is kept waiting until %s, since %s", c.peer.PID, c.until.Format(time.TimeOnly), c.why)
		}
	}
	return ""
}

// voice is an Ack and how much it counts.
type voice struct {
	Ack
	synced bool
	since  time.Time // when it became synced, or said hello
}

// voice is what the session says of uid, if anything. The server's lock is held.
func (c *session) voice(uid string, want *announcement) (voice, bool) {
	v := voice{
		Ack:    Ack{Session: c.id, PID: c.peer.PID, State: Queued},
		synced: c.state == Synced, since: c.since,
	}
	switch r := c.records[uid]; {
	case !c.connected():
		return v, false
	case r != nil && !r.withdrawn.IsZero():
		v.State, v.At = Withdrawing, r.withdrawn
	case want == nil || want.keep && r == nil && c.state == Synced:
		return v, false
	case r != nil && r.announced == want:
		v.State, v.Text, v.At = r.state, r.text, r.at
	default:
		v.At = want.at
	}
	return v, true
}

// decide is Verdict's rule. There is at least one voice, the newest is the first.
func decide(voices []voice, announced, now time.Time, preference time.Duration) Verdict {
	undecided := Verdict{State: Queued, Since: announced}
	preferred := slices.IndexFunc(voices, func(v voice) bool { return v.synced })
	if preferred >= 0 {
		switch v := voices[preferred]; v.State {
		case Acked, Nacked, Unsent:
			return v.decides()
		case Waiting:
			undecided = Verdict{State: Waiting, Since: v.At}
		}
	}
	acked := slices.IndexFunc(voices, func(v voice) bool { return v.State == Acked })
	if acked < 0 {
		return undecided
	}
	waited := later(announced, voices[max(preferred, 0)].since)
	if rest := waited.Add(preference).Sub(now); rest > 0 {
		undecided.Recheck = rest
		return undecided
	}
	return voices[acked].decides()
}

func (v voice) decides() Verdict {
	return Verdict{State: v.State, Proxy: fmt.Sprintf("pid %d", v.PID), Text: v.Text, Since: v.At}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// SessionInfo describes a connected proxy.
type SessionInfo struct {
	ID    uint64
	PID   int32
	State SessionState
	Since time.Time // it is in State
	Acked int       // workloads it serves
	// Text says why it is Held, and Until for how long.
	Text  string
	Until time.Time
	// EndedBadly is how many connections of its process did, the latest ones in a row,
	// and Why the last one.
	EndedBadly int
	Why        string
}

// Sessions lists the connected proxies, newest first.
func (s *Server) Sessions() []SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	var infos []SessionInfo
	for _, session := range slices.Backward(s.sessions) {
		info := SessionInfo{ID: session.id, PID: session.peer.PID, State: session.state, Since: session.since}
		info.EndedBadly, info.Why = s.conducts.lately(info.PID, time.Now())
		if session.state == Held {
			info.Text, info.Until = session.why, session.until
		}
		for _, r := range session.records {
			if r.state == Acked && r.withdrawn.IsZero() {
				info.Acked++
			}
		}
		infos = append(infos, info)
	}
	return infos
}
