package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// An api is an API server of pods, namespaces and events that behaves: versions, watches,
// lists that expire, patches that keep what they do not name, a UID that is checked.
type api struct {
	mu         sync.Mutex
	version    int
	oldest     int // what is older than this has expired
	streaming  bool
	anyCache   bool // somebody has asked for a list that may be old
	pods       map[name]*corev1.Pod
	namespaces map[string]*metav1.PartialObjectMetadata
	events     map[string]*eventsv1.Event
	history    []change
	woken      chan struct{}                        // closed at the next change
	cut        chan struct{}                        // closed when open watches end
	refuse     func(r *http.Request) *metav1.Status // nil: served
	log        []string                             // of requests, but for watches and lists
	agents     map[string]bool                      // the user agents that have asked
}

// A change is what a watch tells.
type change struct {
	version  int
	kind     string // Pod or Namespace
	verb     string
	object   any
	nodeName string
}

func newAPI() *api {
	return &api{
		version: 100, streaming: true, pods: map[name]*corev1.Pod{}, namespaces: map[string]*metav1.PartialObjectMetadata{},
		events: map[string]*eventsv1.Event{}, woken: make(chan struct{}), cut: make(chan struct{}), agents: map[string]bool{},
	}
}

// happen gives the object its version and tells the watches. a.mu is held.
func (a *api) happen(kind, verb string, meta *metav1.ObjectMeta, object any, node string) {
	a.version++
	meta.ResourceVersion = strconv.Itoa(a.version)
	raw, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	a.history = append(a.history, change{a.version, kind, verb, json.RawMessage(raw), node})
	close(a.woken)
	a.woken = make(chan struct{})
}

// pod creates or changes a pod of this node; its UID is uid-NAME unless it is changed.
func (a *api) pod(namespace, podName string, with ...func(*corev1.Pod)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := name{namespace, podName}
	verb, p := "MODIFIED", a.pods[n]
	if p == nil {
		verb = "ADDED"
		p = &corev1.Pod{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: podName, UID: types.UID("uid-" + podName)},
			Spec:       corev1.PodSpec{NodeName: "node1", ServiceAccountName: "sa"},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		}
		a.pods[n] = p
	}
	for _, w := range with {
		w(p)
	}
	a.happen("Pod", verb, &p.ObjectMeta, p, p.Spec.NodeName)
}

func (a *api) deletePod(namespace, podName string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := name{namespace, podName}
	p := a.pods[n]
	delete(a.pods, n)
	a.happen("Pod", "DELETED", &p.ObjectMeta, p, p.Spec.NodeName)
}

func (a *api) namespace(namespace string, labels map[string]string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	verb := "MODIFIED"
	if a.namespaces[namespace] == nil {
		verb = "ADDED"
		a.namespaces[namespace] = &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
			ObjectMeta: metav1.ObjectMeta{Name: namespace, Annotations: map[string]string{"much": "else"}},
		}
	}
	ns := a.namespaces[namespace]
	ns.Labels = labels
	a.happen("Namespace", verb, &ns.ObjectMeta, ns, "")
}

func (a *api) deleteNamespace(namespace string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	ns := a.namespaces[namespace]
	delete(a.namespaces, namespace)
	a.happen("Namespace", "DELETED", &ns.ObjectMeta, ns, "")
}

// cutWatches ends the watches that are open; expire has those that go on from before now
// be refused.
func (a *api) cutWatches(expire bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if expire {
		a.version++
		a.oldest = a.version
	}
	close(a.cut)
	a.cut = make(chan struct{})
}

// refusing has each request be answered with a status, unless it is nil.
func (a *api) refusing(with func(r *http.Request) *metav1.Status) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refuse = with
}

func failure(code int, reason metav1.StatusReason, message string, fields ...string) *metav1.Status {
	details := &metav1.StatusDetails{}
	for _, f := range fields {
		details.Causes = append(details.Causes, metav1.StatusCause{Field: f})
	}
	return &metav1.Status{
		Details:  details,
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: int32(code), Reason: reason, Message: message,
	}
}

// requests returns what was asked since it was last called, but for watches, lists and
// events.
func (a *api) requests() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	lines := slices.DeleteFunc(a.log, func(l string) bool { return strings.Contains(l, "/events.k8s.io/") })
	a.log = nil
	return strings.Join(lines, "\n")
}

// recorded returns the events there are, in the order of their coming.
func (a *api) recorded() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var lines []string
	for _, e := range slices.SortedFunc(maps.Values(a.events), func(a, b *eventsv1.Event) int {
		return cmp.Or(a.EventTime.Compare(b.EventTime.Time), cmp.Compare(a.Name, b.Name))
	}) {
		line := fmt.Sprintf("%s %s %s: %s", e.Type, e.Regarding.Name, e.Reason, e.Note)
		if e.Series != nil {
			line += fmt.Sprintf(" (%d times)", e.Series.Count)
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	path := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	a.mu.Lock()
	a.agents[r.UserAgent()] = true
	if r.Method != http.MethodGet || len(path) > 3 {
		a.log = append(a.log, strings.TrimSpace(r.Method+" "+r.URL.Path+" "+string(body)))
	}
	refuse := a.refuse
	a.mu.Unlock()
	if refuse != nil {
		if status := refuse(r); status != nil {
			answer(w, int(status.Code), status)
			return
		}
	}
	switch {
	case r.URL.Query().Get("watch") == "true":
		a.watch(w, r)
	case r.Method == http.MethodPost || len(path) == 7 && path[1] == "events.k8s.io":
		a.event(w, path, body)
	case r.Method == http.MethodPatch:
		a.patch(w, name{path[3], path[5]}, body)
	case len(path) == 3:
		a.list(w, r)
	default:
		a.get(w, path)
	}
}

func answer(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object)
}

var notFound = failure(http.StatusNotFound, metav1.StatusReasonNotFound, "not found")

func (a *api) get(w http.ResponseWriter, path []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(path) == 4 {
		if ns := a.namespaces[path[3]]; ns != nil {
			answer(w, http.StatusOK, ns)
			return
		}
	} else if p := a.pods[name{path[3], path[5]}]; p != nil {
		answer(w, http.StatusOK, p)
		return
	}
	answer(w, http.StatusNotFound, notFound)
}

func (a *api) list(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}
	if strings.HasSuffix(r.URL.Path, "/namespaces") {
		l := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}, ListMeta: list}
		for _, n := range slices.Sorted(maps.Keys(a.namespaces)) {
			l.Items = append(l.Items, *a.namespaces[n])
		}
		answer(w, http.StatusOK, l)
		return
	}
	l := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: list}
	if r.URL.Query().Get("resourceVersion") == "0" { // any server's cache will do, and this one's is old
		a.anyCache, l.ResourceVersion = true, "1"
		answer(w, http.StatusOK, l)
		return
	}
	for _, p := range a.pods {
		if r.URL.Query().Get("fieldSelector") == "spec.nodeName="+p.Spec.NodeName {
			l.Items = append(l.Items, *p)
		}
	}
	answer(w, http.StatusOK, l)
}

// watch tells of all that happened after a version, and goes on.
func (a *api) watch(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	kind := "Pod"
	if strings.HasSuffix(r.URL.Path, "/namespaces") {
		kind = "Namespace"
	}
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
	if kind == "Namespace" {
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
