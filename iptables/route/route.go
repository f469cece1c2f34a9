// Package route keeps the policy routing of a captured pod: in each family the rule
//
//	32764: fwmark 0x111/0xfff lookup 100
//
// and, in table 100, the route
//
//	local default dev lo scope host
//
// The proxy dials the app from its client's address. The app's answers go to that
// address, carry the mark, and are led back to the proxy instead of out of the pod.
//
// What is ours is known by what it says: a rule that agrees with ours in two of
// mark, table and priority is ours, changed by somebody, and put right. All else is
// left alone. What else stands in table 100, or before our rule, is reported, since
// it may take the packets that ours is for.
//
// # Failures it survives
//
//   - Our rule was changed, doubled or deleted, by any tool: Check says so, Apply
//     puts it right, and adds before it deletes.
//   - Rules or routes that change while they are read: read again, and in the end
//     reported, never taken for complete.
//   - Rules, routes or interfaces by the thousand: the look ends, with an error.
//   - IPv6 that is off for the whole kernel (no such family), off in the namespace
//     (nothing to route: no route is wanted), or off on lo alone (no route is
//     possible: an error that names the setting).
//   - A lo that is brought up by another CNI plugin at the same moment, or by nobody.
package route

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// Config says in which families a pod's traffic is captured.
type Config struct{ IPv4, IPv6 bool }

// A Report is what Check found.
type Report struct {
	Drift   []string // what Apply would put right
	Foreign []string // what is not ours, and may take packets that ours is for
}

// A Router reads and writes the policy routing of one network namespace, which its
// socket keeps alive.
type Router struct{ conn *nlconn.Conn }

// Open opens a Router on a namespace. The caller closes it, and keeps the Handle.
func Open(h *netns.Handle) (*Router, error) {
	conn, err := nlconn.Open(h, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	return &Router{conn: conn}, nil
}

// Close gives the Router up. It is idempotent.
func (r *Router) Close() error { return r.conn.Close() }

// Families says which address families the namespace's kernel has. IPv6 that is
// only switched off by a sysctl counts: it can be switched on at any time.
func Families(h *netns.Handle) (ipv4, ipv6 bool, err error) {
	err = h.Do(func() error {
		if ipv4, err = hasFamily(unix.AF_INET); err != nil {
			return err
		}
		ipv6, err = hasFamily(unix.AF_INET6)
		return err
	})
	if err != nil {
		return false, false, fmt.Errorf("cannot tell which address families the namespace has: %w", err)
	}
	return ipv4, ipv6, nil
}

func hasFamily(family int) (bool, error) {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, unix.Close(fd)
}

// A family of addresses, as the kernel numbers them.
type family uint8

func (f family) String() string {
	if f == unix.AF_INET {
		return "IPv4"
	}
	return "IPv6"
}

var families = []family{unix.AF_INET, unix.AF_INET6}

func (c Config) has(f family) bool {
	return f == unix.AF_INET && c.IPv4 || f == unix.AF_INET6 && c.IPv6
}

// Apply makes the namespace have the rule and the route in the families of want,
// and in no other.
func (r *Router) Apply(ctx context.Context, want Config) error {
	var errs []error
	for _, f := range families {
		var err error
		if want.has(f) {
			// The route first: a rule that leads to an empty table only costs time.
			err = errors.Join(r.applyRoute(ctx, f), r.applyRule(ctx, f, 1))
		} else {
			err = r.remove(ctx, f)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("cannot set up %s policy routing: %w", f, err))
		}
	}
	return errors.Join(errs...)
}

// Remove takes the rule and the route away, in every family. It succeeds if there
// is nothing to take away.
func (r *Router) Remove(ctx context.Context) error {
	var errs []error
	for _, f := range families {
		if err := r.remove(ctx, f); err != nil {
			errs = append(errs, fmt.Errorf("cannot remove %s policy routing: %w", f, err))
		}
	}
	return errors.Join(errs...)
}

func (r *Router) remove(ctx context.Context, f family) error {
	return errors.Join(r.applyRule(ctx, f, 0), r.removeRoutes(ctx, f))
}

// Check compares the namespace with want and changes nothing. What it could see it
// returns with an error, too.
func (r *Router) Check(ctx context.Context, want Config) (Report, error) {
	var report Report
	up, err := r.loopbackUp(ctx)
	if err != nil {
		return Report{}, err
	}
	if !up && (want.IPv4 || want.IPv6) {
		report.Drift = append(report.Drift, errLoopbackDown.Error())
	}
	var errs []error
	for _, f := range families {
		if err := r.check(ctx, f, want.has(f), &report); err != nil {
			errs = append(errs, fmt.Errorf("cannot check %s policy routing: %w", f, err))
		}
	}
	return report, errors.Join(errs...)
}

func (r *Router) check(ctx context.Context, f family, wanted bool, report *Report) error {
	var found Report
	rules, err := r.rules(ctx, f)
	if err == nil {
		found = compareRules(rules, wanted)
		var routes []route
		if routes, err = r.routes(ctx, f); err == nil {
			err = r.compareRoutes(ctx, f, routes, wanted, &found)
		}
	}
	if errors.Is(err, nlconn.ErrInterrupted) {
		found.Drift = append(found.Drift, "policy routing kept changing while it was read")
		err = nil
	}
	for _, text := range found.Drift {
		report.Drift = append(report.Drift, f.String()+": "+text)
	}
	for _, text := range found.Foreign {
		report.Foreign = append(report.Foreign, f.String()+": "+text)
	}
	return err
}

// most is how much of one kind is looked at, over all tries to read it: what somebody
// in the pod puts there must not cost more.
const most = 1 << 12

// dump lists things of one kind. A family or a table that does not exist holds nothing.
func dump[T any](ctx context.Context, r *Router, kind uint16, request []byte, parse func([]byte) (T, bool, error)) ([]T, error) {
	seen := 0
	all, err := nlconn.List(ctx, r.conn, kind, request, func(reply []byte) (one T, wanted bool, err error) {
		if seen++; seen > most {
			return one, false, fmt.Errorf("there are too many to look at, more than %d", most)
		}
		return parse(reply)
	})
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, nil
	}
	return all, err
}
