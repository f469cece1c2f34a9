package kube

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// kindOf is what a request lists or watches.
func kindOf(r *http.Request) string {
	switch {
	case strings.HasSuffix(r.URL.Path, "/namespaces"):
		return "Namespace"
	case strings.HasSuffix(r.URL.Path, "/runtimeclasses"):
		return "RuntimeClass"
	}
	return "Pod"
}

// watch tells of all that happened after a version, and goes on.
func (a *api) watch(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	kind := kindOf(r)
	a.mu.Lock()
	after, _ := strconv.Atoi(query.Get("resourceVersion"))
	initial := query.Get("sendInitialEvents") == "true"
	if initial && !a.streaming {
		a.mu.Unlock()
		answer(w, http.StatusUnprocessableEntity, failure(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "sendInitialEvents: Forbidden"))
		return
	}
	if !initial && after < a.oldest {
		a.mu.Unlock()
		answer(w, http.StatusGone, failure(http.StatusGone, metav1.StatusReasonExpired, "too old resource version"))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	send := func(verb string, object any) {
		_ = json.NewEncoder(w).Encode(map[string]any{"type": verb, "object": object})
	}
	if initial {
		a.sendAll(kind, query.Get("fieldSelector"), send)
		after = a.version
	}
	cut := a.cut
	for {
		for _, c := range a.history {
			if c.version > after && c.kind == kind && (c.nodeName == "" || query.Get("fieldSelector") == "spec.nodeName="+c.nodeName) {
				send(c.verb, c.object)
			}
		}
		after = a.version
		woken := a.woken
		a.mu.Unlock()
		w.(http.Flusher).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-cut:
			return
		case <-woken:
		}
		a.mu.Lock()
	}
}

// sendAll tells of all there is, and that this was all. a.mu is held.
func (a *api) sendAll(kind, selector string, send func(string, any)) {
	end := metav1.ObjectMeta{ResourceVersion: strconv.Itoa(a.version), Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"}}
	switch kind {
	case "RuntimeClass":
		for _, c := range a.classes {
			send("ADDED", c)
		}
		send("BOOKMARK", nodev1.RuntimeClass{TypeMeta: metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClass"}, ObjectMeta: end})
		return
	case "Namespace":
		for _, ns := range a.namespaces {
			send("ADDED", ns)
		}
		send("BOOKMARK", metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: end})
		return
	}
	for _, p := range a.pods {
		if selector == "spec.nodeName="+p.Spec.NodeName {
			send("ADDED", p)
		}
	}
	send("BOOKMARK", corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: end})
}
