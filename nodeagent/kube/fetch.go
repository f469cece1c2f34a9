package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// Expect has the API asked for a pod, once, if the watch has not told of it when half of a
// wait is over: the runtime starts it. Why that came to nothing is known to Unread before the
// wait is over, and until the returned function is called.
func (s *Source) Expect(ctx context.Context, namespace, podName, uid string, wait time.Duration) (stop func()) {
	n := name{namespace, podName}
	ctx, cancel := context.WithTimeout(ctx, wait*9/10)
	stopped := false // s.mu guards it; ctx does not tell once its time is up
	ask := time.AfterFunc(wait/2, func() {
		if p, _, ok := s.Lookup(namespace, podName); ok && p.Is(uid) || ctx.Err() != nil {
			return
		}
		err := s.fetch(ctx, n)
		for again(ctx, err) {
			err = s.fetch(ctx, n)
		}
		s.mu.Lock()
		if err == nil || stopped || errors.Is(ctx.Err(), context.Canceled) {
			s.mu.Unlock()
			return
		}
		s.unfetched[n] = err
		s.mu.Unlock()
		s.config.Changed(uid)
	})
	return func() {
		ask.Stop()
		cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		stopped = true
		delete(s.unfetched, n)
	}
}

// again waits for as long as an API server that has too much to do asks for. If that is
// longer than ctx lasts, its words are worth more.
func again(ctx context.Context, err error) bool {
	seconds, busy := apierrors.SuggestsClientDelay(err)
	pause := time.Duration(seconds) * time.Second
	if deadline, _ := ctx.Deadline(); !busy || pause > time.Until(deadline) {
		return false
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

// Unread says why a pod that Lookup does not know may be there even so, or what the API
// said when it was asked for that pod. No reason: what Lookup does not know is not there.
func (s *Source) Unread(namespace, podName string) (reason status.Reason, why string) {
	s.mu.Lock()
	err := s.unfetched[name{namespace, podName}]
	s.mu.Unlock()
	var other notOurs
	switch {
	case err == nil:
		if why := s.outage.blinds(); why != "" {
			return status.APIUnavailable, why
		}
		return "", ""
	case apierrors.IsNotFound(err), errors.As(err, &other):
		return status.PodUnknown, err.Error()
	}
	return status.APIUnavailable, err.Error() + " (" + remedy(err, "get pods and namespaces") + ")"
}

// notOurs is why a pod is not one of this node's.
type notOurs struct {
	pod          name
	theirs, ours string
}

func (e notOurs) Error() string {
	return fmt.Sprintf("cannot take pod %s for this node's: its object names node %q, this is node %q", e.pod, e.theirs, e.ours)
}

// fetch asks the API for a pod that is not known yet, and for its namespace, once.
func (s *Source) fetch(ctx context.Context, n name) error {
	client := s.config.Client
	object := &corev1.Pod{}
	err := client.core.Get().MaxRetries(0).Namespace(n.namespace).Resource("pods").Name(n.name).Do(ctx).Into(object)
	switch {
	case err != nil:
		return fmt.Errorf("cannot get pod %s from the API at %s: %w", n, client.host, plain(err))
	case object.Spec.NodeName != s.config.Node:
		return notOurs{n, object.Spec.NodeName, s.config.Node}
	}
	if !s.hasNamespace(n.namespace) {
		ns, err := client.metadata.Resource(namespacesResource).Get(ctx, n.namespace, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("cannot get namespace %s from the API at %s: %w", n.namespace, client.host, plain(err))
		}
		s.change(func() []*pod {
			if _, known := s.namespaces[n.namespace]; known {
				return nil // what is watched was faster, and is not older
			}
			return s.putNamespace(ns)
		})
	}
	s.learn(object)
	return nil
}

var (
	namespacesResource = corev1.SchemeGroupVersion.WithResource(resourceNamespaces)
	podsResource       = corev1.SchemeGroupVersion.WithResource(resourcePods)
	daemonSetsResource = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}
)
