// Package proxylink tells the node's proxies which workloads to serve. It listens
// where proxies dial, hands each of them every workload and its network
// namespace, and keeps what each answered. Any number of proxies may be
// connected: two are while one replaces the other.
//
// It is level-based: Announce, Keep and Withdraw change what is desired, one
// goroutine per session brings its proxy there, and Verdict says how far that is.
// None of them waits for a proxy.
//
// A proxy answers requests in order and without ids. So a session has one request
// in flight, and an answer that comes too late or without a request ends it: the
// proxy dials again and is told everything anew. No Del is sent before the proxy
// has acked its snapshot, and no Keep after that.
//
// # Failures it survives
//
//   - A proxy that says no hello, another version's, garbage, too much, or too
//     early, that attaches files, stops reading, or dies at any point: its session
//     ends, the others and the workloads go on.
//   - A proxy that does not answer in time: the late answer is never taken for the
//     next request's. A workload on which two connections ended that way is sent
//     after all others.
//   - A process whose connections end badly again and again, and which dials again
//     at once: it is kept waiting, 1 s and then longer, up to 30 s. One that had
//     acked its snapshot and closes is served at once when it is back.
//   - A flood of connections: of those that have not said hello, so many are left
//     open of one process and in all, and the log tells of them now and then.
//   - A workload that cannot be sent (its namespace is closed, its name too long)
//     or that a proxy nacks: that workload's verdict says so, no other's changes.
//   - A withdrawal that races an Add in flight or a snapshot: a Del follows, also
//     for a nacked Add, which the proxy would keep trying.
//   - A proxy that connects before the node's pods are known: it waits, since a
//     snapshot stops what it does not name.
//   - A process of another user that connects: refused.
//   - No file descriptor to accept a connection with: said, and tried again.
//   - A socket file, or its directory, that is removed or replaced: bound again
//     within a second, and the connections there are go on. A second agent is the
//     caller's to keep out.
package proxylink

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Config of a Server. Path, Changed, Logger and Registerer are required.
type Config struct {
	// Path of the socket that proxies dial.
	Path string
	// AckTimeout is how long a proxy may take to answer one request: 10 s.
	AckTimeout time.Duration
	// AckPreference is how long the newest proxy's answer is waited for before
	// another's ack counts: 2 s.
	AckPreference time.Duration
	// HelloTimeout is how long a connection may be silent at first: 5 s.
	HelloTimeout time.Duration
	// AllowedUIDs may connect: root alone.
	AllowedUIDs []uint32
	// Changed is called when the verdict on a workload may have changed; an empty
	// uid means on any. It is called without locks held and must not wait.
	Changed func(uid string)

	Logger     *slog.Logger
	Registerer prometheus.Registerer
}

// Server is the agent's end of the proxy link. Its methods may be called at any
// time, before Run too.
type Server struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics

	mu       sync.Mutex
	open     bool
	desired  map[string]*announcement
	numbered uint64     // announcements so far
	accepted uint64     // sessions so far
	sessions []*session // oldest first
	lonely   time.Time  // since when there has been no session past its hello
	conducts conducts
	watch    time.Duration // between two looks at the socket
}

// New checks cfg and starts nothing.
func New(cfg Config) (*Server, error) {
	if cfg.Path == "" || cfg.Changed == nil || cfg.Logger == nil || cfg.Registerer == nil {
		return nil, errors.New("cannot set up the proxy link: path, changed, logger and registerer are required")
	}
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&cfg.AckTimeout, 10 * time.Second},
		{&cfg.AckPreference, 2 * time.Second},
		{&cfg.HelloTimeout, 5 * time.Second},
	} {
		if *d.value < 0 {
			return nil, errors.New("cannot set up the proxy link: a time-out is negative")
		}
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	if cfg.AllowedUIDs == nil {
		cfg.AllowedUIDs = []uint32{0}
	}
	m, err := newMetrics(cfg.Registerer)
	if err != nil {
		return nil, err
	}
	return &Server{
		cfg: cfg, log: cfg.Logger, metrics: m,
		desired: map[string]*announcement{}, lonely: time.Now(), watch: watchInterval,
		conducts: conducts{first: firstHold, most: mostHold, of: map[int32]*conduct{}},
	}, nil
}

// Open lets Adds and snapshots out: the node's pods are known. Until then proxies
// that have said hello wait.
func (s *Server) Open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = true
	for _, c := range s.sessions {
		c.wake()
	}
}
