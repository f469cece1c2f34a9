package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
)

// SourceConfig is what a Source needs. All of it is required.
type SourceConfig struct {
	Client *Client
	Node   string // the name of this node's object
	// Changed is called when a pod is different, by the UID that the runtime knows it
	// by, or, with an empty one, when all of them may be. It must not block.
	Changed func(uid string)
	Logger  *slog.Logger
}

// A Source knows this node's pods, and the cluster's namespaces.
type Source struct {
	config SourceConfig
	outage *outage
	// noticed is called with each version of a pod, while mu is held; the Writer's.
	noticed func(*pod)

	mu                           sync.Mutex
	pods                         map[name]*pod
	namespaces                   map[string]intent.Namespace
	version                      string // of the pods: what is watched has come so far
	podsListed, namespacesListed bool
}

// NewSource validates the configuration.
func NewSource(c SourceConfig) (*Source, error) {
	if c.Client == nil || c.Changed == nil || c.Logger == nil {
		return nil, errors.New("cannot follow the node's pods: a part of the configuration is missing")
	}
	if c.Node == "" {
		return nil, errors.New("cannot follow the node's pods: the node's name is not known; " +
			"set nodeName in the configuration, or NODE_NAME in the environment (in a pod: from the field spec.nodeName)")
	}
	return &Source{
		config: c, outage: newOutage(c.Client.host, c.Logger), noticed: func(*pod) {},
		pods: map[name]*pod{}, namespaces: map[string]intent.Namespace{},
	}, nil
}

// Run follows the API until ctx is done.
func (s *Source) Run(ctx context.Context) error {
	// What the library would log is in outage.
	ctx = logr.NewContext(ctx, logr.Discard())
	var running sync.WaitGroup
	running.Go(func() { follow(ctx, s.watchPods(), &corev1.Pod{}, podStore{s}) })
	running.Go(func() { follow(ctx, s.watchNamespaces(), &metav1.PartialObjectMetadata{}, namespaceStore{s}) })
	running.Wait()
	return nil
}

// Pauses between attempts while the API is away. Each is up to twice as long, by chance.
const (
	firstPause = 500 * time.Millisecond
	mostPause  = 10 * time.Second
)

// follow lists and watches until ctx is done. How each request ends the outage knows.
func follow(ctx context.Context, from cache.ListerWatcher, kind runtime.Object, into cache.ReflectorStore) {
	pauses := wait.Backoff{Duration: firstPause, Cap: mostPause, Steps: math.MaxInt32, Factor: 2, Jitter: 1}
	reflector := cache.NewReflectorWithOptions(from, kind, into, cache.ReflectorOptions{Name: "fairlead", Backoff: &pauses})
	pause := pauses
	for ctx.Err() == nil {
		began := time.Now()
		_ = reflector.ListAndWatchWithContext(ctx)
		if time.Since(began) > mostPause {
			pause = pauses
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause.Step()):
		}
	}
}

// listTimeout bounds one part of a list; a watch has its own end.
const listTimeout = time.Minute

func (s *Source) watchPods() *cache.ListWatch {
	mine := fields.OneTermEqualSelector("spec.nodeName", s.config.Node).String()
	return s.observed(resourcePods, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = mine
			list := &corev1.PodList{}
			return list, s.config.Client.core.Get().Resource("pods").VersionedParams(&o, s.config.Client.parameters).Do(ctx).Into(list)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector, o.Watch = mine, true
			return s.config.Client.core.Get().Resource("pods").VersionedParams(&o, s.config.Client.parameters).Watch(ctx)
		},
	})
}

func (s *Source) watchNamespaces() *cache.ListWatch {
	client := s.config.Client.metadata.Resource(corev1.SchemeGroupVersion.WithResource(resourceNamespaces))
	return s.observed(resourceNamespaces, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, o)
		},
	})
}

// The resources that are watched.
const (
	resourcePods       = "pods"
	resourceNamespaces = "namespaces"
)

// observed has the outage know how each request ends.
func (s *Source) observed(resource string, lw *cache.ListWatch) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			// Any server's cache would do for "0", and it may be one that lags: a label
			// that is not there yet must not release a pod.
			if o.ResourceVersion == "0" {
				o.ResourceVersion = ""
			}
			ctx, cancel := context.WithTimeout(ctx, listTimeout)
			defer cancel()
			list, err := lw.ListWithContextFunc(ctx, o)
			s.outage.note(ctx, resource, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := lw.WatchFuncWithContext(ctx, o)
			if o.SendInitialEvents == nil || !notUnderstood(err) {
				s.outage.note(ctx, resource, err)
			}
			return w, err
		},
	}
}

// Synced reports whether all of the node's pods and their namespaces are known. Once
// they are, they stay so while the API is away.
func (s *Source) Synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.podsListed && s.namespacesListed
}

// Lookup returns a pod and its namespace by name, and whether both are known.
func (s *Source) Lookup(namespace, podName string) (intent.Pod, intent.Namespace, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := s.pods[name{namespace, podName}]
	if !ok {
		return intent.Pod{}, intent.Namespace{}, false
	}
	ns, ok := s.namespaces[namespace]
	return p.Pod, ns, ok
}

// Pods returns the node's pods, sorted by namespace and name.
func (s *Source) Pods() []intent.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	pods := make([]intent.Pod, 0, len(s.pods))
	for _, p := range s.pods {
		pods = append(pods, p.Pod)
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

// Problems returns what is wrong between the agent and the API now, a line each.
func (s *Source) Problems() []string { return s.outage.problems() }

// Fetch asks the API for a pod that is not known yet, and for its namespace, once.
func (s *Source) Fetch(ctx context.Context, namespace, podName string) error {
	object := &corev1.Pod{}
	err := s.config.Client.core.Get().Namespace(namespace).Resource("pods").Name(podName).Do(ctx).Into(object)
	switch {
	case err != nil:
		return fmt.Errorf("cannot get pod %s/%s from the API: %w", namespace, podName, err)
	case object.Spec.NodeName != s.config.Node:
		return fmt.Errorf("cannot take pod %s/%s for this node's: its object names node %q, this is node %q",
			namespace, podName, object.Spec.NodeName, s.config.Node)
	}
	if !s.hasNamespace(namespace) {
		ns, err := s.config.Client.metadata.Resource(corev1.SchemeGroupVersion.WithResource(resourceNamespaces)).Get(ctx, namespace, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("cannot get namespace %s from the API: %w", namespace, err)
		}
		s.change(func() []*pod {
			if _, known := s.namespaces[namespace]; known {
				return nil // what is watched was faster, and is not older
			}
			return s.putNamespace(ns)
		})
	}
	s.learn(object)
	return nil
}

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

// markSynced notes a first list, and tells when it was the last one that was missing.
func (s *Source) markSynced(listed *bool) {
	s.mu.Lock()
	first := !*listed
	*listed = true
	synced := s.podsListed && s.namespacesListed
	s.mu.Unlock()
	if first && synced {
		s.config.Changed("")
	}
}
