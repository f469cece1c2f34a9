package enroll

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/sockets"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A Source knows the node's pods.
type Source interface {
	// Synced reports whether all of the node's pods are known.
	Synced() bool
	Lookup(namespace, name string) (intent.Pod, intent.Namespace, bool)
	Pods() []intent.Pod
}

// Proxies tells the node's proxies about pods: package proxylink's Server.
type Proxies interface {
	Announce(proxylink.Workload)
	// Keep has a workload named in snapshots whose namespace is not known yet.
	Keep(uid string)
	Withdraw(uid string)
	Verdict(uid string) proxylink.Verdict
}

// A Kernel is one pod's network namespace and the redirection in it. It owns all
// that holds the namespace. Families are its own business: what want says of them
// is ignored.
type Kernel interface {
	// Netns is lent until the Kernel is closed.
	Netns() *netns.Handle
	// Apply puts the routes in place and then, in one transaction, the rules.
	Apply(ctx context.Context, want ruleset.Config) error
	// Check returns how the kernel differs from want; empty if it does not. What
	// could not be looked at is an error, and does not keep the rest from being seen.
	Check(ctx context.Context, want ruleset.Config, depth Depth) (drift string, err error)
	// Foreign names what is not ours and may take packets before our redirects do, as
	// it was when Check looked last.
	Foreign(ctx context.Context, depth Depth) ([]string, error)
	// Remove takes all of ours out of the namespace, and what istio-cni left. Nothing to
	// remove is success.
	Remove(ctx context.Context) error
	// Left names what Remove does not take and may be istio-cni's: it keeps packets where
	// they were sent when that captured the pod.
	Left(ctx context.Context) ([]string, error)
	// Expel deletes the conntrack entries of what would go on past new redirects, or by
	// redirects of DNS that are not wanted any more.
	Expel(ctx context.Context, want ruleset.Config) error
	// Fingerprint is that of the rules last applied or found as wanted.
	Fingerprint() string
	Listeners(ctx context.Context) (status.Listeners, error)
	// Squatters names processes that live in the pod and hold ports of the proxy's;
	// what has changed are the sockets that Listeners found last.
	Squatters(ctx context.Context, depth Depth) ([]sockets.Squatter, error)
	// Proxied is how many of the pod's connections a proxy carries.
	Proxied(ctx context.Context) (int, error)
	// Bypassing lists the connections that should, by want, go through the proxy and
	// do not.
	Bypassing(ctx context.Context, want ruleset.Config) ([]sockets.Connection, error)
	// Destroy resets connections and returns how many there were.
	Destroy(ctx context.Context, connections []sockets.Connection) (int, error)
	Close() error
}

// A Depth is how closely a namespace is looked at.
type Depth int

const (
	// Changes is to look at what has changed, by the kernel's own numbers and words.
	Changes Depth = iota
	// Everything is to look at all of it, whatever the kernel has said.
	Everything
)

// Config is what a Reconciler needs. All of it but Unread, Installed, Drained and Reported is
// required.
type Config struct {
	Policy intent.Policy
	Source Source
	// Unread says what keeps the Source from knowing a pod that Lookup does not know, which
	// may be there even so: a reason, and why in its own words. No reason: nothing does. nil:
	// nothing ever does.
	Unread  func(namespace, name string) (reason status.Reason, why string)
	Proxies Proxies
	Probes  Probes
	Records Records
	// Find looks which namespace it is that the runtime has named by its path.
	Find func(path string) (sandbox.Place, error)
	// Gone says whether the namespace is not there any more.
	Gone func(sandbox.Place) bool
	// Open opens the namespace; changed is called when the kernel tells of a change in
	// it, by the processes that are named if that is known.
	Open func(p sandbox.Place, changed func(by string)) (Kernel, error)
	// Search looks for namespaces that the runtime has not named.
	Search func(context.Context, []sandbox.Wanted) (map[string]sandbox.Found, map[string]error)

	// Installed says when the pods of this cluster were first promised capture; zero if
	// that is not known, nil if it never is. It is asked when the Source is synced.
	Installed func() time.Time

	ProbeIPv4, ProbeIPv6 netip.Addr

	// What an ADD waits for at most: the pod's object, a proxy, its answer.
	PodWait, ProxyWait, AckWait time.Duration
	// How long, at least and at most, a released pod's connections go on.
	ReleaseGrace, DrainTimeout time.Duration
	// SweepInterval is how often, at least, a pod has a turn when nothing calls for one.
	SweepInterval time.Duration
	// Workers bounds how many pods have their turn at once, not counting one that has
	// had it for long, and one of the sweep's.
	Workers int

	// Advertised says whether peers are still told to send the pod what only the proxy
	// understands; nil: nobody is told.
	Advertised func(namespace, pod, uid string) bool
	// Drained: the node is drained from the first look on.
	Drained bool

	// Reported is called with what each turn came to. It must not block, nor call the
	// Reconciler, which holds a lock.
	Reported func(status.Pod)

	Metrics *Metrics
	Logger  *slog.Logger
}

// A Reconciler captures and releases the node's pods.
type Reconciler struct {
	config  Config
	stopped chan struct{} // closed when Run is over
	adopted chan struct{} // closed when the pods on record have been looked at
	asked   chan struct{} // of one: a pod may run that the runtime has not told us of

	adoptedOnce sync.Once
	allAdopted  bool        // see AllAdopted; written before adopted is closed
	drained     atomic.Bool // no pod is to be captured

	mu     sync.Mutex
	queue  workqueue.TypedDelayingInterface[string] // nil unless Run runs
	pods   map[string]*pod                          // by UID: those that the runtime has told us of
	kept   map[string]kept                          // by UID: pods of the source whose namespace is looked for
	ended  map[string]netns.ID                      // by UID: pods of the source whose last sandbox is over; that sandbox's, if the runtime has said so
	bygone map[string]Record                        // by UID: pods whose last sandbox is over, and whose record is to outlive it
	plain  map[string]bool                          // by UID: pods of the source that were seen not to ask for capture
	early  map[string]early                         // by name: pods of the source that it has not told us of
	busy   map[string]time.Time                     // since when a pod holds a worker
	beat   time.Time                                // when a worker last was free

	adopting map[string]bool // adopted pods that have not had a turn; true: something of ours is in them
}

// New validates the configuration.
func New(c Config) (*Reconciler, error) {
	if c.Source == nil || c.Proxies == nil || c.Probes == nil || c.Records == nil || c.Find == nil || c.Gone == nil || c.Open == nil || c.Search == nil || c.Metrics == nil || c.Logger == nil {
		return nil, errors.New("cannot reconcile pods: a part of the configuration is missing")
	}
	if c.Workers < 1 || c.SweepInterval <= 0 {
		return nil, fmt.Errorf("cannot reconcile pods: %d workers, sweep every %s", c.Workers, c.SweepInterval)
	}
	r := &Reconciler{
		config: c, stopped: make(chan struct{}), adopted: make(chan struct{}), asked: make(chan struct{}, 1), adopting: map[string]bool{},
		pods: map[string]*pod{}, busy: map[string]time.Time{}, early: map[string]early{}, kept: map[string]kept{}, ended: map[string]netns.ID{}, bygone: map[string]Record{},
	}
	r.drained.Store(c.Drained)
	return r, nil
}

// heartbeat is a key that is no pod's UID: a worker that takes it is free.
const (
	heartbeat      = ""
	heartbeatEvery = 5 * time.Second
)

// Run gives pods their turns until ctx is done. It then lets go of all namespaces
// and leaves what is in them as it is.
func (r *Reconciler) Run(ctx context.Context) error {
	queue := workqueue.NewTypedDelayingQueue[string]()
	r.mu.Lock()
	r.adopt()
	r.queue, r.beat = queue, time.Now()
	for uid := range r.pods {
		queue.Add(uid)
	}
	r.mu.Unlock()
	defer r.close()

	var group errgroup.Group
	for range r.config.Workers {
		group.Go(func() error { r.work(ctx, queue, &group); return nil })
	}
	group.Go(func() error { r.sweep(ctx, queue, &group); return nil })
	group.Go(func() error { r.seek(ctx); return nil })
	group.Go(func() error { r.boundAdoption(ctx); return nil })
	queue.Add(heartbeat)
	<-ctx.Done()
	r.mu.Lock()
	r.queue = nil
	r.mu.Unlock()
	queue.ShutDown()
	return group.Wait()
}

// relief is after how long the worker that a pod holds is replaced. The kernel may make
// us wait for as long as a transaction of somebody in the pod takes, and that does not
// concern other pods.
const relief = time.Second

// work is one worker of the pool.
func (r *Reconciler) work(ctx context.Context, queue workqueue.TypedDelayingInterface[string], pool *errgroup.Group) {
	for replaced := false; !replaced; {
		uid, shutdown := queue.Get()
		if shutdown {
			return
		}
		again := heartbeatEvery
		switch {
		case ctx.Err() != nil:
			again = 0
		case uid == heartbeat:
			r.mu.Lock()
			r.beat = time.Now()
			r.mu.Unlock()
		default:
			works := make(chan struct{})
			replacement := time.AfterFunc(relief, func() {
				pool.Go(func() error { r.work(ctx, queue, pool); return nil })
				close(works)
			})
			again = r.turn(ctx, uid)
			if replaced = !replacement.Stop(); replaced {
				<-works // the pool is never without a worker while it is waited for
			}
		}
		if again > 0 {
			queue.AddAfter(uid, again)
		}
		queue.Done(uid)
	}
}

// sweep gives pods a turn that have had none for a while. Pods of which one is due at
// about the same time have it together: to wake up for each costs more than the turn. They
// have it one after the other, beside the workers: several at once cost more, too, and
// nobody else is to wait for them. If that takes too long, the workers have the next.
func (r *Reconciler) sweep(ctx context.Context, queue workqueue.TypedDelayingInterface[string], pool *errgroup.Group) {
	part := r.config.SweepInterval / 2
	tick := time.NewTicker(part)
	defer tick.Stop()
	var busy atomic.Bool
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			uids := r.due(now, part)
			if busy.Swap(true) {
				for _, uid := range uids {
					queue.Add(uid)
				}
				continue
			}
			pool.Go(func() error {
				defer busy.Store(false)
				for _, uid := range uids {
					if ctx.Err() != nil {
						break
					}
					if again := r.turn(ctx, uid); again > 0 {
						queue.AddAfter(uid, again)
					}
				}
				return nil
			})
		}
	}
}

// due lists the pods that are to have a turn within a while, and may have it now: they are
// not having one, nor do they rest from one.
func (r *Reconciler) due(now time.Time, within time.Duration) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var uids []string
	for uid, p := range r.pods {
		if _, busy := r.busy[uid]; !busy && p.sweepAt.Before(now.Add(within)) && !now.Before(p.restsUntil) {
			uids = append(uids, uid)
		}
	}
	return uids
}

// close answers whoever still waits and lets go of all namespaces.
func (r *Reconciler) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.stopped)
	for _, p := range r.pods {
		p.letGo()
	}
}

// Wake gives a pod a turn, or every pod if uid is empty: something about it may be
// different. It never blocks.
func (r *Reconciler) Wake(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue == nil {
		return
	}
	if uid == "" || r.pods[uid] == nil {
		r.askSeek()
	}
	if uid != "" {
		r.queue.Add(uid)
		return
	}
	for uid := range r.pods {
		r.queue.Add(uid)
	}
}

// Healthy says why the reconciler should be restarted, or nil.
func (r *Reconciler) Healthy() error {
	const (
		noneFree = 30 * time.Second
		held     = 60 * time.Second
	)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queue == nil {
		return nil // not yet, or no longer
	}
	now := time.Now()
	if busy := now.Sub(r.beat); busy > noneFree {
		return fmt.Errorf("no worker of the reconciler has been free for %s", busy.Round(time.Second))
	}
	for uid, since := range r.busy {
		if long := now.Sub(since); long > held {
			return fmt.Errorf("pod %s (%s/%s) has held a worker for %s", uid,
				r.pods[uid].report.Namespace, r.pods[uid].report.Name, long.Round(time.Second))
		}
	}
	return nil
}
