package kube

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A node's pods, full of what is not ours, take little, however large their objects are.
func TestObjectsAreNotKept(t *testing.T) {
	s, err := NewSource(SourceConfig{Client: &Client{}, Node: "node1", Changed: func(string) {}, Metrics: NewMetrics(prometheus.NewRegistry()), Logger: (&cluster{}).logger()})
	if err != nil {
		t.Fatal(err)
	}
	// A new object each time, as one that was decoded.
	fat := func(i int) *corev1.Pod {
		text := func(what string) string { return strings.Repeat(fmt.Sprint(what, i), 2000) }
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "shop", Name: fmt.Sprint("web-", i), UID: "u", ResourceVersion: fmt.Sprint(i + 1), Labels: map[string]string{"app": "web"},
				Annotations:   map[string]string{"kubectl.kubernetes.io/last-applied-configuration": text("applied")},
				ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(text("fields"))}},
			},
			Spec:   corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Image: text("image")}}},
			Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Image: text("image")}}},
		}
	}
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	const pods = 250
	for i := range pods {
		if err := (podStore{s}).Add(fat(i)); err != nil {
			t.Fatal(err)
		}
	}
	each := (heap() - before) / pods
	t.Logf("%d bytes are kept of each pod, of objects of more than 60000", each)
	if each > 4000 {
		t.Errorf("%d bytes are kept of each pod", each)
	}
	runtime.KeepAlive(s)
}
