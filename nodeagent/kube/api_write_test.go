package kube

import (
	"encoding/json"
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// patch merges what the agent's patches hold, as a strategic merge patch of pods/status
// is merged: annotations by key, conditions by type.
func (a *api) patch(w http.ResponseWriter, n name, body []byte) {
	var patch struct {
		Metadata struct {
			UID         types.UID
			Annotations map[string]*string
		}
		Status struct{ Conditions []corev1.PodCondition }
	}
	if err := json.Unmarshal(body, &patch); err != nil {
		panic(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[n]
	switch {
	case p == nil:
		answer(w, http.StatusNotFound, notFound)
		return
	case p.UID != patch.Metadata.UID:
		answer(w, http.StatusUnprocessableEntity, failure(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "field is immutable", "metadata.uid"))
		return
	}
	p = p.DeepCopy()
	a.pods[n] = p
	for key, value := range patch.Metadata.Annotations {
		if value == nil {
			delete(p.Annotations, key)
		} else {
			metav1.SetMetaDataAnnotation(&p.ObjectMeta, key, *value)
		}
	}
	for _, c := range patch.Status.Conditions {
		i := slices.IndexFunc(p.Status.Conditions, func(have corev1.PodCondition) bool { return have.Type == c.Type })
		if i < 0 {
			p.Status.Conditions = append(p.Status.Conditions, c)
		} else {
			p.Status.Conditions[i] = c
		}
	}
	a.happen("Pod", "MODIFIED", &p.ObjectMeta, p, p.Spec.NodeName)
	answer(w, http.StatusOK, p)
}

// event creates an event, or changes the series of one.
func (a *api) event(w http.ResponseWriter, path []string, body []byte) {
	var e eventsv1.Event
	if err := json.Unmarshal(body, &e); err != nil {
		panic(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(path) == 7 {
		known := a.events[path[6]]
		if known == nil {
			answer(w, http.StatusNotFound, notFound)
			return
		}
		known.Series = e.Series
		answer(w, http.StatusOK, known)
		return
	}
	a.events[e.Name] = &e
	answer(w, http.StatusCreated, &e)
}
