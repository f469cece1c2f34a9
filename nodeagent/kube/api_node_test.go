package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// node makes or changes a node; its UID is uid-NAME unless it is changed.
func (a *api) node(nodeName string, with ...func(*corev1.Node)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.changeNode(nodeName, with...)
}

func (a *api) changeNode(nodeName string, with ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, UID: types.UID("uid-" + nodeName)},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}},
	}
	if was := a.nodes[nodeName]; was != nil {
		n = was.DeepCopy()
	}
	for _, w := range with {
		w(n)
	}
	a.version++
	n.ResourceVersion = fmt.Sprint(a.version)
	a.nodes[nodeName] = n
	return n
}

// serveNode gets a node, or patches it or its status, as a strategic merge patch does:
// taints are replaced, conditions merged by their types.
func (a *api) serveNode(w http.ResponseWriter, r *http.Request, path []string, body []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.nodes[path[3]]
	if r.Method == http.MethodGet {
		if old := a.oldNodes[path[3]]; old != nil && r.URL.Query().Get("resourceVersion") == "0" {
			n = old
		}
		if n == nil {
			answer(w, http.StatusNotFound, notFound)
		} else {
			answer(w, http.StatusOK, n)
		}
		return
	}
	var patch struct {
		Metadata struct {
			UID             types.UID
			ResourceVersion string
		}
		Spec   *struct{ Taints []corev1.Taint }
		Status struct{ Conditions []json.RawMessage }
	}
	if err := json.Unmarshal(body, &patch); err != nil {
		panic(err)
	}
	switch {
	case n == nil:
		answer(w, http.StatusNotFound, notFound)
		return
	case patch.Metadata.ResourceVersion != "" && patch.Metadata.ResourceVersion != n.ResourceVersion:
		answer(w, http.StatusConflict, failure(http.StatusConflict, metav1.StatusReasonConflict, "the object has been modified"))
		return
	case patch.Metadata.UID != n.UID:
		answer(w, http.StatusUnprocessableEntity, failure(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "field is immutable", "metadata.uid"))
		return
	case len(path) == 4 && patch.Spec == nil, len(path) == 5 && patch.Spec != nil:
		panic("a patch of the other half: " + string(body))
	}
	answer(w, http.StatusOK, a.changeNode(path[3], func(n *corev1.Node) {
		if patch.Spec != nil {
			n.Spec.Taints = patch.Spec.Taints
		}
		for _, c := range patch.Status.Conditions {
			mergeCondition(n, c)
		}
	}))
}

func mergeCondition(n *corev1.Node, text json.RawMessage) {
	var c struct {
		corev1.NodeCondition
		Patch string `json:"$patch"`
	}
	if err := json.Unmarshal(text, &c); err != nil {
		panic(err)
	}
	n.Status.Conditions = slices.DeleteFunc(n.Status.Conditions, func(have corev1.NodeCondition) bool { return have.Type == c.Type })
	if c.Patch != "delete" {
		n.Status.Conditions = append(n.Status.Conditions, c.NodeCondition)
	}
}

// shownOf is what the API shows of a node.
func (a *api) shownOf(nodeName string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := a.nodes[nodeName]
	if n == nil {
		return "no node"
	}
	var words []string
	for _, t := range n.Spec.Taints {
		words = append(words, t.ToString())
	}
	for _, c := range n.Status.Conditions {
		words = append(words, strings.Join(slices.DeleteFunc([]string{string(c.Type), string(c.Status), c.Reason, c.Message}, func(s string) bool { return s == "" }), "/"))
	}
	return strings.Join(words, " ")
}
