// Package proxylink tells the node's proxies which workloads to serve. It listens
// where proxies dial, hands each of them every workload and its network
// namespace, and keeps what each answered. Any number of proxies may be
// connected: two are while one replaces the other.
//
// It is level-based: Announce and Withdraw change what is desired, one goroutine
// per session brings its proxy there, and Verdict says how far that is. None of
// them waits for a proxy.
//
// A proxy answers requests in order and without ids. So a session has one request
// in flight, and an answer that comes too late or without a request ends it: the
// proxy dials again and is told everything anew. No Del is sent before the proxy
// has acked its snapshot.
//
// # Failures it survives
//
//   - A proxy that says no hello, another version's, garbage, too much, or too
//     early, that attaches files, stops reading, or dies at any point: its session
//     ends, the others and the workloads go on.
//   - A proxy that does not answer in time: the late answer is never taken for the
//     next request's.
//   - A workload that cannot be sent (its namespace is closed, its name too long)
//     or that a proxy nacks: that workload's verdict says so, no other's changes.
//   - A withdrawal that races an Add in flight or a snapshot: a Del follows, also
//     for a nacked Add, which the proxy would keep trying.
//   - A proxy that connects before the node's pods are known: it waits, since a
//     snapshot stops what it does not name.
//   - A process of another user that connects: refused.
//   - No file descriptor to accept a connection with: said, and tried again.
//   - A second agent on the node: kept out by [Lock].
package proxylink

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-mesh/fairlead/ztunnelproto"
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
		desired: map[string]*announcement{}, lonely: time.Now(),
	}, nil
}

// Run serves proxies until ctx is done, once. It fails only if it cannot listen.
func (s *Server) Run(ctx context.Context) error {
	listener, err := ztunnelproto.Listen(s.cfg.Path)
	if err != nil {
		return err
	}
	// An error of Close changes nothing: the process is about to end.
	defer context.AfterFunc(ctx, func() { _ = listener.Close() })()
	defer func() { _ = listener.Close() }()

	var sessions sync.WaitGroup
	defer sessions.Wait()
	for {
		conn, err := listener.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close()
			}
			return nil
		}
		if err != nil {
			s.log.Error("cannot accept proxies, trying again", "error", err, "in", acceptPause)
			pause(ctx)
			continue
		}
		if c := s.admit(conn); c != nil {
			sessions.Go(func() { s.serve(ctx, c) })
		}
	}
}

// acceptPause gives the process time to get file descriptors back.
const acceptPause = time.Second

func pause(ctx context.Context) {
	timer := time.NewTimer(acceptPause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// admit makes a session of a connection, or closes it.
func (s *Server) admit(conn *ztunnelproto.Conn) *session {
	peer, err := conn.Peer()
	if err == nil && !slices.Contains(s.cfg.AllowedUIDs, peer.UID) {
		err = errors.New("its user may not: only root's processes may be proxies, unless the configuration allows others")
	}
	if err != nil {
		s.log.Warn("connection refused", "pid", peer.PID, "uid", peer.UID, "error", err)
		s.metrics.ended(endRefused)
		_ = conn.Close() // it has carried nothing
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted++
	c := &session{
		id: s.accepted, peer: peer, conn: conn, server: s, state: Hello, since: time.Now(),
		log:     s.log.With("session", s.accepted, "pid", peer.PID),
		records: map[string]*record{},
	}
	s.sessions = append(s.sessions, c)
	s.metrics.entered(Hello)
	return c
}

// serve runs a session to its end and forgets it.
func (s *Server) serve(ctx context.Context, c *session) {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.Close() })
	err := c.run()
	stop()
	_ = c.conn.Close() // whatever it was, the session is over
	reason := reasonOf(err)
	if ctx.Err() != nil {
		reason = endShutdown
	}
	s.metrics.ended(reason)
	if state := s.forget(c); state == Hello {
		c.log.Warn("connection ended before its hello", "reason", reason, "error", err)
		return
	}
	c.log.Info("proxy gone", "reason", reason, "error", err)
	s.cfg.Changed("")
}

func (s *Server) forget(c *session) SessionState {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions = slices.DeleteFunc(s.sessions, func(o *session) bool { return o == c })
	s.metrics.left(c.state)
	connected := func(o *session) bool { return o.state != Hello }
	if connected(c) && !slices.ContainsFunc(s.sessions, connected) {
		s.lonely = time.Now()
	}
	return c.state
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
