package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/conntrack"
	"github.com/fairlead-mesh/fairlead/iptables/nft"
	"github.com/fairlead-mesh/fairlead/iptables/route"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// A redirection is ours in one namespace, through sockets that are kept.
type redirection struct {
	table  *nft.Table
	router *route.Router
	config route.Config
}

func openRedirection(n *netlab.NS) (*redirection, error) {
	v4, v6, err := route.Families(n.Handle)
	if err != nil {
		return nil, err
	}
	r := &redirection{config: route.Config{IPv4: v4, IPv6: v6}}
	if r.table, err = nft.Open(n.Handle); err != nil {
		return nil, err
	}
	if r.router, err = route.Open(n.Handle); err != nil {
		return nil, errors.Join(err, r.table.Close())
	}
	return r, nil
}

func (r *redirection) close() error { return errors.Join(r.table.Close(), r.router.Close()) }

// rules are those of an ordinary pod, DNS on.
func (r *redirection) rules(form ruleset.Form) (ruleset.Ruleset, error) {
	return ruleset.Build(ruleset.Config{CaptureDNS: true, IPv4: r.config.IPv4, IPv6: r.config.IPv6, Form: form})
}

// apply does what the agent does in a fresh namespace.
func (r *redirection) apply(ctx context.Context, form ruleset.Form) error {
	rules, err := r.rules(form)
	if err != nil {
		return err
	}
	if err := r.router.EnsureLoopback(ctx); err != nil {
		return err
	}
	if err := r.router.Apply(ctx, r.config); err != nil {
		return err
	}
	return r.table.Apply(ctx, rules)
}

// check reads everything back.
func (r *redirection) check(ctx context.Context) error {
	rules, err := r.rules(ruleset.FormFull)
	if err != nil {
		return err
	}
	diff, err := r.table.Check(ctx, rules)
	if err != nil {
		return err
	}
	report, err := r.router.Check(ctx, r.config)
	if err == nil && (len(diff) > 0 || len(report.Drift) > 0) {
		err = fmt.Errorf("the namespace is not as wanted: %s %s", diff, strings.Join(report.Drift, ", "))
	}
	return err
}

// inNamespace makes a namespace for work and takes it away again.
func inNamespace(name string, work func(*netlab.NS) error) error {
	n, err := netlab.Create(name)
	if err != nil {
		return err
	}
	return errors.Join(work(n), n.Close())
}

// withRedirection gives work a namespace and an open redirection.
func withRedirection(name string, work func(*netlab.NS, *redirection) error) error {
	return inNamespace(name, func(n *netlab.NS) error {
		r, err := openRedirection(n)
		if err != nil {
			return err
		}
		return errors.Join(work(n, r), r.close())
	})
}

// apply measures the first capture of a namespace, opening the sockets included.
func (b *bencher) apply(ctx context.Context) ([]figures.Measure, error) {
	ours, err := repeat(ctx, b.Sizes.Warm, 2*b.Sizes.Reps, func() (took time.Duration, err error) {
		err = inNamespace("apply", func(n *netlab.NS) error {
			began := time.Now()
			r, err := openRedirection(n)
			if err != nil {
				return err
			}
			applied := r.apply(ctx, ruleset.FormFull)
			took = time.Since(began)
			return errors.Join(applied, r.close())
		})
		return took, err
	})
	if err != nil {
		return nil, err
	}
	m := figures.Measure{What: "in-pod apply, fresh namespace, both families, DNS on, p50", Value: ours.Median(), Unit: "ms", Budget: figures.AtMost(2)}
	for _, x := range flavours() {
		theirs, err := repeat(ctx, 2, max(b.Sizes.Reps/3, 1), func() (took time.Duration, err error) {
			err = inNamespace("restore", func(n *netlab.NS) (err error) {
				took, err = x.apply(n, b.dir)
				return err
			})
			return took, err
		})
		if err != nil {
			return []figures.Measure{m}, err
		}
		m.Others = append(m.Others, figures.Other{Name: x.name + ", 4 execs", Value: theirs.Median()})
	}
	m.Note = "4 execs: a save and a restore of each family with the same rules, as istio-cni does in a fresh pod"
	return []figures.Measure{m}, nil
}

// verify measures the look at a namespace in which nothing has changed.
func (b *bencher) verify(ctx context.Context) ([]figures.Measure, error) {
	number := figures.Measure{What: "verify, rules unchanged, by number, p50", Unit: "ms", Budget: figures.AtMost(0.1)}
	reading := figures.Measure{What: "verify, rules unchanged, by reading, p50", Unit: "ms", Budget: figures.AtMost(1.5)}
	err := withRedirection("verify", func(_ *netlab.NS, r *redirection) error {
		if err := r.apply(ctx, ruleset.FormFull); err != nil {
			return err
		}
		numbers, err := repeat(ctx, b.Sizes.Warm, 20*b.Sizes.Reps, func() (time.Duration, error) {
			return timed(func() error { _, err := r.table.Generation(); return err })
		})
		if err != nil {
			return err
		}
		readings, err := repeat(ctx, b.Sizes.Warm, 4*b.Sizes.Reps, func() (time.Duration, error) {
			return timed(func() error { return r.check(ctx) })
		})
		number.Value, reading.Value = numbers.Median(), readings.Median()
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, x := range flavours() {
		err := inNamespace("save", func(n *netlab.NS) error {
			if _, err := x.apply(n, b.dir); err != nil {
				return err
			}
			theirs, err := repeat(ctx, 2, b.Sizes.Reps, func() (time.Duration, error) {
				return timed(func() error { return x.save(n) })
			})
			reading.Others = append(reading.Others, figures.Other{Name: x.name + "-save, 2 execs", Value: theirs.Median()})
			return err
		})
		if err != nil {
			return []figures.Measure{number, reading}, err
		}
	}
	return []figures.Measure{number, reading}, nil
}

// release measures what a release does to the kernel of a running pod with captured
// connections: redirects flushed, and, after a drain that is not counted, everything
// removed.
func (b *bencher) release(ctx context.Context) ([]figures.Measure, error) {
	const connections = 20
	var took figures.Sample
	err := inNamespace("peer", func(peer *netlab.NS) error {
		return withRedirection("release", func(n *netlab.NS, r *redirection) (err error) {
			err = netlab.Cable(netlab.Port{NS: n, Addrs: netlab.Prefixes("10.0.0.1/24")}, netlab.Port{NS: peer, Addrs: netlab.Prefixes("10.0.0.2/24")})
			if err != nil {
				return err
			}
			// In the proxy's place: who accepts connections makes no difference here.
			sink, err := netlab.StartEcho(n, "proxy", "tcp", fmt.Sprintf("127.0.0.1:%d", ruleset.OutboundPort))
			if err != nil {
				return err
			}
			took, err = repeat(ctx, 2, b.Sizes.Reps, func() (took time.Duration, err error) {
				if err := r.apply(ctx, ruleset.FormFull); err != nil {
					return 0, err
				}
				hangUp, err := dialMany(ctx, n, "10.0.0.2:80", connections)
				if err != nil {
					return 0, err
				}
				defer hangUp()
				return timed(func() error { return r.release(ctx) })
			})
			return errors.Join(err, sink.Close())
		})
	})
	return []figures.Measure{{
		What: "live release, the kernel steps, p50", Value: took.Median(), Unit: "ms", Budget: figures.AtMost(20),
		Note: fmt.Sprintf("release: %d captured connections are open; the agent's count of them (sock_diag) is not in it", connections),
	}}, err
}

func (r *redirection) release(ctx context.Context) error {
	marks, err := r.rules(ruleset.FormMarks)
	if err != nil {
		return err
	}
	if err := r.table.Apply(ctx, marks); err != nil {
		return err
	}
	deleted, err := conntrack.New(r.table.Netfilter()).DeleteCaptured(ctx)
	if err == nil && deleted == 0 {
		err = errors.New("no conntrack entry led to the proxy")
	}
	return errors.Join(err, r.table.Remove(ctx), r.router.Remove(ctx))
}

// dialMany opens connections and returns how to close them.
func dialMany(ctx context.Context, n *netlab.NS, addr string, count int) (hangUp func(), err error) {
	var conns []net.Conn
	hangUp = func() {
		for _, c := range conns {
			_ = c.Close() // nothing was sent
		}
	}
	for range count {
		conn, err := n.Dial(ctx, "tcp", addr)
		if err != nil {
			hangUp()
			return nil, err
		}
		conns = append(conns, conn)
	}
	return hangUp, nil
}
