package hostnet

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/iptables/watch"
)

// Run keeps the table as it is wanted until ctx ends, and leaves it there. Without SNAT
// it removes what an earlier agent has left, and waits.
func (e *Exemption) Run(ctx context.Context) error {
	sweep := time.NewTicker(e.interval(e.config.Sweep))
	defer sweep.Stop()
	look := time.NewTicker(e.interval(e.config.Look))
	defer look.Stop()
	var watching *watch.Watch
	defer func() {
		if watching != nil {
			_ = watching.Close() // its sockets, nothing is lost
		}
	}()
	for {
		if watching == nil && e.config.Watcher != nil && e.config.Probes == SNAT {
			if watching = e.watch(); watching != nil {
				e.forgetRead("") // what changed before nobody told
			}
		}
		e.turn(ctx)
		select {
		case <-ctx.Done():
			return nil
		case by := <-e.wake:
			e.forgetRead(by)
		case <-look.C:
		case <-sweep.C:
			e.forgetChanged(ctx)
		}
	}
}

// interval is one that a ticker takes.
func (e *Exemption) interval(d time.Duration) time.Duration {
	if e.config.Probes != SNAT {
		return time.Minute
	}
	return d
}

// turn looks for the kubelet and puts right what is known to be wrong.
func (e *Exemption) turn(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.removed {
		return
	}
	before := e.copied()
	if e.config.Probes != SNAT {
		e.status.Problem = ""
		if err := e.remove(ctx); err != nil {
			e.status.Problem = err.Error()
		}
		e.tell(before)
		return
	}
	changed := e.lookForKubelet(ctx)
	e.tell(before)
	if changed || e.have == nil {
		_ = e.apply(ctx) // it is in the status, and tried again
	}
}

// patience is how long a kubelet that is away is looked for often: to look at all
// processes costs some milliseconds.
const patience = time.Minute

// lookForKubelet reports whether the rules for the kubelet have become others. While it
// is away those for its last cgroup stay.
func (e *Exemption) lookForKubelet(ctx context.Context) bool {
	last := e.status.Kubelet
	if e.kubelet != nil && e.kubelet.moved() {
		_ = e.kubelet.close() // a directory of /proc
		e.kubelet, e.seen, e.looked = nil, time.Now(), time.Time{}
	}
	known := e.kubelet != nil && last.Mode != AnyHostProcess
	often := e.kubelet == nil && time.Since(e.seen) < patience
	if known || !often && time.Since(e.looked) < e.config.Sweep {
		return false
	}
	e.looked = time.Now()
	if e.kubelet != nil { // as it could not be recognised before
		e.status.Kubelet = e.recognise(ctx)
		return !e.status.Kubelet.same(last)
	}
	found, err := e.config.findKubelet()
	switch {
	case found == nil && last.Mode != AnyHostProcess:
		return false
	case found == nil && err == nil:
		err = fmt.Errorf("no process named %s is in the host's network namespace", strings.Join(e.config.Names, " or "))
		fallthrough
	case found == nil:
		e.status.Kubelet = Kubelet{Mode: AnyHostProcess, Reason: err.Error()}
		return false
	}
	e.kubelet = found
	e.status.Kubelet = e.recognise(ctx)
	return !e.status.Kubelet.same(last)
}

// recognise finds out how the kubelet's sockets are recognised. If it is by a cgroup, the
// kubelet's cgroup namespace is taken over: the rules are counted from it, and may have to
// be written again when the process is no more.
func (e *Exemption) recognise(ctx context.Context) Kubelet {
	k := e.config.recognise(ctx, e.conn, e.kubelet)
	if k.Mode == ByCgroup {
		if e.space != nil {
			_ = e.space.Close() // of one that is no more
		}
		e.space, e.kubelet.space = e.kubelet.space, nil
	}
	return k
}

// watch has the kernel tell of changes. If it cannot there is the sweep.
func (e *Exemption) watch() *watch.Watch {
	w, err := e.config.Watcher.Add(e.config.Host, func(c watch.Change) {
		if c.What&watch.Ruleset == 0 {
			return
		}
		by, ours := e.others(c.By)
		if ours {
			return
		}
		select {
		case e.wake <- by:
		default: // it is going to be looked at
		}
	})
	if err != nil {
		return nil
	}
	return w
}

// others names who changed the ruleset, besides us. ours is true if nobody else did.
func (e *Exemption) others(by []watch.Process) (names string, ours bool) {
	own, err := e.conn.Port()
	var all []string
	for _, p := range by {
		if err != nil || p.Port != own {
			all = append(all, fmt.Sprintf("%s (pid %d)", p.Name, p.PID))
		}
	}
	return strings.Join(all, ", "), len(by) > 0 && len(all) == 0
}

func (e *Exemption) forgetRead(by string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.have, e.by = nil, by
}

// forgetChanged forgets what was read if the ruleset has another number by now. It has
// that after our own changes too: they are read once.
func (e *Exemption) forgetChanged(ctx context.Context) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if number, err := generation(ctx, e.conn); err != nil || number != e.number {
		e.have = nil
	}
}
