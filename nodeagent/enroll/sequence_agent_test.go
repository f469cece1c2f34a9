package enroll_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead-mesh/fairlead/integration/nodeproxy"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/iptables/watch"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/hostnet"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/sockets"
)

// A source is the node's pods as the API has them.
type source struct {
	mu      sync.Mutex
	objects map[string]intent.Pod // by name
}

func (s *source) Synced() bool { return true }

func (s *source) Lookup(namespace, name string) (intent.Pod, intent.Namespace, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.objects[name]
	return p, intent.Namespace{Name: namespace}, ok
}

func (s *source) Pods() []intent.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.objects))
}

func (s *source) set(name string, p *intent.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p == nil {
		delete(s.objects, name)
		return
	}
	s.objects[name] = *p
}

// podOf is an object of namespace shop.
func podOf(name, uid string, labelled bool) *intent.Pod {
	p := &intent.Pod{Namespace: "shop", Name: name, UID: uid, ServiceAccount: "sa", Labels: map[string]string{}}
	if labelled {
		p.Labels[intent.LabelMode] = intent.ModeAmbient
	}
	return p
}

// A nodeDir is where a node's agents and proxies meet, and what they leave to each other.
type nodeDir string

func (d nodeDir) zds() string  { return filepath.Join(string(d), "zds") }
func (d nodeDir) pods() string { return filepath.Join(string(d), "pods") }
func (d nodeDir) cni() string  { return filepath.Join(string(d), "cni") } // libcni's

// An agent is the node agent's parts that have to do with pods, wired as in its main.
type agent struct {
	*fuse
	reconciler *enroll.Reconciler
	server     *proxylink.Server
	ready      chan struct{} // closed when proxies are told of pods
	ended      chan error
	log        *buffer
}

// startAgent runs an agent. charge may be nil.
func startAgent(dir nodeDir, host *netns.Handle, pods *source, sweep time.Duration, c *charge) (*agent, error) {
	ctx, cancel := context.WithCancel(context.Background())
	a := &agent{fuse: newFuse(cancel), ready: make(chan struct{}), ended: make(chan error, 1), log: &buffer{}}
	a.arm(c)
	logger := slog.New(slog.NewTextHandler(a.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	registry := prometheus.NewRegistry()
	policy, err := config.Default().Policy()
	if err != nil {
		return nil, err
	}
	finder, err := sandbox.New()
	if err != nil {
		return nil, err
	}
	finder.CNICache = filepath.Join(dir.cni(), "results")
	if a.server, err = proxylink.New(proxylink.Config{
		Path: dir.zds(), AckPreference: 500 * time.Millisecond,
		Changed: func(uid string) { a.reconciler.Wake(uid) }, Logger: logger, Registerer: registry,
	}); err != nil {
		return nil, err
	}
	finder.Proxies = func() []int {
		var pids []int
		for _, s := range a.server.Sessions() {
			pids = append(pids, int(s.PID))
		}
		return pids
	}
	watcher, err := watch.New()
	if err != nil {
		return nil, err
	}
	probes, err := hostnet.New(hostnet.Config{
		Host: host, Probes: hostnet.SNAT, Watcher: watcher, Mark: hostnet.DefaultMark,
		IPv4: ruleset.DefaultProbeIPv4, IPv6: ruleset.DefaultProbeIPv6, Look: 100 * time.Millisecond, Sweep: sweep,
	})
	if err != nil {
		return nil, errors.Join(err, watcher.Close())
	}
	opener := enroll.Opener{Finder: finder, Watcher: watcher, Processes: sockets.NewProcesses("/proc"), Exempt: []netip.Addr{ruleset.DefaultProbeIPv4, ruleset.DefaultProbeIPv6}}
	if a.reconciler, err = enroll.New(a.wrap(enroll.Config{
		Policy: policy, Source: pods, Proxies: a.server, Probes: probes, Records: enroll.RecordDir(dir.pods()),
		Find: finder.Told, Gone: sandbox.Place.Gone, Open: opener.Open, Search: finder.Search,
		ProbeIPv4: ruleset.DefaultProbeIPv4, ProbeIPv6: ruleset.DefaultProbeIPv6,
		PodWait: shortWait, ProxyWait: shortWait, AckWait: patience,
		ReleaseGrace: 0, DrainTimeout: time.Hour, SweepInterval: sweep,
		Workers: 4, Metrics: enroll.NewMetrics(registry), Logger: logger,
	})); err != nil {
		return nil, errors.Join(err, probes.Close(), watcher.Close())
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.reconciler.Run(ctx) })
	group.Go(func() error { return watcher.Run(ctx) })
	group.Go(func() error { return a.server.Run(ctx) })
	group.Go(func() error { return probes.Run(ctx) })
	group.Go(func() error {
		select {
		case <-a.reconciler.Adopted():
			a.reconciler.Seek(ctx)
			a.server.Open()
			close(a.ready)
		case <-ctx.Done():
		}
		return nil
	})
	go func() { a.ended <- errors.Join(group.Wait(), probes.Close()) }()
	return a, nil
}

const (
	// shortWait is what an ADD waits for what does not come.
	shortWait = 300 * time.Millisecond
	// patience is how long a test waits for what has to come.
	patience = 30 * time.Second
)

// end stops the agent, or buries it if it is dead, and returns when nothing of it is left.
func (a *agent) end() error {
	a.stop()
	select {
	case err := <-a.ended:
		return err
	case <-time.After(patience):
		return fmt.Errorf("the agent does not end within %s", patience)
	}
}

// A proxy is a node proxy.
type proxy struct {
	*nodeproxy.Proxy
	drains bool
	stop   context.CancelFunc
	ended  chan error
}

// startProxy runs a proxy, which drains when it is ended, or does as if it was killed.
func startProxy(dir nodeDir, drains bool) (*proxy, error) {
	drain := time.Nanosecond
	if drains {
		drain = time.Second
	}
	p, err := nodeproxy.New(nodeproxy.Config{
		ZDS: dir.zds(), DNS: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")},
		Retry: 100 * time.Millisecond, Drain: drain,
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	run := &proxy{Proxy: p, drains: drains, stop: cancel, ended: make(chan error, 1)}
	go func() { run.ended <- p.Run(ctx) }()
	return run, nil
}

// end stops the proxy and returns when nothing of it is left.
func (p *proxy) end() error {
	p.stop()
	select {
	case err := <-p.ended:
		return err
	case <-time.After(patience):
		return fmt.Errorf("the proxy does not end within %s", patience)
	}
}

// A buffer may be written and read at once. It keeps the last of what was written.
type buffer struct {
	mu   sync.Mutex
	text []byte
}

func (b *buffer) Write(p []byte) (int, error) {
	const most = 32 << 10
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.text == nil {
		b.text = make([]byte, 0, 2*most) // all it will ever take
	}
	if len(b.text)+len(p) > cap(b.text) {
		b.text = append(b.text[:0], b.text[len(b.text)-most:]...)
	}
	b.text = append(b.text, p[:min(len(p), most)]...)
	return len(p), nil
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.text)
}
