package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

// A runDir is what the agent has in its run directory, and puts there again when
// somebody removes it: without the socket no pod can start, without the lock a second
// agent can.
type runDir struct {
	socket   string
	lock     *agentapi.NodeLock
	listener *agentapi.Listener
	ready    atomic.Bool // the runtime may be told that we are here
	changed  func()      // called when something was put there again
	logger   *slog.Logger

	failing bool // and that was logged
}

// openRunDir locks the node for this agent, and listens.
func openRunDir(socket string, changed func(), logger *slog.Logger) (*runDir, error) {
	lock, err := agentapi.Lock(socket)
	if err != nil {
		return nil, err
	}
	listener, err := agentapi.Listen(socket)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &runDir{socket: socket, lock: lock, listener: listener, changed: changed, logger: logger}, nil
}

// Close leaves the files: they say that an agent has run.
func (d *runDir) Close() error { return errors.Join(d.listener.Close(), d.lock.Close()) }

// runDirEvery is how often we look. A look is a few system calls, and the sign of
// life that the plugin shows when the agent does not answer.
const runDirEvery = time.Second

// run keeps the directory until ctx is done, or another agent has the node.
func (d *runDir) run(ctx context.Context) error {
	tick := time.NewTicker(runDirEvery)
	defer tick.Stop()
	for {
		if err := d.keep(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// announceReady has the runtime told that we are here. What goes wrong is tried
// again.
func (d *runDir) announceReady() {
	if err := agentapi.MarkReady(d.socket); err != nil {
		d.logger.Error("cannot tell the runtime that the agent is ready", "error", err, "again", runDirEvery)
	}
	d.ready.Store(true)
}

// keep looks once. Its error ends the agent.
func (d *runDir) keep() error {
	lost, err := d.restore()
	if len(lost) > 0 {
		d.logger.Warn("what the agent has in its run directory was removed or replaced, and is put there again: is another agent on this node?",
			"lost", strings.Join(lost, ","), "socket", d.socket)
		d.failing = false
		d.changed()
	}
	switch {
	case errors.Is(err, agentapi.ErrTaken):
		return fmt.Errorf("this agent's lock was removed, and the node is not this agent's any more: %w", err)
	case err != nil && !d.failing:
		d.logger.Error("the run directory is not as it should be: pods may not be able to start", "error", err, "again", runDirEvery)
	}
	d.failing = err != nil
	return nil
}

// restore puts back what is not there, and says what that was. The lock comes first:
// whoever has it has the rest.
func (d *runDir) restore() (lost []string, err error) {
	again, err := d.lock.Keep()
	if err != nil {
		return nil, err
	}
	if again {
		lost = append(lost, "lock")
	}
	if !d.listener.InPlace() {
		if err := d.listener.Rebind(); err != nil {
			return lost, err
		}
		lost = append(lost, "socket")
	}
	if d.ready.Load() && agentapi.CheckReady(d.socket) != nil {
		if err := agentapi.MarkReady(d.socket); err != nil {
			return lost, err
		}
		lost = append(lost, "ready")
	}
	return lost, nil
}
