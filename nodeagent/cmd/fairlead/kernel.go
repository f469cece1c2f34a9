package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/sockets"
)

// newOpener makes what opens pods' network namespaces, and tries what the kernel can do there.
func (a *agent) newOpener(finder *sandbox.Finder) {
	finder.Proxies, finder.CNICache = a.proxyPIDs, a.config.CNICache
	a.opener = enroll.Opener{
		Finder: finder, Watcher: a.watcher, Processes: sockets.NewProcesses("/proc"),
		Exempt: []netip.Addr{a.config.ProbeAddresses.IPv4, a.config.ProbeAddresses.IPv6},
	}
	a.kernel = newTrial(a.opener.Try, a.logger)
}

// A trial finds out whether the kernel can do what the capture of a pod needs, before a pod
// has to. What it lacks may be a module that is loaded later.
type trial struct {
	try    func(context.Context) error
	pause  time.Duration // until it is tried again
	logger *slog.Logger
	once   chan struct{} // closed when it has been tried once
	first  sync.Once

	mu      sync.Mutex
	failure error // of the last time
}

// trialPause is how long what the kernel lacks may be there unnoticed.
const trialPause = 30 * time.Second

func newTrial(try func(context.Context) error, logger *slog.Logger) *trial {
	return &trial{try: try, pause: trialPause, logger: logger, once: make(chan struct{})}
}

// run tries until it works.
func (t *trial) run(ctx context.Context) error {
	for !t.works(ctx) {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(t.pause):
		}
	}
	return nil
}

// works tries once. What is said again is not logged again.
func (t *trial) works(ctx context.Context) bool {
	err := t.try(ctx)
	if ctx.Err() != nil { // which says nothing
		return false
	}
	t.mu.Lock()
	before := t.failure
	t.failure = err
	t.mu.Unlock()
	t.first.Do(func() { close(t.once) })
	switch {
	case err == nil && before != nil:
		t.logger.Info("the kernel can do what the capture of a pod needs")
	case err != nil && (before == nil || before.Error() != err.Error()):
		t.logger.Error("pods that ask for capture may not start on this node", "error", err)
	}
	return err == nil
}

// problem says why it has not worked yet, or nil.
func (t *trial) problem() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failure == nil {
		return nil
	}
	return fmt.Errorf("pods that ask for capture may not start on this node: %w; it is tried again every %s", t.failure, t.pause)
}

// refusal is the problem if it is the kernel's. Where nothing could be tried pods may well start.
func (t *trial) refusal() error {
	if err := t.problem(); !errors.Is(err, enroll.ErrNotTried) {
		return err
	}
	return nil
}
