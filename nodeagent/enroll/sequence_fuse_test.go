package enroll_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/sockets"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A fuse stands between a Reconciler and all that it works on, and counts the calls.
// At one of them it can fail that call, do something of the test's, or kill the
// agent: from there on its calls hang, and once it is buried fail, and change nothing.
type fuse struct {
	mu     sync.Mutex
	set    *charge
	trail  []string // the calls since it was set
	dead   bool
	died   chan struct{} // closed with dead
	buried chan struct{} // closed when nothing of the agent runs on by itself any more
	stop   func()        // has it so
}

// A charge is what a fuse does at a call.
type charge struct {
	calls  int    // until then
	kernel bool   // calls into the kernel alone count
	kill   bool   // the agent; it does not make that call
	err    error  // what the call returns
	late   bool   // it is made all the same
	do     func() // before the call
	blown  bool
}

// errKilled is what a dead agent's calls return.
var errKilled = errors.New("this agent has been killed")

func newFuse(stop func()) *fuse {
	return &fuse{died: make(chan struct{}), buried: make(chan struct{}), stop: stop}
}

func (f *fuse) arm(c *charge) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set, f.trail = c, nil
}

// calls lists what has been called since the fuse was armed.
func (f *fuse) calls() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.trail, ", ")
}

func (f *fuse) isArmed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.set != nil
}

// kill ends the agent where it stands.
func (f *fuse) kill() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.die()
}

// die is kill with f.mu held.
func (f *fuse) die() {
	if f.dead {
		return
	}
	f.dead = true
	close(f.died)
	go func() { // its callers may hold locks that the agent's end waits for
		f.stop()
		close(f.buried)
	}()
}

func (f *fuse) isDead() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dead
}

// call makes one call, unless the agent is dead or the fuse blows.
func (f *fuse) call(kernel bool, name string, do func() error) error {
	f.mu.Lock()
	c := f.count(kernel, name)
	if c != nil && c.kill {
		f.die()
	}
	dead := f.dead
	f.mu.Unlock()
	switch {
	case dead:
		<-f.buried
		return errKilled
	case c == nil:
		return do()
	case c.do != nil:
		c.do()
		return do()
	case c.late:
		_ = do() // whatever became of it, it is said to have failed
	}
	return fmt.Errorf("%s: %w", name, c.err)
}

// count returns the charge if this is the call for it. f.mu is held.
func (f *fuse) count(kernel bool, name string) *charge {
	c := f.set
	if c == nil || f.dead {
		return nil
	}
	if len(f.trail) < 100 {
		f.trail = append(f.trail, name)
	}
	if c.kernel && !kernel {
		return nil
	}
	if c.calls--; c.calls > 0 {
		return nil
	}
	f.trail = append(f.trail, "<- here")
	f.set, c.blown = nil, true
	return c
}

const inKernel, elsewhere = true, false

// wrap puts the fuse in front of the parts of a configuration.
func (f *fuse) wrap(c enroll.Config) enroll.Config {
	find, open := c.Find, c.Open
	c.Proxies = fusedProxies{c.Proxies, f}
	c.Records = fusedRecords{c.Records, f}
	c.Probes = fusedProbes{c.Probes, f}
	c.Find = func(path string) (place sandbox.Place, err error) {
		err = f.call(inKernel, "find", func() (err error) { place, err = find(path); return err })
		return place, err
	}
	c.Open = func(p sandbox.Place, changed func(by string)) (enroll.Kernel, error) {
		var k enroll.Kernel
		err := f.call(inKernel, "open", func() (err error) { k, err = open(p, changed); return err })
		if err != nil && k != nil {
			return nil, errors.Join(err, k.Close()) // a late failure
		}
		return fusedKernel{k, f}, err
	}
	return c
}

// A fusedProxies is the Server behind a fuse. Its verdict changes nothing, and is what
// the test looks at too.
type fusedProxies struct {
	enroll.Proxies
	fuse *fuse
}

func (p fusedProxies) do(name string, call func()) {
	_ = p.fuse.call(elsewhere, name, func() error { call(); return nil }) // a dead agent hears nothing
}

func (p fusedProxies) Announce(w proxylink.Workload) {
	p.do("announce "+w.UID, func() { p.Proxies.Announce(w) })
}
func (p fusedProxies) Keep(uid string)     { p.do("keep "+uid, func() { p.Proxies.Keep(uid) }) }
func (p fusedProxies) Withdraw(uid string) { p.do("withdraw "+uid, func() { p.Proxies.Withdraw(uid) }) }

type fusedRecords struct {
	enroll.Records
	fuse *fuse
}

func (r fusedRecords) Save(record enroll.Record) error {
	return r.fuse.call(elsewhere, "save", func() error { return r.Records.Save(record) })
}

func (r fusedRecords) Delete(uid string) error {
	return r.fuse.call(elsewhere, "delete record", func() error { return r.Records.Delete(uid) })
}

type fusedProbes struct {
	enroll.Probes
	fuse *fuse
}

func (p fusedProbes) Exempt(ctx context.Context, uid string, pod *netns.Handle, addrs []netip.Addr) error {
	return p.fuse.call(inKernel, "exempt", func() error { return p.Probes.Exempt(ctx, uid, pod, addrs) })
}

// Delete is not to fail without having been tried: what is not carried out is not
// forgotten by the one that is to.
func (p fusedProbes) Delete(ctx context.Context, uid string) error {
	return p.fuse.call(elsewhere, "do not exempt", func() error { return p.Probes.Delete(ctx, uid) })
}

// A fusedKernel is a namespace behind a fuse. That it is closed is what becomes of a
// dead process's files, too.
type fusedKernel struct {
	enroll.Kernel
	fuse *fuse
}

func (k fusedKernel) Netns() *netns.Handle { return k.Kernel.Netns() }

func (k fusedKernel) Apply(ctx context.Context, want ruleset.Config) error {
	return k.fuse.call(inKernel, "apply "+want.Form.String(), func() error { return k.Kernel.Apply(ctx, want) })
}

func (k fusedKernel) Remove(ctx context.Context) error {
	return k.fuse.call(inKernel, "remove", func() error { return k.Kernel.Remove(ctx) })
}

func (k fusedKernel) Expel(ctx context.Context, want ruleset.Config) error {
	return k.fuse.call(inKernel, "expel", func() error { return k.Kernel.Expel(ctx, want) })
}

func (k fusedKernel) Check(ctx context.Context, want ruleset.Config, depth enroll.Depth) (drift string, err error) {
	err = k.fuse.call(inKernel, "check", func() (err error) { drift, err = k.Kernel.Check(ctx, want, depth); return err })
	return drift, err
}

func (k fusedKernel) Foreign(ctx context.Context, depth enroll.Depth) (names []string, err error) {
	err = k.fuse.call(inKernel, "foreign", func() (err error) { names, err = k.Kernel.Foreign(ctx, depth); return err })
	return names, err
}

func (k fusedKernel) Left(ctx context.Context) (names []string, err error) {
	err = k.fuse.call(inKernel, "left", func() (err error) { names, err = k.Kernel.Left(ctx); return err })
	return names, err
}

func (k fusedKernel) Squatters(ctx context.Context, depth enroll.Depth) (all []sockets.Squatter, err error) {
	err = k.fuse.call(inKernel, "squatters", func() (err error) { all, err = k.Kernel.Squatters(ctx, depth); return err })
	return all, err
}

func (k fusedKernel) Listeners(ctx context.Context) (l status.Listeners, err error) {
	err = k.fuse.call(inKernel, "listeners", func() (err error) { l, err = k.Kernel.Listeners(ctx); return err })
	return l, err
}

func (k fusedKernel) Proxied(ctx context.Context) (n int, err error) {
	err = k.fuse.call(inKernel, "proxied", func() (err error) { n, err = k.Kernel.Proxied(ctx); return err })
	return n, err
}

func (k fusedKernel) Bypassing(ctx context.Context, want ruleset.Config) (all []sockets.Connection, err error) {
	err = k.fuse.call(inKernel, "bypassing", func() (err error) { all, err = k.Kernel.Bypassing(ctx, want); return err })
	return all, err
}

func (k fusedKernel) Destroy(ctx context.Context, connections []sockets.Connection) (n int, err error) {
	err = k.fuse.call(inKernel, "destroy", func() (err error) { n, err = k.Kernel.Destroy(ctx, connections); return err })
	return n, err
}
