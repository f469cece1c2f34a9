package enroll_test

import (
	"cmp"

	"golang.org/x/sys/unix"
)

// columns are the matrix's: what may happen, and in which way.
var columns = func() []column {
	var all []column
	for i := range events {
		e := &events[i]
		if !e.awayOnly {
			all = append(all, column{e.name, e, plainly})
		}
		if e.killed {
			all = append(all, column{e.name + " | killed", e, killed})
		}
		if e.back != nil {
			all = append(all, column{e.name + " | killed, and back", e, killedAndBack})
		}
		if e.failing {
			all = append(all, column{e.name + " | kernel fails", e, failing})
		}
		if e.away || e.awayOnly {
			all = append(all, column{e.name + " | agent away", e, away})
		}
	}
	return all
}()

type column struct {
	name string
	*event
	way way
}

// A way is in which something happens.
type way int

const (
	plainly       way = iota
	killed            // the agent is, at some step of what it does about it
	killedAndBack     // and it is taken back before the next agent looks
	failing           // the kernel fails it once
	away              // the agent is away meanwhile
)

// never says why it cannot be in a phase.
func (c column) never(t traits) string {
	return first(c.event.never(t), when(c.way == killedAndBack && t.box && t.proxy == "away", byChance))
}

// possibleNow reports whether the node has what it needs.
func (c column) possibleNow(w *world) bool {
	return c.proxy == "" || (c.proxy == "there") == (w.proxy != nil)
}

func columnOf(name string) column {
	for _, c := range columns {
		if c.name == name {
			return c
		}
	}
	panic("there is no event " + name)
}

// step has something happen to a slot, and waits until the node has settled.
func (w *world) step(c column, s *slot, m matrix) {
	for _, of := range w.slots {
		if of != s && !c.node {
			continue
		}
		p := phaseOf(of, w.proxy != nil)
		if c.never(traitsOf[p]) == "" {
			m[pair{p, c.name}]++
		}
	}
	w.steps++
	w.way = c.way
	w.say("%d. %s (%s): %s", w.steps, s.name, phaseOf(s, w.proxy != nil), c.name)
	switch c.way {
	case plainly:
		c.do(w, s)
	case killed, killedAndBack:
		w.kill(c, s)
	case failing:
		w.failKernel(c, s)
	case away:
		if w.rng.IntN(2) == 0 {
			w.agent.kill()
		}
		w.stopAgent()
		c.do(w, s)
		w.startAgent()
	}
	if c.after != nil {
		c.after(w, s)
	}
	w.settle()
}

// kill kills the agent at some step of what it does about an event.
func (w *world) kill(c column, s *slot) {
	charge := &charge{calls: 1 + w.rng.IntN(14), kill: true}
	if b := s.box; c.way == killedAndBack && b != nil && b.loDown {
		// Whether the agent comes to bring it up is a matter of chance.
		must("bring lo up", b.setLink("lo", true))
		b.loDown = false
	}
	w.light(c, charge)
	c.do(w, s)
	if c.way == killedAndBack {
		w.meanwhile = func() { c.back(w, s) }
	}
	w.settle()
	if w.agent.isArmed() {
		w.say("  killed when all was done")
		w.agent.kill()
	}
}

// failKernel fails a call into the kernel.
func (w *world) failKernel(c column, s *slot) {
	errs := []error{unix.EIO, unix.ENOBUFS, unix.EBUSY, unix.EMFILE}
	charge := &charge{
		calls: 1 + w.rng.IntN(8), kernel: true, err: errs[w.rng.IntN(len(errs))], late: w.rng.IntN(2) == 0,
	}
	w.light(c, charge)
	c.do(w, s)
	w.settle()
	w.say("  %v (late: %t): %s", charge.err, charge.late, w.agent.calls())
	w.agent.arm(nil)
}

// light arms the agent that a charge is for.
func (w *world) light(c column, charge *charge) {
	if c.event.name == "agent restarted" {
		w.charge = charge
		return
	}
	w.agent.arm(charge)
}

// choose has chance choose what happens next, to a pod that there is rather than to one
// that there is not.
func (w *world) choose() (column, *slot) {
	s := w.slots[w.rng.IntN(len(w.slots))]
	for range 2 {
		if s.box == nil {
			s = w.slots[w.rng.IntN(len(w.slots))]
		}
	}
	t := traitsOf[phaseOf(s, w.proxy != nil)]
	var can []column
	for _, c := range columns {
		if c.never(t) == "" && c.possibleNow(w) {
			for range cmp.Or(c.weight, 2) {
				can = append(can, c)
			}
		}
	}
	return can[w.rng.IntN(len(can))], s
}

// run is one sequence: goals, which are pairs to be reached, and chance.
func (w *world) run(goals []pair, m matrix) {
	w.begin()
	for w.steps < steps || len(goals) > 0 {
		if len(goals) > 0 && (w.steps >= steps || w.rng.IntN(3) == 0) {
			w.reach(goals[0], m)
			goals = goals[1:]
			continue
		}
		c, s := w.choose()
		w.step(c, s, m)
	}
	w.end()
}

// reach brings a slot into the phase of a pair, and has it happen.
func (w *world) reach(goal pair, m matrix) {
	s := w.slots[w.rng.IntN(len(w.slots))]
	do := func(name string) { w.step(columnOf(name), s, m) }
	if w.proxy == nil {
		do("proxy back")
	}
	switch {
	case s.box != nil && s.object != nil:
		do("deleted")
	case s.box != nil:
		do("DEL")
	case s.object != nil:
		do("object gone")
	}
	for _, name := range traitsOf[goal.Phase].recipe {
		do(name)
	}
	c := columnOf(goal.Column)
	if !c.possibleNow(w) {
		do(map[bool]string{true: "proxy away", false: "proxy back"}[w.proxy != nil])
	}
	if got := phaseOf(s, w.proxy != nil); got != goal.Phase {
		fail("the recipe of %q leads to %q", goal.Phase, got)
	}
	w.step(c, s, m)
}
