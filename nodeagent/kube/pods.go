package kube

import (
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
)

// What the agent writes about a pod.
const (
	Annotation = "ambient.istio.io/redirection"
	Condition  = "fairlead.io/Captured"

	ourPrefix = "fairlead.io/"
)

// A name is a pod's, which others may have had before it.
type name struct{ namespace, name string }

func (n name) String() string { return n.namespace + "/" + n.name }

// A pod is what is kept of a pod's object. It does not change.
type pod struct {
	intent.Pod
	version string // of the object
	gated   bool   // it waits for our condition before it is ready
	stands  report // what the API shows of it
}

// A report is what the API shows, or should show, of a pod's capture.
type report struct {
	annotation string // empty: absent
	condition  corev1.PodCondition
}

// A pod without the condition has one without a type.
func (r report) hasCondition() bool { return r.condition.Type != "" }

func (p *pod) name() name { return name{p.Namespace, p.Name} }

// podOf keeps what is needed of a pod's object.
func podOf(o *corev1.Pod) *pod {
	p := &pod{
		Pod: intent.Pod{
			Namespace: o.Namespace, Name: o.Name, UID: string(o.UID),
			ServiceAccount: o.Spec.ServiceAccountName,
			Labels:         o.Labels, Annotations: ours(o.Annotations),
			HostNetwork: o.Spec.HostNetwork, Phase: string(o.Status.Phase),
			Deleting: o.DeletionTimestamp != nil,
		},
		version: o.ResourceVersion,
		gated:   slices.ContainsFunc(o.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return g.ConditionType == Condition }),
	}
	if class := o.Spec.RuntimeClassName; class != nil {
		p.RuntimeClass = *class
	}
	for _, ip := range o.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			p.IPs = append(p.IPs, addr)
		}
	}
	p.stands.annotation = o.Annotations[Annotation]
	for _, c := range o.Status.Conditions {
		if c.Type == Condition {
			p.stands.condition = c
		}
	}
	return p
}

// read are the annotations that a decision looks at, beside our own.
var read = []string{
	intent.AnnotationSidecar, intent.AnnotationIngress, intent.AnnotationDNS, intent.AnnotationVirtual, intent.AnnotationConfigHash,
}

// ours are the annotations that the agent looks at.
func ours(all map[string]string) map[string]string {
	var kept map[string]string
	for key, value := range all {
		if slices.Contains(read, key) || strings.HasPrefix(key, ourPrefix) {
			if kept == nil {
				kept = map[string]string{}
			}
			kept[key] = value
		}
	}
	return kept
}

// newer reports whether version a of an object is newer than b. Versions that cannot be
// compared are taken as they come.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err != nil || order > 0
}

// podStore is where a reflector puts what it hears of the node's pods.
type podStore struct{ s *Source }

func (t podStore) Add(o any) error { return t.Update(o) }

func (t podStore) Update(o any) error {
	if object, ok := o.(*corev1.Pod); ok {
		t.s.change(func() []*pod { return t.s.put(podOf(object)) })
	}
	return nil
}

func (t podStore) Delete(o any) error {
	if object, ok := o.(*corev1.Pod); ok {
		t.s.change(func() []*pod { return t.s.remove(name{object.Namespace, object.Name}, object.UID) })
	}
	return nil
}

func (t podStore) Replace(list []any, version string) error {
	t.s.change(func() []*pod { return t.s.replace(list, version) })
	t.s.hasListed(resourcePods)
	return nil
}

func (t podStore) UpdateResourceVersion(version string) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	t.s.version = version
}

func (podStore) Resync() error { return nil }

// Transformer drops what is not kept while a list is still coming in.
func (podStore) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		object, ok := o.(*corev1.Pod)
		if !ok {
			return o, nil
		}
		object.ManagedFields = nil
		object.Spec = corev1.PodSpec{
			ServiceAccountName: object.Spec.ServiceAccountName, HostNetwork: object.Spec.HostNetwork,
			NodeName: object.Spec.NodeName, RuntimeClassName: object.Spec.RuntimeClassName, ReadinessGates: object.Spec.ReadinessGates,
		}
		object.Status = corev1.PodStatus{Phase: object.Status.Phase, PodIPs: object.Status.PodIPs, Conditions: object.Status.Conditions}
		return object, nil
	}
}

// put makes p the pod of its name, and tells the Writer, unless a newer version of it, or its successor, is
// known: what we were told in answer to a request may be ahead of what is watched. It
// returns the pods of which a decision may be different now. s.mu is held.
func (s *Source) put(p *pod) []*pod {
	was := s.pods[p.name()]
	if was != nil && was.version != p.version && !newer(p.version, was.version) {
		return nil
	}
	s.pods[p.name()] = p
	s.noticed(p)
	switch {
	case was == nil:
		return []*pod{p}
	case was.UID != p.UID:
		return []*pod{was, p}
	case reflect.DeepEqual(was.Pod, p.Pod):
		return nil
	}
	return []*pod{p}
}

// remove forgets a pod, and leaves alone who has its name now. s.mu is held.
func (s *Source) remove(n name, uid types.UID) []*pod {
	was := s.pods[n]
	if was == nil || was.UID != string(uid) {
		return nil
	}
	delete(s.pods, n)
	return []*pod{was}
}

// replace makes the list all pods of the node, but for those that are newer than it.
// s.mu is held.
func (s *Source) replace(list []any, version string) []*pod {
	var changed []*pod
	listed := map[name]bool{}
	for _, o := range list {
		if object, ok := o.(*corev1.Pod); ok {
			p := podOf(object)
			listed[p.name()] = true
			changed = append(changed, s.put(p)...)
		}
	}
	for n, p := range s.pods {
		if !listed[n] && !newer(p.version, version) {
			changed = append(changed, s.remove(n, types.UID(p.UID))...)
		}
	}
	s.version = version
	return changed
}

// learn takes in a pod's object that was the answer to a request. If it is not known and
// older than what is watched, it has been deleted meanwhile.
func (s *Source) learn(object *corev1.Pod) {
	s.change(func() []*pod {
		p := podOf(object)
		if s.pods[p.name()] == nil && !s.unlisted[resourcePods] && !newer(p.version, s.version) {
			return nil
		}
		return s.put(p)
	})
}

// namespaceStore is where a reflector puts what it hears of the cluster's namespaces.
type namespaceStore struct{ s *Source }

func (t namespaceStore) Add(o any) error { return t.Update(o) }

func (t namespaceStore) Update(o any) error {
	if object, ok := o.(*metav1.PartialObjectMetadata); ok {
		t.s.change(func() []*pod { return t.s.putNamespace(object) })
	}
	return nil
}

func (t namespaceStore) Delete(o any) error {
	if object, ok := o.(*metav1.PartialObjectMetadata); ok {
		t.s.change(func() []*pod {
			delete(t.s.namespaces, object.Name)
			return t.s.podsIn(object.Name)
		})
	}
	return nil
}

func (t namespaceStore) Replace(list []any, _ string) error {
	t.s.change(func() []*pod {
		var changed []*pod
		listed := map[string]bool{}
		for _, o := range list {
			if object, ok := o.(*metav1.PartialObjectMetadata); ok {
				listed[object.Name] = true
				changed = append(changed, t.s.putNamespace(object)...)
			}
		}
		for name := range t.s.namespaces {
			if !listed[name] {
				delete(t.s.namespaces, name)
				changed = append(changed, t.s.podsIn(name)...)
			}
		}
		return changed
	})
	t.s.hasListed(resourceNamespaces)
	return nil
}

func (namespaceStore) Resync() error { return nil }

// putNamespace returns the pods whose namespace is different now. s.mu is held.
func (s *Source) putNamespace(object *metav1.PartialObjectMetadata) []*pod {
	now := intent.Namespace{Name: object.Name, Labels: object.Labels, Annotations: ours(object.Annotations)}
	was, known := s.namespaces[now.Name]
	if known && reflect.DeepEqual(was, now) {
		return nil
	}
	s.namespaces[now.Name] = now
	return s.podsIn(now.Name)
}

// podsIn returns the node's pods in a namespace. s.mu is held.
func (s *Source) podsIn(namespace string) []*pod {
	var pods []*pod
	for n, p := range s.pods {
		if n.namespace == namespace {
			pods = append(pods, p)
		}
	}
	return pods
}
