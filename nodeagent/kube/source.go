package kube

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
)

// SourceConfig is what a Source needs. All of it but Agent is required.
type SourceConfig struct {
	Client *Client
	Node   string // the name of this node's object
	// Agent is the agent's own pod, whose DaemonSet tells when the agent was installed in
	// the cluster. Without a name that is not asked.
	Agent types.NamespacedName
	// Changed is called when a pod is different, by the UID that the runtime knows it
	// by, or, with an empty one, when all of them may be. It must not block.
	Changed func(uid string)
	Metrics *Metrics
	Logger  *slog.Logger
}

// A Source knows this node's pods, and the cluster's namespaces and runtime classes.
type Source struct {
	config SourceConfig
	outage *outage
	// noticed is called with each version of a pod, while mu is held; the Writer's.
	noticed func(*pod)

	mu         sync.Mutex
	pods       map[name]*pod
	version    string // of the pods: what is watched has come so far
	namespaces map[string]intent.Namespace
	handlers   map[string]string // by runtime class
	unlisted   map[string]bool   // resources of which not all is known yet
	listed     chan struct{}     // closed when there are none
	synced     bool
	installed  time.Time
	unfetched  map[name]error // why pods that were asked for are not known
}

// NewSource validates the configuration.
func NewSource(c SourceConfig) (*Source, error) {
	if c.Client == nil || c.Changed == nil || c.Metrics == nil || c.Logger == nil {
		return nil, errors.New("cannot follow the node's pods: a part of the configuration is missing")
	}
	if c.Node == "" {
		return nil, errors.New("cannot follow the node's pods: the node's name is not known; " +
			"set nodeName in the configuration, or NODE_NAME in the environment (in a pod: from the field spec.nodeName)")
	}
	return &Source{
		config: c, outage: newOutage(c.Client.host, c.Metrics, c.Logger), noticed: func(*pod) {},
		pods: map[name]*pod{}, namespaces: map[string]intent.Namespace{}, handlers: map[string]string{},
		unlisted: map[string]bool{resourcePods: true, resourceNamespaces: true, resourceClasses: true}, listed: make(chan struct{}),
		unfetched: map[name]error{},
	}, nil
}

// Run follows the API until ctx is done.
func (s *Source) Run(ctx context.Context) error {
	// What the library would log is in outage.
	ctx = logr.NewContext(ctx, logr.Discard())
	var running sync.WaitGroup
	running.Go(func() { follow(ctx, s.watchPods(), &corev1.Pod{}, podStore{s}) })
	running.Go(func() { follow(ctx, s.watchNamespaces(), &metav1.PartialObjectMetadata{}, namespaceStore{s}) })
	running.Go(func() { follow(ctx, s.watchClasses(), &nodev1.RuntimeClass{}, classStore{s}) })
	running.Go(func() { s.sync(ctx) })
	running.Wait()
	return nil
}

// sync tells that all of the node's pods are known, once they are.
func (s *Source) sync(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-s.listed:
	}
	installed := s.askInstalled(ctx) // before any pod is looked for that may be younger
	if ctx.Err() != nil {
		return
	}
	s.mu.Lock()
	first := !s.synced
	s.synced, s.installed = true, installed
	s.mu.Unlock()
	if first {
		s.config.Changed("")
	}
}

// Synced reports whether all of the node's pods and their namespaces are known. Once
// they are, they stay so while the API is away.
func (s *Source) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced
}

// Lookup returns a pod and its namespace by name, and whether all that it takes to decide
// about it is known.
func (s *Source) Lookup(namespace, podName string) (intent.Pod, intent.Namespace, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pods[name{namespace, podName}]
	if !ok {
		return intent.Pod{}, intent.Namespace{}, false
	}
	ns, ok := s.namespaces[namespace]
	return s.asked(p), ns, ok && (p.RuntimeClass == "" || !s.unlisted[resourceClasses])
}

// asked is what the pod asks for, with the handler of its runtime class. s.mu is held.
func (s *Source) asked(p *pod) intent.Pod {
	asked := p.Pod
	asked.RuntimeHandler = s.handlers[p.RuntimeClass]
	return asked
}

// Pods returns the node's pods, sorted by namespace and name.
func (s *Source) Pods() []intent.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	pods := make([]intent.Pod, 0, len(s.pods))
	for _, p := range s.pods {
		pods = append(pods, s.asked(p))
	}
	slices.SortFunc(pods, func(a, b intent.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return pods
}

// Shown returns the redirection annotation that the API shows of a pod, empty if it has
// none, and whether that is known.
func (s *Source) Shown(namespace, podName, uid string) (annotation string, known bool) {
	p := s.pod(name{namespace, podName})
	if p == nil || !p.Is(uid) {
		return "", false
	}
	return p.stands.annotation, true
}

// Advertises says whether the API tells peers to speak HBONE to the pod.
func (s *Source) Advertises(namespace, podName, uid string) bool {
	annotation, known := s.Shown(namespace, podName, uid)
	return known && annotation == enabled
}

// Problems returns what is wrong between the agent and the API now, a line each.
func (s *Source) Problems() []string { return s.outage.problems() }

func (s *Source) hasNamespace(namespace string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.namespaces[namespace]
	return known
}

// pod returns the pod that has the name now, or nil.
func (s *Source) pod(n name) *pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pods[n]
}

// change lets the view be changed, and then tells of the pods that are different.
func (s *Source) change(with func() []*pod) {
	s.mu.Lock()
	changed := with()
	s.mu.Unlock()
	for _, p := range changed {
		s.config.Changed(p.RuntimeUID())
	}
}

// hasListed notes that all of a resource is known, or as much as ever will be.
func (s *Source) hasListed(resource string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.unlisted[resource] {
		return
	}
	delete(s.unlisted, resource)
	if len(s.unlisted) == 0 {
		close(s.listed)
	}
}
