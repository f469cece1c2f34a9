package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// Config of a Proxy. The zero value is a proxy without DNS, and without HTTP.
type Config struct {
	// ZDS is the path of the agent's socket: ztunnelproto.DefaultSocket.
	ZDS string
	// DNS are the name servers that captured queries are forwarded to. Without any
	// the proxy does not listen for DNS.
	DNS []netip.AddrPort
	// DNSTimeout is how long one of them may take to answer before the next is asked: 2 s.
	DNSTimeout time.Duration
	// Admin is the address that serves Handler, in the proxy's own namespace. Empty: none.
	Admin string
	// Readiness is one more such address, for probes from outside. Empty: none.
	Readiness string
	// RefuseUntagged refuses captured inbound connections that no proxy has opened.
	RefuseUntagged bool
	// Retry is how often a workload that could not be started is tried again: 5 s.
	Retry time.Duration
	// Drain is how long connections may go on once the proxy is told to end: 5 s.
	Drain time.Duration
	// Faults to begin with.
	Faults Faults
	// Logger is silent if nil.
	Logger *slog.Logger
}

// Proxy is a node proxy. Its methods may be called at any time.
type Proxy struct {
	cfg       Config
	log       *slog.Logger
	workloads *workloads
	faults    atomic.Pointer[Faults]
	acks      int // sent so far; the link's alone
}

// New checks cfg and starts nothing.
func New(cfg Config) (*Proxy, error) {
	if cfg.ZDS == "" {
		cfg.ZDS = ztunnelproto.DefaultSocket
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if !filepath.IsAbs(cfg.ZDS) {
		return nil, fmt.Errorf("cannot set up the node proxy: socket path %q must be absolute", cfg.ZDS)
	}
	if cfg.Retry < 0 || cfg.Drain < 0 || cfg.DNSTimeout < 0 {
		return nil, errors.New("cannot set up the node proxy: retry, drain and DNS timeout must not be negative")
	}
	if cfg.Retry == 0 {
		cfg.Retry = 5 * time.Second
	}
	if cfg.Drain == 0 {
		cfg.Drain = 5 * time.Second
	}
	if cfg.DNSTimeout == 0 {
		cfg.DNSTimeout = 2 * time.Second
	}
	for _, upstream := range cfg.DNS {
		if !reachable(upstream) {
			return nil, fmt.Errorf("cannot set up the node proxy: name server %s cannot be reached from inside a pod", upstream)
		}
	}
	p := &Proxy{cfg: cfg, log: cfg.Logger}
	p.SetFaults(cfg.Faults)
	p.workloads = newWorkloads(environment{
		dns: cfg.DNS, dnsTimeout: cfg.DNSTimeout, log: cfg.Logger, relayed: new(counters), untagged: new(atomic.Uint64),
		refuse: p.refuse, refuseUntagged: cfg.RefuseUntagged,
	})
	return p, nil
}

// Run serves the node until ctx is done, once. Then it ends in good order: the agent
// is left at once, another proxy gets what is new, and connections get the time to end
// that Config gives them. It returns an error only if it cannot go on; then
// connections are cut, as they are when a process dies.
func (p *Proxy) Run(ctx context.Context) error {
	admin, err := p.serveAdmin()
	if err != nil {
		return err
	}
	defer admin.close()
	defer p.workloads.close()

	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return p.link(running) })
	group.Go(func() error { return p.retry(running) })
	if err := group.Wait(); err != nil {
		return err
	}
	p.log.Info("ending", "drain", p.cfg.Drain)
	p.workloads.drain(p.cfg.Drain)
	return nil
}

// retry tries, again and again, to start what could not be started.
func (p *Proxy) retry(ctx context.Context) error {
	tick := time.NewTicker(p.cfg.Retry)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			p.workloads.retry()
		}
	}
}

// pause waits for d, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
