package proxylink

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

const (
	// watchInterval is how often we look whether the socket is where proxies dial.
	// A look is one stat.
	watchInterval = time.Second
	// acceptPause gives the process time to get file descriptors back.
	acceptPause = time.Second
)

// Run serves proxies until ctx is done, once. It fails only if it cannot listen
// at first.
func (s *Server) Run(ctx context.Context) error {
	listener, err := ztunnelproto.Listen(s.cfg.Path)
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	defer running.Wait()
	accept := func(l *ztunnelproto.Listener) { running.Go(func() { s.accept(ctx, l, &running) }) }
	accept(listener)

	ticker := time.NewTicker(s.watch)
	defer ticker.Stop()
	var complained string
	for {
		select {
		case <-ctx.Done():
			_ = listener.Close() // nothing is lost: the process is about to end
			return nil
		case <-ticker.C:
		}
		if listener.InPlace() {
			complained = ""
			continue
		}
		fresh, err := ztunnelproto.Listen(s.cfg.Path)
		if err != nil {
			if text := err.Error(); text != complained {
				complained = text
				s.log.Error("the proxies' socket is not in its place, and cannot be bound again yet: no proxy can connect", "error", err, "again", s.watch)
			}
			continue
		}
		s.log.Warn("the proxies' socket was removed or replaced, and is bound again: is another agent on this node?", "path", s.cfg.Path)
		s.metrics.rebound.Inc()
		_ = listener.Close() // nobody can dial it any more
		listener = fresh
		accept(listener)
	}
}

// accept serves whoever dials listener, until it is closed.
func (s *Server) accept(ctx context.Context, listener *ztunnelproto.Listener, running *sync.WaitGroup) {
	for {
		conn, err := listener.Accept()
		switch {
		case err == nil && ctx.Err() != nil:
			_ = conn.Close() // it has carried nothing
			return
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil:
			s.log.Error("cannot accept proxies, trying again", "error", err, "in", acceptPause)
			pause(ctx)
			continue
		}
		if c := s.admit(conn); c != nil {
			running.Go(func() { s.serve(ctx, c) })
		}
	}
}

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
		err = errors.New("its user may not: only root's processes may be proxies")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	if err != nil {
		if s.conducts.mayLog(peer.PID, now) {
			s.log.Warn("connection refused", "pid", peer.PID, "uid", peer.UID, "error", err)
		}
		s.metrics.ended(endRefused)
		_ = conn.Close() // it has carried nothing
		return nil
	}
	s.accepted++
	c := &session{
		id: s.accepted, peer: peer, conn: conn, server: s, state: Hello, since: now,
		log:     s.log.With("session", s.accepted, "pid", peer.PID),
		records: map[string]*record{},
	}
	if c.until, c.why = s.conducts.hold(peer.PID, now); c.until.After(now) {
		c.state = Held
	}
	s.sessions = append(s.sessions, c)
	s.metrics.entered(c.state)
	if o := surplus(s.sessions); o != nil {
		o.cut = true
		_ = o.conn.Close() // its own goroutine sees to the rest
	}
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
	s.mu.Lock()
	if c.cut && reason != endShutdown {
		reason, err = endFlood, errFlood
	}
	s.forget(c, reason, err)
	log := c.connected() || s.conducts.mayLog(c.peer.PID, time.Now())
	s.mu.Unlock()
	s.metrics.ended(reason)
	switch {
	case c.connected():
		c.log.Info("proxy gone", "reason", reason, "error", err)
		s.cfg.Changed("")
	case log:
		c.log.Warn("connection ended before its hello", "reason", reason, "error", err)
	}
}

// forget removes c and remembers how it ended.
func (s *Server) forget(c *session, reason string, err error) {
	s.sessions = slices.DeleteFunc(s.sessions, func(o *session) bool { return o == c })
	s.metrics.left(c.state)
	if c.connected() && !slices.ContainsFunc(s.sessions, (*session).connected) {
		s.lonely = time.Now()
	}
	if reason == endClosed && c.state == Synced {
		s.conducts.endedWell(c.peer.PID)
	} else {
		s.conducts.endedBadly(c.peer.PID, err.Error(), time.Now())
	}
}
