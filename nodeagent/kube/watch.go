package kube

import (
	"context"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

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
	client := s.config.Client.metadata.Resource(namespacesResource)
	return s.observed(resourceNamespaces, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, o)
		},
	})
}

func (s *Source) watchClasses() *cache.ListWatch {
	return s.observed(resourceClasses, &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := &nodev1.RuntimeClassList{}
			return list, s.config.Client.node.Get().Resource(resourceClasses).VersionedParams(&o, s.config.Client.parameters).Do(ctx).Into(list)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			return s.config.Client.node.Get().Resource(resourceClasses).VersionedParams(&o, s.config.Client.parameters).Watch(ctx)
		},
	})
}

// The resources that are watched.
const (
	resourcePods       = "pods"
	resourceNamespaces = "namespaces"
	resourceClasses    = "runtimeclasses"
)

// answered takes in how a request ended. Where runtime classes may not be read they go by
// their names alone: no pod is to wait for them.
func (s *Source) answered(ctx context.Context, resource string, err error) {
	s.outage.note(ctx, resource, err)
	if resource == resourceClasses && refuses(err) {
		s.hasListed(resource)
	}
}

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
			s.answered(ctx, resource, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := lw.WatchFuncWithContext(ctx, o)
			if o.SendInitialEvents == nil || !notUnderstood(err) {
				s.answered(ctx, resource, err)
			}
			return w, err
		},
	}
}
