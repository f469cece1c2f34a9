package kube

import (
	nodev1 "k8s.io/api/node/v1"
)

// classStore is where a reflector puts what it hears of the cluster's runtime classes. A
// class that is deleted is remembered: its pods run on, under the handler that they began
// with.
type classStore struct{ s *Source }

func (t classStore) Add(o any) error { return t.Update(o) }

func (t classStore) Update(o any) error {
	if object, ok := o.(*nodev1.RuntimeClass); ok {
		t.s.change(func() []*pod { return t.s.putClass(object) })
	}
	return nil
}

func (classStore) Delete(any) error { return nil }

func (t classStore) Replace(list []any, _ string) error {
	for _, o := range list {
		_ = t.Update(o) // it never fails
	}
	t.s.hasListed(resourceClasses)
	return nil
}

func (classStore) Resync() error { return nil }

// putClass returns the pods whose handler is another now. s.mu is held.
func (s *Source) putClass(object *nodev1.RuntimeClass) []*pod {
	if s.handlers[object.Name] == object.Handler {
		return nil
	}
	s.handlers[object.Name] = object.Handler
	var pods []*pod
	for _, p := range s.pods {
		if p.RuntimeClass == object.Name {
			pods = append(pods, p)
		}
	}
	return pods
}
