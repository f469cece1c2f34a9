package enroll

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/conntrack"
	"github.com/fairlead-mesh/fairlead/iptables/legacy"
	"github.com/fairlead-mesh/fairlead/iptables/nft"
	"github.com/fairlead-mesh/fairlead/iptables/route"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/iptables/watch"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/sockets"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// netKernel is a Kernel of netlink sockets that are kept in the namespace.
type netKernel struct {
	handle *netns.Handle
	table  *nft.Table
	router *route.Router
	diag   *sockets.Conn

	startWatch func() (*watch.Watch, error)
	watch      *watch.Watch // nil before the first Check

	port   uint32       // that our own changes of the ruleset come from
	exempt []netip.Addr // peers whose connections are left alone

	rerouted atomic.Bool // ip rules, routes or links may have changed since they were looked at

	shadows shadows

	processes *sockets.Processes
	listening sockets.Identity   // what Listeners found last
	owned     sockets.Identity   // what it had found when it was last looked for squatters
	squatters []sockets.Squatter // who were there

	plan        *plan  // for what was wanted last
	fingerprint string // of the rules last applied or found as wanted
	generation  uint32 // the ruleset's number at that time
}

// An Opener opens pods' namespaces.
type Opener struct {
	Finder  *sandbox.Finder
	Watcher *watch.Watcher
	// Processes are those of the node.
	Processes *sockets.Processes
	// Exempt are peers whose connections may bypass the proxy.
	Exempt []netip.Addr
}

// Open opens a pod's namespace. It is watched from the first Check on: changed is called
// with the names of the processes that changed something, if the kernel gives them.
func (o Opener) Open(place sandbox.Place, changed func(by string)) (Kernel, error) {
	handle, err := o.Finder.Open(place)
	if err != nil {
		return nil, err
	}
	k, err := o.open(handle, changed)
	if err != nil {
		return nil, fmt.Errorf("cannot look into network namespace %s: %w", place.Path, err)
	}
	return k, nil
}

// open owns the handle from then on, and has closed it when it fails.
func (o Opener) open(handle *netns.Handle, changed func(by string)) (_ *netKernel, err error) {
	k := &netKernel{handle: handle, exempt: o.Exempt, processes: o.Processes}
	k.rerouted.Store(true)
	if k.table, err = nft.Open(handle); err == nil {
		k.port, err = k.table.Port()
	}
	if err == nil {
		k.router, err = route.Open(handle)
	}
	if err == nil {
		k.diag, err = sockets.Open(handle)
	}
	k.startWatch = func() (*watch.Watch, error) {
		return o.Watcher.Add(handle, func(c watch.Change) {
			if c.What != watch.Ruleset {
				k.rerouted.Store(true)
			}
			changed(k.others(c.By))
		})
	}
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

func (k *netKernel) Netns() *netns.Handle { return k.handle }
func (k *netKernel) Fingerprint() string  { return k.fingerprint }

// Close lets go of everything: one socket that is forgotten keeps the namespace,
// and its end of the veth, alive.
func (k *netKernel) Close() error {
	var errs []error
	if k.watch != nil {
		errs = append(errs, k.watch.Close())
	}
	if k.table != nil {
		errs = append(errs, k.table.Close())
	}
	if k.router != nil {
		errs = append(errs, k.router.Close())
	}
	if k.diag != nil {
		errs = append(errs, k.diag.Close())
	}
	return errors.Join(append(errs, k.handle.Close())...)
}

// A plan is what a configuration means in a namespace. It is made once, since most
// turns want what the last one wanted.
type plan struct {
	want        ruleset.Config
	rules       ruleset.Ruleset
	routes      route.Config
	fingerprint string
}

func (k *netKernel) build(want ruleset.Config) (*plan, error) {
	if k.plan != nil && want.Equal(k.plan.want) {
		return k.plan, nil
	}
	v4, v6, err := route.Families(k.handle)
	if err != nil {
		return nil, err
	}
	families := want
	families.IPv4, families.IPv6 = v4, v6
	rules, err := ruleset.Build(families)
	if err != nil {
		return nil, err
	}
	k.plan = &plan{want: want, rules: rules, routes: route.Config{IPv4: v4, IPv6: v6}, fingerprint: rules.Fingerprint()}
	return k.plan, nil
}

// Apply puts routes and rules in place, in this order: a mark without a route
// loses packets, and a proxy cannot listen on ::1 before lo is up. The rules are put in
// place even so: to lose packets is better than to let them bypass the proxy.
func (k *netKernel) Apply(ctx context.Context, want ruleset.Config) error {
	plan, err := k.build(want)
	if err != nil {
		return err
	}
	err = errors.Join(k.router.EnsureLoopback(ctx), k.router.Apply(ctx, plan.routes), k.table.Apply(ctx, plan.rules))
	if err != nil {
		return err
	}
	// No number is remembered: the next Check reads, so that what somebody else
	// changed in this moment is seen.
	k.fingerprint, k.generation = plan.fingerprint, 0
	return nil
}

// mostDrift is how much of what is wrong with the routes is said: each rule that somebody
// made to look like ours is a line.
const mostDrift = 20

// Check looks at routes and rules, each whatever became of the other.
func (k *netKernel) Check(ctx context.Context, want ruleset.Config, depth Depth) (string, error) {
	if depth == Everything {
		k.plan = nil // the kernel may have another address family by now
	}
	plan, err := k.build(want)
	if err == nil && k.watch == nil {
		// Before anything is read, and not before: what Apply does need not be told.
		k.watch, err = k.startWatch()
	}
	if err != nil {
		return "", err
	}
	drift, routeErr := k.checkRoutes(ctx, plan, depth)
	if more := len(drift) - mostDrift; more > 0 {
		drift = append(drift[:mostDrift], fmt.Sprintf("and %d more of the kind", more))
	}
	diff, ruleErr := k.checkRules(ctx, plan, depth)
	if len(diff) > 0 {
		drift = append(drift, diff.String())
	}
	return strings.Join(drift, "\n"), errors.Join(ruleErr, routeErr)
}

// checkRoutes reads the routes only if the kernel has told of a change since they were
// last found as wanted.
func (k *netKernel) checkRoutes(ctx context.Context, plan *plan, depth Depth) ([]string, error) {
	changed := k.rerouted.Swap(false) // before they are read: what changes then is looked at next time
	if !changed && depth == Changes {
		return nil, nil
	}
	found, err := k.router.Check(ctx, plan.routes)
	if err != nil || len(found.Drift) > 0 {
		k.rerouted.Store(true)
	}
	k.shadows.routes = found.Foreign
	return found.Drift, err
}

// checkRules reads the rules only if the kernel has counted a change since they
// were last found as wanted.
func (k *netKernel) checkRules(ctx context.Context, plan *plan, depth Depth) (ruleset.Diff, error) {
	generation, err := k.table.Generation()
	if err != nil {
		return nil, err
	}
	if generation == k.generation && plan.fingerprint == k.fingerprint && depth == Changes {
		return nil, nil
	}
	diff, err := k.table.Check(ctx, plan.rules)
	if err == nil && len(diff) == 0 {
		k.fingerprint, k.generation = plan.fingerprint, generation
	}
	return diff, err
}

// shadows are what may take packets before our redirects do, as it was seen last.
type shadows struct {
	generation             uint32 // the ruleset's number when chains were seen
	chains, routes, tables []string
}

// Foreign reads chains only if the ruleset is not the one that it has read, and the tables
// of iptables-legacy, which the kernel does not number, if everything is asked for.
func (k *netKernel) Foreign(ctx context.Context, depth Depth) ([]string, error) {
	s := &k.shadows
	if depth == Everything || s.generation == 0 || s.generation != k.generation {
		s.generation, s.chains = 0, nil
		found, err := k.table.Foreign(ctx)
		if err != nil {
			return nil, err
		}
		for _, f := range found {
			s.chains = append(s.chains, f.String())
		}
		s.generation = k.generation
	}
	if depth == Everything {
		s.tables = nil
		found, err := legacy.Tables(k.handle)
		if err != nil {
			return nil, err
		}
		for _, t := range found {
			if t.Name != "nat" { // which stands behind ours
				s.tables = append(s.tables, t.String())
			}
		}
	}
	return slices.Concat(s.chains, s.routes, s.tables), nil
}

// Remove takes everything of ours out of the namespace, and of istio-cni's: its ip rule and
// its routes are the same as ours. The conntrack entries that still lead to the proxy's ports
// go too, or a DNS socket in use would go on asking a dead port; behind the rules, which
// would make them again.
func (k *netKernel) Remove(ctx context.Context) error {
	k.fingerprint, k.generation = "", 0
	err := k.table.Remove(ctx)
	_, entriesErr := conntrack.New(k.table.Netfilter()).DeleteCaptured(ctx)
	return errors.Join(err, entriesErr, k.router.Remove(ctx))
}

// Left names all tables of iptables-legacy that are not empty: whose rules are in them is not
// read.
func (k *netKernel) Left(ctx context.Context) ([]string, error) {
	var left []string
	found, err := k.table.Foreign(ctx)
	for _, f := range found {
		if f.Istio {
			left = append(left, f.String())
		}
	}
	tables, legacyErr := legacy.Tables(k.handle)
	for _, t := range tables {
		left = append(left, t.String()+": if istio-cni left them restart the pod")
	}
	return left, errors.Join(err, legacyErr)
}

// Expel deletes the conntrack entries of what would go on as before the rules that are
// wanted now. A DNS socket in use would go on asking the proxy, which perhaps does not
// serve DNS any more.
func (k *netKernel) Expel(ctx context.Context, want ruleset.Config) error {
	entries := conntrack.New(k.table.Netfilter())
	_, err := entries.DeleteUncaptured(ctx)
	if !want.CaptureDNS {
		_, dnsErr := entries.DeleteCapturedDNS(ctx)
		err = errors.Join(err, dnsErr)
	}
	return err
}

func (k *netKernel) Listeners(ctx context.Context) (status.Listeners, error) {
	l, err := k.diag.Listeners(ctx)
	if err != nil {
		return status.Listeners{}, err
	}
	k.listening = l.Identity
	found := status.Listeners{Known: true, Outbound: l.Outbound, Inbound: l.Inbound, HBONE: l.HBONE, DNS: l.DNS && l.DNS6}
	if l.DNS && !l.DNS6 { // queries of both families are redirected
		v6, err := k.canAsk6()
		if err != nil {
			return status.Listeners{}, err
		}
		found.DNS = !v6
	}
	return found, nil
}

// Squatters looks again only if other sockets listen now, or one did not belong there.
func (k *netKernel) Squatters(ctx context.Context, depth Depth) ([]sockets.Squatter, error) {
	if depth == Changes && k.listening == k.owned && len(k.squatters) == 0 {
		return nil, nil
	}
	found, err := k.diag.Squatters(ctx, k.processes)
	if err == nil {
		k.owned, k.squatters = k.listening, found
	}
	return found, err
}

// canAsk6 reports whether a DNS query over IPv6 can be redirected at all: to ::1,
// which is not there where IPv6 is switched off.
func (k *netKernel) canAsk6() (bool, error) {
	var there bool
	err := k.handle.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if errors.Is(err, unix.EAFNOSUPPORT) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot open an IPv6 socket: %w", err)
		}
		there = unix.Bind(fd, &unix.SockaddrInet6{Addr: netip.IPv6Loopback().As16()}) == nil
		return unix.Close(fd)
	})
	return there, err
}

func (k *netKernel) Proxied(ctx context.Context) (int, error) { return k.diag.Proxied(ctx) }

// Bypassing leaves out what the rules leave alone: the kubelet's probes, and in
// ingress mode whatever came in.
func (k *netKernel) Bypassing(ctx context.Context, want ruleset.Config) ([]sockets.Connection, error) {
	return k.diag.Bypassing(ctx, func(c sockets.Connection) bool {
		return slices.Contains(k.exempt, c.Remote.Addr()) || (want.Ingress && c.Listened)
	})
}

func (k *netKernel) Destroy(ctx context.Context, connections []sockets.Connection) (int, error) {
	return k.diag.Destroy(ctx, connections)
}

// others names who changed the ruleset, without ourselves: the kernel tells of our
// own transactions too. It must not wait: a worker may be using our sockets.
func (k *netKernel) others(by []watch.Process) string {
	var names []string
	for _, p := range by {
		if p.Port != k.port {
			names = append(names, fmt.Sprintf("%s (pid %d)", p.Name, p.PID))
		}
	}
	return strings.Join(names, ", ")
}
