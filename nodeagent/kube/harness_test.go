package kube

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
)

// A cluster is an API server, and a Source that follows it, with a clock of their own.
type cluster struct {
	t        *testing.T
	api      *api
	net      *pipes
	client   *Client
	source   *Source
	logged   netlab.Log
	registry *prometheus.Registry

	mu      sync.Mutex
	changed []string // what the Source has told of
}

// pipes are connections in memory.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}

	mu   sync.Mutex
	open []net.Conn
	away error // why nobody gets through
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}

func (*pipes) Close() error   { return nil }
func (*pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipes"} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	p.mu.Lock()
	away := p.away
	p.mu.Unlock()
	if away != nil {
		return nil, away
	}
	here, there := net.Pipe()
	select {
	case p.conns <- there:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.open = append(p.open, here)
		return here, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-p.done:
		return nil, net.ErrClosed
	}
}

// goAway cuts all connections, and lets nobody in until it is called without an error.
func (p *pipes) goAway(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.away = err
	for _, c := range p.open {
		_ = c.Close()
	}
	p.open = nil
}

// inCluster runs story. Nothing follows the API until start or run is called.
func inCluster(t *testing.T, story func(*cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{t: t, api: newAPI(), registry: prometheus.NewRegistry(), net: &pipes{conns: make(chan net.Conn), done: make(chan struct{})}}
		server := &http.Server{Handler: c.api}
		go func() { _ = server.Serve(c.net) }()
		transport := &http.Transport{DialContext: c.net.dial}
		c.installedAs("fairlead", "agent-x")
		var err error
		if c.client, err = newClient(&rest.Config{Host: "http://api", Transport: transport}, "v1.2.3"); err != nil {
			t.Fatal(err)
		}
		c.source, err = NewSource(SourceConfig{
			Client: c.client, Node: "node1", Agent: types.NamespacedName{Namespace: "system", Name: "agent-x"},
			Changed: c.tell, Metrics: NewMetrics(c.registry), Logger: c.logger(),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			close(c.net.done)
			_ = server.Close()
			transport.CloseIdleConnections()
			synctest.Wait()
		}()
		story(c)
	})
}

// installedAs has the agent's pod be one of a DaemonSet.
func (c *cluster) installedAs(set, pod string) {
	c.api.sets[set] = &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
		ObjectMeta: metav1.ObjectMeta{Name: set, CreationTimestamp: metav1.Date(1999, 1, 2, 3, 4, 5, 0, time.UTC)},
	}
	yes := true
	c.api.pod("system", pod, elsewhere, func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: set, Controller: &yes}}
	})
}

func (c *cluster) logger() *slog.Logger { return slog.New(slog.NewTextHandler(&c.logged, nil)) }

func (c *cluster) tell(uid string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if uid == "" {
		uid = "all"
	}
	c.changed = append(c.changed, uid)
}

// run runs a part until the returned function is called.
func (c *cluster) run(part func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan error)
	go func() { done <- part(ctx) }()
	synctest.Wait()
	return sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
}

// pass lets time go by.
func (c *cluster) pass(d time.Duration) {
	<-time.After(d) // the bubble's clock
	synctest.Wait()
}

// told returns what the Source has told of since it was last asked.
func (c *cluster) told() string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.changed)
	text := strings.Join(slices.Compact(c.changed), " ")
	c.changed = nil
	return text
}

func (c *cluster) wantTold(want string) {
	c.t.Helper()
	if got := c.told(); got != want {
		c.t.Errorf("told of %q, want %q", got, want)
	}
}

// view is all that the Source knows, as text.
func (c *cluster) view() string {
	synctest.Wait()
	lines := []string{fmt.Sprintf("synced %v", c.source.Synced())}
	for _, p := range c.source.Pods() {
		_, ns, ok := c.source.Lookup(p.Namespace, p.Name)
		line := fmt.Sprintf("%s/%s %s %v", p.Namespace, p.Name, p.UID, p.Labels)
		if ok {
			line += fmt.Sprintf(" in %v", ns.Labels)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func (c *cluster) wantView(want ...string) {
	c.t.Helper()
	if got := c.view(); got != strings.Join(want, "\n") {
		c.t.Errorf("the source knows:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
}

var ambient = map[string]string{intent.LabelMode: intent.ModeAmbient}

func labelled(p *corev1.Pod)   { p.Labels = ambient }
func elsewhere(p *corev1.Pod)  { p.Spec.NodeName = "node2" }
func renewed(p *corev1.Pod)    { p.UID += "-2" }
func unlabelled(p *corev1.Pod) { p.Labels = nil }
