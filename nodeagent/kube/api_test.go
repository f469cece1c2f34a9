package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	nodev1 "k8s.io/api/node/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// An api is an API server of pods, namespaces, runtime classes, nodes and events that behaves: versions, watches,
// lists that expire, patches that keep what they do not name, a UID that is checked.
type api struct {
	mu         sync.Mutex
	version    int
	oldest     int // what is older than this has expired
	streaming  bool
	anyCache   bool // somebody has asked for a list that may be old
	pods       map[name]*corev1.Pod
	nodes      map[string]*corev1.Node
	oldNodes   map[string]*corev1.Node // what a server's cache has that lags, if one does
	namespaces map[string]*metav1.PartialObjectMetadata
	classes    map[string]*nodev1.RuntimeClass
	sets       map[string]*metav1.PartialObjectMetadata // the DaemonSets
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
	kind     string // Pod, Namespace or RuntimeClass
	verb     string
	object   any
	nodeName string
}

func newAPI() *api {
	return &api{
		version: 100, streaming: true, pods: map[name]*corev1.Pod{}, nodes: map[string]*corev1.Node{}, namespaces: map[string]*metav1.PartialObjectMetadata{},
		classes: map[string]*nodev1.RuntimeClass{}, sets: map[string]*metav1.PartialObjectMetadata{},
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

// class creates a runtime class, or changes its handler.
func (a *api) class(class, handler string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	verb := "MODIFIED"
	if a.classes[class] == nil {
		verb = "ADDED"
	}
	c := &nodev1.RuntimeClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClass"},
		ObjectMeta: metav1.ObjectMeta{Name: class}, Handler: handler,
	}
	a.classes[class] = c
	a.happen("RuntimeClass", verb, &c.ObjectMeta, c, "")
}

func (a *api) deleteClass(class string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.classes[class]
	delete(a.classes, class)
	a.happen("RuntimeClass", "DELETED", &c.ObjectMeta, c, "")
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
	if r.Method != http.MethodGet || len(path) > 4 {
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
	case len(path) > 2 && path[2] == "nodes":
		a.serveNode(w, r, path, body)
	case r.Method == http.MethodPatch:
		a.patch(w, name{path[3], path[5]}, body)
	case len(path) == 3 || kindOf(r) == "RuntimeClass":
		a.list(w, r)
	default:
		a.get(w, r, path)
	}
}

func answer(w http.ResponseWriter, code int, object any) {
	w.Header().Set("Content-Type", "application/json")
	if s, ok := object.(*metav1.Status); ok && s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object)
}

var notFound = failure(http.StatusNotFound, metav1.StatusReasonNotFound, "not found")

// cutOut leaves the part of a list that is asked for, unless it goes on with one that has
// expired. a.mu is held.
func (a *api) cutOut(l *corev1.PodList, query url.Values) *metav1.Status {
	from := 0
	if token := query.Get("continue"); token != "" {
		var version int
		if _, err := fmt.Sscanf(token, "%d@%d", &from, &version); err != nil {
			panic(err)
		}
		if version < a.oldest {
			return failure(http.StatusGone, metav1.StatusReasonExpired, "the provided continue parameter is too old")
		}
	}
	l.Items = l.Items[from:]
	if limit, _ := strconv.Atoi(query.Get("limit")); limit > 0 && limit < len(l.Items) {
		l.Items = l.Items[:limit]
		l.Continue = fmt.Sprintf("%d@%d", from+limit, a.version)
	}
	return nil
}

func (a *api) get(w http.ResponseWriter, r *http.Request, path []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch last := path[len(path)-1]; {
	case len(path) == 4 && a.namespaces[last] != nil:
		answer(w, http.StatusOK, a.namespaces[last])
	case len(path) == 7 && path[1] == "apps" && a.sets[last] != nil:
		answer(w, http.StatusOK, a.sets[last])
	case len(path) == 6 && a.pods[name{path[3], last}] != nil:
		p := a.pods[name{path[3], last}]
		if strings.Contains(r.Header.Get("Accept"), "PartialObjectMetadata") {
			answer(w, http.StatusOK, &metav1.PartialObjectMetadata{
				TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"}, ObjectMeta: p.ObjectMeta,
			})
			return
		}
		answer(w, http.StatusOK, p)
	default:
		answer(w, http.StatusNotFound, notFound)
	}
}

func (a *api) list(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := metav1.ListMeta{ResourceVersion: strconv.Itoa(a.version)}
	switch kindOf(r) {
	case "RuntimeClass":
		l := nodev1.RuntimeClassList{TypeMeta: metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClassList"}, ListMeta: list}
		for _, n := range slices.Sorted(maps.Keys(a.classes)) {
			l.Items = append(l.Items, *a.classes[n])
		}
		answer(w, http.StatusOK, l)
		return
	case "Namespace":
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
	for _, n := range slices.SortedFunc(maps.Keys(a.pods), compareNames) {
		if p := a.pods[n]; r.URL.Query().Get("fieldSelector") == "spec.nodeName="+p.Spec.NodeName {
			l.Items = append(l.Items, *p)
		}
	}
	if s := a.cutOut(&l, r.URL.Query()); s != nil {
		answer(w, int(s.Code), s)
		return
	}
	answer(w, http.StatusOK, l)
}
