package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fairlead-mesh/fairlead/cni/install"
	"github.com/fairlead-mesh/fairlead/iptables/watch"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/hostnet"
	"github.com/fairlead-mesh/fairlead/nodeagent/kube"
	"github.com/fairlead-mesh/fairlead/nodeagent/metrics"
	"github.com/fairlead-mesh/fairlead/nodeagent/pluginserver"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

func agentCommand() *cobra.Command {
	var configPath, podsFrom string
	cmd := &cobra.Command{
		Use:   "agent [--pods-from DIR]",
		Short: "Run the node agent",
		Long: `Run the node agent: answer the CNI plugin, capture and release the node's pods,
and hand their network namespaces to the node proxies that connect.

The Kubernetes API says what the node's pods are: the cluster's that the agent runs
in, or the one that the configuration's kubeconfig names. With --pods-from, a
directory of manifests says it instead.

It ends on SIGINT or SIGTERM and leaves every pod as it is. What takes something away
are the verbs drain and uninstall.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return errors.New("the agent has to run as root (with the capabilities NET_ADMIN, SYS_ADMIN, SYS_PTRACE and DAC_READ_SEARCH)")
			}
			c, err := loadConfig(configPath, cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			logger := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: c.LogLevel}))
			for _, warning := range c.Warnings() {
				logger.Warn("the configuration may not mean what it says", "warning", warning)
			}
			a, err := newAgent(c, podsFrom, false, logger)
			if err != nil {
				return err
			}
			return a.run(cmd.Context())
		},
	}
	cmd.Flags().StringVar(&configPath, "config", config.DefaultPath, "configuration file; without one at the default path, all is at its default")
	cmd.Flags().StringVar(&podsFrom, "pods-from", "", "directory of Pod and Namespace manifests, all of which are this node's; without it the Kubernetes API is asked")
	return cmd
}

// loadConfig reads the file that was named, or the one at the default path if
// there is one.
func loadConfig(path string, named bool) (config.Config, error) {
	c, err := config.Load(path)
	if errors.Is(err, os.ErrNotExist) && !named {
		return config.Default(), nil
	}
	return c, err
}

// An agent is the parts of the node agent, wired.
type agent struct {
	config  config.Config
	guest   bool // it lives while a node without an agent is uninstalled; see withoutAgent
	started time.Time
	logger  *slog.Logger
	source  string

	registry   *prometheus.Registry
	pods       source
	kube       *kube.Source     // pods, if that is what they are
	writer     *kube.Writer     // nil without kube
	nodeWriter *kube.NodeWriter // nil: nothing is written of the node
	proxies    *proxylink.Server
	watcher    *watch.Watcher
	probes     *hostnet.Exemption
	reconciler *enroll.Reconciler
	synced     chan struct{} // closed when the source knows the node's pods
	syncedOnce sync.Once
	plugins    *pluginserver.Server
	installer  *install.Installer // nil: the plugin is somebody else's to install
	turnstile  turnstile
	announced  chan struct{} // closed when the runtime has been told that we are here
	opener     enroll.Opener
	kernel     *trial
	drained    *drainFile
	judged     chan struct{} // closed when it is known whether what drained says is for this installation
}

const (
	// pollInterval is the installer's safety net below notifications.
	pollInterval = 5 * time.Second
	// workers is how many pods are worked on at once. The work is the kernel's, and
	// short; more would only wait for its locks.
	workers = 8
	// A client of the agent's socket, one of maxClients, has requestTimeout for each
	// part of a conversation.
	requestTimeout = 5 * time.Second
	maxClients     = 256
)

func newAgent(c config.Config, podsFrom string, guest bool, logger *slog.Logger) (*agent, error) {
	a := &agent{
		config: c, guest: guest, logger: logger,
		started: time.Now(), registry: prometheus.NewRegistry(),
		synced: make(chan struct{}), announced: make(chan struct{}), judged: make(chan struct{}),
	}
	a.drained = openDrainFile(c.File("agent.sock"))
	a.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := a.newInstaller(c.Install); err != nil {
		return nil, err
	}
	policy, err := c.Policy()
	if err != nil {
		return nil, err
	}
	finder, err := sandbox.New()
	if err != nil {
		return nil, err
	}
	if err := a.openSource(podsFrom); err != nil {
		return nil, err
	}
	if a.proxies, err = proxylink.New(proxylink.Config{
		Path: c.ProxySocket, AckTimeout: c.AckTimeout.Duration,
		Changed: func(uid string) { a.reconciler.Wake(uid) },
		Logger:  logger, Registerer: a.registry,
	}); err != nil {
		return nil, err
	}
	if a.watcher, err = watch.New(); err != nil {
		return nil, err
	}
	if err := a.exemptProbes(); err != nil {
		return nil, err
	}
	a.newOpener(finder)
	if a.reconciler, err = enroll.New(enroll.Config{
		Policy: policy, Source: a.pods, Unread: a.pods.Unread, Proxies: a.proxies, Probes: a.probes, Records: enroll.RecordDir(c.File("pods")),
		Find: finder.Told, Gone: sandbox.Place.Gone, Search: finder.Search, Open: a.opener.Open, Drained: guest || a.drained.state() != nil,
		Installed: a.promised, Advertised: a.advertised,
		ProbeIPv4: c.ProbeAddresses.IPv4, ProbeIPv6: c.ProbeAddresses.IPv6,
		PodWait: c.Waits.Pod.Duration, ProxyWait: c.Waits.Proxy.Duration, AckWait: c.Waits.Ack.Duration,
		ReleaseGrace: c.ReleaseGrace.Duration, DrainTimeout: c.DrainTimeout.Duration, SweepInterval: c.SweepInterval.Duration,
		Workers: workers, Reported: a.podReported, Metrics: enroll.NewMetrics(a.registry), Logger: logger,
	}); err != nil {
		return nil, err
	}
	a.registry.MustRegister(a.reconciler, nodeMetrics{a})
	var pods pluginserver.Pods = a.reconciler
	if a.kube != nil {
		pods = kubePods{a.reconciler, a.kube, c.Waits.Pod.Duration}
	}
	a.turnstile.Pods = pods
	a.plugins, err = pluginserver.New(pluginserver.Config{
		Pods: &a.turnstile, Node: a.node, Leaver: a, RequestTimeout: requestTimeout, MaxClients: maxClients, Logger: logger,
	})
	return a, err
}

// run runs the agent until ctx is done or a part of it fails.
func (a *agent) run(ctx context.Context) error {
	socket := a.config.File("agent.sock")
	dir, err := openRunDir(socket, func() { a.reconciler.Wake("") }, a.logger)
	if err != nil {
		return err
	}
	defer closeQuietly(dir)
	defer closeQuietly(a.probes)
	var health net.Listener
	if a.config.HTTPAddress != "" {
		if health, err = metrics.Listen(ctx, a.config.HTTPAddress); err != nil {
			return err
		}
	}
	a.logger.Info("agent started", "version", version, "pods", a.source, "socket", socket, "proxySocket", a.config.ProxySocket)

	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return a.reconciler.Run(ctx) })
	group.Go(func() error { return a.watcher.Run(ctx) })
	if !a.guest {
		group.Go(func() error { return a.kernel.run(ctx) })
	}
	group.Go(func() error { return a.unlessUninstalled(ctx, a.probes.Run, a.probes.Remove) })
	if a.listens() {
		group.Go(func() error { return a.proxies.Run(ctx) })
	}
	group.Go(func() error { return a.pods.Run(ctx) })
	group.Go(func() error { return a.plugins.Run(ctx, dir.listener) })
	group.Go(func() error { return dir.run(ctx) })
	group.Go(func() error { return a.announceReady(ctx, dir) })
	group.Go(func() error { return a.keepInstalled(ctx) })
	if a.nodeWriter != nil {
		group.Go(func() error { return a.unlessUninstalled(ctx, a.nodeWriter.Run, a.keepNodeLeft) })
	}
	if health != nil {
		group.Go(func() error { return metrics.Run(ctx, health, a.served()) })
	}
	err = group.Wait()
	if err := errors.Join(err, a.emptyRunDir()); err != nil {
		return err
	}
	a.logger.Info("agent stopped; every pod stays as it is")
	return nil
}

// served is what the agent answers over HTTP.
func (a *agent) served() metrics.Config {
	return metrics.Config{Gatherer: a.registry, Ready: a.ready, Live: a.reconciler.Healthy, Logger: a.logger}
}

// podsChanged is called by the source, with the UID of a pod or for all.
func (a *agent) podsChanged(uid string) {
	a.reconciler.Wake(uid)
	if a.pods.Synced() {
		a.syncedOnce.Do(func() { close(a.synced) })
	}
}

// sourcePatience is how long proxies wait for the source. It has to be longer than an API that
// is there takes to list the node's pods.
const sourcePatience = 5 * time.Second

// announceReady waits until the node's pods are known: those of the source, and
// those that an earlier agent has left, looked at. Then proxies may be told of
// them, the runtime that we are here, and the API what has become of them, from then on.
func (a *agent) announceReady(ctx context.Context, dir *runDir) error {
	if !closed(ctx, a.reconciler.Adopted()) {
		return nil
	}
	patience, over := context.WithTimeout(ctx, sourcePatience)
	defer over()
	if !closed(patience, a.synced) && ctx.Err() == nil && a.reconciler.AllAdopted() {
		a.logger.Warn("what the node's pods are is not known yet: node proxies are told of those on record, which stay as they are", "source", a.source)
		a.reconciler.Seek(ctx) // of the others that are known already proxies keep what they have
		a.proxies.Open()
	}
	if !closed(ctx, a.synced) {
		return nil
	}
	a.judgeDrain(ctx)
	a.reconciler.Seek(ctx)
	a.proxies.Open()
	dir.announceReady()
	close(a.announced)
	if a.writer == nil {
		return nil
	}
	return a.writer.Run(ctx)
}

// closed waits until c is closed, and says whether it was before ctx was done.
func closed(ctx context.Context, c <-chan struct{}) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c:
		return true
	}
}

// ready says why the agent is not ready, or nil. It does not wait for a proxy:
// the proxy's own pod starts through our plugin.
func (a *agent) ready() error {
	if err := a.known(); err != nil {
		return err
	}
	if err := a.kernel.refusal(); err != nil {
		return err
	}
	return a.installed()
}

// nodeReady says why pods cannot start on the node, with a reason of one word. An agent that
// is ready itself may have been told to let none start that asks for capture.
func (a *agent) nodeReady() (reason string, err error) {
	if err := a.known(); err != nil {
		return "Starting", err
	}
	if problem := a.drainProblem(); problem != "" {
		return "Drained", errors.New(problem)
	}
	if err := a.kernel.refusal(); err != nil {
		return "KernelUnsupported", err
	}
	if err := a.installed(); err != nil {
		return "NotInstalled", err
	}
	return "OK", nil
}

// known says what of the node is not known yet, or nil.
func (a *agent) known() error {
	for _, step := range []struct {
		known <-chan struct{}
		not   string
	}{
		{a.synced, "the node's pods are not known yet"},
		{a.reconciler.Adopted(), "the pods of an earlier agent have not all been looked at yet"},
		{a.kernel.once, "whether the kernel can do what captures need has not been tried yet"},
	} {
		select {
		case <-step.known:
		default:
			return errors.New(step.not)
		}
	}
	return nil
}

// proxyPIDs are the processes whose network namespaces are no pod's.
func (a *agent) proxyPIDs() []int {
	var pids []int
	for _, s := range a.proxies.Sessions() {
		pids = append(pids, int(s.PID))
	}
	return pids
}

// node is the head of a status report.
func (a *agent) node() status.Node {
	node := status.Node{
		Version: version, Started: a.started, Source: a.source, Synced: a.pods.Synced(),
		Proxies: []status.Proxy{}, Problems: a.problems(),
	}
	for _, err := range []error{a.kernel.problem(), a.installed()} {
		if err != nil {
			node.Problems = append(node.Problems, err.Error())
		}
	}
	for _, problem := range []string{a.probes.Status().Problem, a.drainProblem(), a.statusProblem()} {
		if problem != "" {
			node.Problems = append(node.Problems, problem)
		}
	}
	for _, s := range a.proxies.Sessions() {
		node.Proxies = append(node.Proxies, status.Proxy{
			Session: s.ID, PID: s.PID, State: string(s.State), Since: s.Since, Workloads: s.Acked,
			EndedBadly: s.EndedBadly, Why: s.Why,
		})
	}
	return node
}

func closeQuietly(c io.Closer) { _ = c.Close() } // the process ends, and the kernel closes it anyway
