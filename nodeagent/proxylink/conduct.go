package proxylink

import (
	"fmt"
	"maps"
	"time"
)

// The pauses before a process whose connections end badly is talked to again: the
// first, then twice as long each time, up to the most.
const (
	firstHold = time.Second
	mostHold  = 30 * time.Second
)

// conducts remembers how the connections of each process ended. A proxy that is
// cut off, or cannot live with what it is told, dials again at once, for ever.
// Closing its connection would only have it dial again, so it is kept waiting.
// Processes that are not visible from this PID namespace are taken for one, 0.
type conducts struct {
	first, most time.Duration
	of          map[int32]*conduct
}

type conduct struct {
	bad    int // ends in a row
	why    string
	until  time.Time // its next connection has to wait
	logged time.Time
}

// hold says until when a connection of pid that comes now has to wait, and why.
func (c *conducts) hold(pid int32, now time.Time) (time.Time, string) {
	p := c.of[pid]
	if p == nil || p.bad == 0 || !p.until.After(now) {
		return time.Time{}, ""
	}
	times := "once"
	if p.bad > 1 {
		times = fmt.Sprintf("%d times in a row", p.bad)
	}
	return p.until, fmt.Sprintf("its connection has ended badly %s: %s", times, p.why)
}

// lately is how many connections of pid ended badly, unless that was long ago, and why.
func (c *conducts) lately(pid int32, now time.Time) (bad int, why string) {
	p := c.of[pid]
	if p == nil || p.bad == 0 || now.Sub(p.until) > 2*c.most {
		return 0, ""
	}
	return p.bad, p.why
}

func (c *conducts) endedBadly(pid int32, why string, now time.Time) {
	p := c.process(pid, now)
	p.bad++
	p.why = why
	p.until = now.Add(c.pause(p.bad))
}

// endedWell leaves what was logged: a process that comes and goes may not fill the log.
func (c *conducts) endedWell(pid int32) {
	if p := c.of[pid]; p != nil {
		p.bad, p.until = 0, time.Time{}
	}
}

// mayLog keeps what concerns pid out of the log if it has been there lately.
func (c *conducts) mayLog(pid int32, now time.Time) bool {
	p := c.process(pid, now)
	if now.Sub(p.logged) < c.most {
		return false
	}
	p.logged = now
	return true
}

// process is what is known of pid. Who has been quiet for long is forgotten: its
// number may be another's by now.
func (c *conducts) process(pid int32, now time.Time) *conduct {
	maps.DeleteFunc(c.of, func(_ int32, p *conduct) bool {
		return now.Sub(p.until) > 2*c.most && now.Sub(p.logged) > 2*c.most
	})
	p := c.of[pid]
	if p == nil {
		p = &conduct{}
		c.of[pid] = p
	}
	return p
}

func (c *conducts) pause(bad int) time.Duration {
	pause := c.first
	for ; bad > 1 && pause < c.most; bad-- {
		pause *= 2
	}
	return min(pause, c.most)
}

// How many connections may be open that have not said hello, of one process and in
// all. A proxy needs one.
const (
	silentPerProcess = 4
	silentInAll      = 32
)

// surplus picks the connection to cut if there are too many: the oldest of the
// process that has most, so that who floods is hit. Sessions come oldest first.
func surplus(sessions []*session) *session {
	silent := map[int32]int{}
	first := map[int32]*session{}
	total := 0
	var most *session
	for _, c := range sessions {
		if c.connected() || c.cut {
			continue
		}
		total++
		silent[c.peer.PID]++
		if first[c.peer.PID] == nil {
			first[c.peer.PID] = c
		}
		if most == nil || silent[c.peer.PID] > silent[most.peer.PID] {
			most = first[c.peer.PID]
		}
	}
	if total > silentInAll || most != nil && silent[most.peer.PID] > silentPerProcess {
		return most
	}
	return nil
}
