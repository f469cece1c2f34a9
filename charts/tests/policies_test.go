package charts

import (
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// nodeWriter has everything be there that the agent may use.
const nodeWriter = "{node: {taint: remove, condition: true}}"

const agentUser = "system:serviceaccount:fairlead-system:fairlead"

// by is who asks: a user, whose token may name a node.
func by(name, node string) user.Info {
	u := &user.DefaultInfo{Name: name, Extra: map[string][]string{"authentication.kubernetes.io/pod-name": {"fairlead-x"}}}
	if node != "" {
		u.Extra["authentication.kubernetes.io/node-name"] = []string{node}
	}
	return u
}

const somePod = `
apiVersion: v1
kind: Pod
metadata:
  name: web
  namespace: shop
  uid: 1-2-3
  resourceVersion: "7"
  labels: {app: web}
  annotations: {other: theirs}
  deletionTimestamp: 2026-01-02T15:04:05Z
  deletionGracePeriodSeconds: 30
  managedFields: [{manager: kubelet, operation: Update}]
spec: {nodeName: n1, containers: [{name: app, image: app}]}
status:
  phase: Running
  podIP: 10.0.0.1
  conditions:
  - {type: Ready, status: "True"}
  - {type: ContainersReady, status: "True"}
`

// What the agent may make of a pod's status, and what it may not.
func TestPodPolicy(t *testing.T) {
	policy := policyOf(t, "fairlead-fairlead-system-pods")
	own := by(agentUser, "n1")
	for name, test := range map[string]struct {
		who    user.Info
		change string // of the pod, as YAML that is merged; null takes away
		want   string
	}{
		"annotation":           {own, "{metadata: {annotations: {ambient.istio.io/redirection: enabled}}}", ""},
		"pending":              {own, "{metadata: {annotations: {ambient.istio.io/redirection: pending}}}", ""},
		"condition":            {own, "{status: {conditions: [{type: Ready, status: 'True'}, {type: ContainersReady, status: 'True'}, {type: fairlead.io/Captured, status: 'False', reason: NoProxy}]}}", ""},
		"condition first":      {own, "{status: {conditions: [{type: fairlead.io/Captured, status: 'True'}, {type: Ready, status: 'True'}, {type: ContainersReady, status: 'True'}]}}", ""},
		"what the server sets": {own, "{metadata: {resourceVersion: '8', managedFields: [{manager: fairlead, operation: Update}], deletionTimestamp: null, deletionGracePeriodSeconds: null}}", ""},
		"nothing":              {own, "{}", ""},

		"no node in the token": {by(agentUser, ""), "{}", "the token names no node"},
		"another node's pod":   {by(agentUser, "n2"), "{}", "the agent of node n2 writes of the pods of its own node alone"},
		"another annotation":   {own, "{metadata: {annotations: {a: b}}}", "of a pod's annotations the agent writes ambient.istio.io/redirection alone"},
		"theirs changed":       {own, "{metadata: {annotations: {other: ours}}}", "of a pod's annotations the agent writes"},
		"theirs removed":       {own, "{metadata: {annotations: {other: null}}}", "of a pod's annotations the agent writes"},
		"all removed":          {own, "{metadata: {annotations: null}}", "of a pod's annotations the agent writes"},
		"another value":        {own, "{metadata: {annotations: {ambient.istio.io/redirection: disabled}}}", "is enabled, pending, or absent"},
		"label":                {own, "{metadata: {labels: {app: other}}}", "of a pod's metadata the agent writes"},
		"labels removed":       {own, "{metadata: {labels: null}}", "of a pod's metadata the agent writes"},
		"finalizer":            {own, "{metadata: {finalizers: [a/b]}}", "of a pod's metadata the agent writes"},
		"phase":                {own, "{status: {phase: Succeeded}}", "of a pod's status the agent writes"},
		"address":              {own, "{status: {podIP: 10.0.0.2}}", "of a pod's status the agent writes"},
		"address removed":      {own, "{status: {podIP: null}}", "of a pod's status the agent writes"},
		"addresses":            {own, "{status: {podIPs: [{ip: 10.0.0.1}]}}", "of a pod's status the agent writes"},
		"ready":                {own, "{status: {conditions: [{type: Ready, status: 'False'}, {type: ContainersReady, status: 'True'}]}}", "of a pod's conditions the agent writes"},
		"conditions wiped":     {own, "{status: {conditions: [{type: fairlead.io/Captured, status: 'True'}]}}", "of a pod's conditions the agent writes"},
		"conditions removed":   {own, "{status: {conditions: null}}", "of a pod's conditions the agent writes"},
		"another condition":    {own, "{status: {conditions: [{type: Ready, status: 'True'}, {type: ContainersReady, status: 'True'}, {type: other, status: 'True'}]}}", "of a pod's conditions the agent writes"},

		"somebody else": {by("system:serviceaccount:fairlead-system:other", ""), "{status: {phase: Failed}}", ""},
		"the kubelet":   {by("system:node:n2", ""), "{status: {phase: Failed}}", ""},
	} {
		before := map[string]any{}
		change := map[string]any{}
		for text, into := range map[string]*map[string]any{somePod: &before, test.change: &change} {
			if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
				t.Fatal(err)
			}
		}
		after := merged(before, change)
		// As the server holds them, and as older ones do.
		typed := policy.ask(t, test.who, as(t, &corev1.Pod{}, before), as(t, &corev1.Pod{}, after))
		loose := policy.ask(t, test.who, &unstructured.Unstructured{Object: before}, &unstructured.Unstructured{Object: after})
		for how, got := range map[string]string{"typed": typed, "untyped": loose} {
			if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("%s (%s): denied: %q, want %q", name, how, got, test.want)
			}
		}
	}
}

// A pod that has no node yet is nobody's, one without anything optional is no obstacle.
func TestPodPolicyOnBarePods(t *testing.T) {
	policy := policyOf(t, "fairlead-fairlead-system-pods")
	pending, bare := &corev1.Pod{}, &corev1.Pod{}
	bare.Spec.NodeName = "n1"
	if got := policy.ask(t, by(agentUser, "n1"), pending, pending); !strings.Contains(got, "of its own node alone") {
		t.Errorf("pod without a node: denied: %q", got)
	}
	after := bare.DeepCopy()
	after.Annotations = map[string]string{"ambient.istio.io/redirection": "enabled"}
	after.Status.Conditions = []corev1.PodCondition{{Type: "fairlead.io/Captured", Status: corev1.ConditionTrue}}
	if got := policy.ask(t, by(agentUser, "n1"), bare, after); got != "" {
		t.Errorf("bare pod: denied: %s", got)
	}
	if got := policy.ask(t, by(agentUser, "n1"), after, bare); got != "" {
		t.Errorf("all of ours taken away: denied: %s", got)
	}
	nobody := &user.DefaultInfo{Name: agentUser}
	if got := policy.ask(t, nobody, bare, after); !strings.Contains(got, "the token names no node") {
		t.Errorf("a token that says nothing: denied: %q", got)
	}
}

func TestEventPolicy(t *testing.T) {
	policy := policyOf(t, "fairlead-fairlead-system-events")
	about := func(kind string) *eventsv1.Event {
		return &eventsv1.Event{Regarding: corev1.ObjectReference{Kind: kind}, ReportingInstance: "n1"}
	}
	for name, test := range map[string]struct {
		who  user.Info
		kind string
		want string
	}{
		"about a pod":          {by(agentUser, "n1"), "Pod", ""},
		"about a node":         {by(agentUser, "n1"), "Node", "events are about pods"},
		"about nothing":        {by(agentUser, "n1"), "", "events are about pods"},
		"another node's":       {by(agentUser, "n2"), "Pod", "events say which node they come from"},
		"no node in the token": {by(agentUser, ""), "Pod", "the token names no node"},
		"somebody else":        {by("other", ""), "Node", ""},
	} {
		got := policy.ask(t, test.who, nil, about(test.kind))
		if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
			t.Errorf("%s: denied: %q, want %q", name, got, test.want)
		}
	}
}

const someNode = `
apiVersion: v1
kind: Node
metadata:
  name: n1
  uid: 1-2-3
  resourceVersion: "7"
  labels: {zone: a}
  annotations: {other: theirs}
  managedFields: [{manager: kubelet, operation: Update}]
spec:
  podCIDR: 10.0.0.0/24
  taints:
  - {key: dedicated, value: db, effect: NoSchedule}
  - {key: cni.istio.io/not-ready, effect: NoExecute, timeAdded: 2026-01-02T15:04:05Z}
status:
  capacity: {cpu: "2"}
  images: [IMAGES]
  conditions:
  - {type: Ready, status: "True"}
`

// What the agent may make of a node, and what it may not.
func TestNodePolicy(t *testing.T) {
	policy := policyOf(t, "fairlead-fairlead-system-nodes")
	own := by(agentUser, "n1")
	const theirs, istios, ours = "{key: dedicated, value: db, effect: NoSchedule}", "{key: cni.istio.io/not-ready, effect: NoExecute, timeAdded: 2026-01-02T15:04:05Z}", "{key: fairlead.io/agent-not-ready, effect: NoSchedule}"
	taints := func(all ...string) string { return "{spec: {taints: [" + strings.Join(all, ", ") + "]}}" }
	for name, test := range map[string]struct {
		who    user.Info
		change string // of the node, as YAML that is merged; null takes away
		want   string
	}{
		"nothing":              {own, "{}", ""},
		"istio's removed":      {own, taints(theirs), ""},
		"ours put there":       {own, taints(theirs, istios, ours), ""},
		"one for the other":    {own, taints(theirs, ours), ""},
		"condition":            {own, "{status: {conditions: [{type: Ready, status: 'True'}, {type: fairlead.io/Ready, status: 'True', reason: OK}]}}", ""},
		"what the server sets": {own, "{metadata: {resourceVersion: '8', managedFields: [{manager: fairlead, operation: Update}]}}", ""},

		"no node in the token": {by(agentUser, ""), "{}", "the token names no node"},
		"another node":         {by(agentUser, "n2"), "{}", "the agent of node n2 writes its own node alone"},
		"theirs removed":       {own, taints(istios), "of a node's taints the agent writes the startup taint alone"},
		"theirs changed":       {own, taints("{key: dedicated, value: db, effect: NoExecute}"), "of a node's taints the agent writes"},
		"all removed":          {own, "{spec: {taints: null}}", "of a node's taints the agent writes"},
		"another one":          {own, taints(theirs, "{key: a, effect: NoSchedule}"), "of a node's taints the agent writes"},
		"one that evicts":      {own, taints(theirs, "{key: fairlead.io/agent-not-ready, effect: NoExecute}"), "the taint that the agent puts there is fairlead.io/agent-not-ready:NoSchedule"},
		"istio's put there":    {own, taints(theirs, "{key: cni.istio.io/not-ready, effect: NoSchedule}"), "the taint that the agent puts there is"},
		"unschedulable":        {own, "{spec: {unschedulable: true}}", "of a node's spec the agent writes the startup taint alone"},
		"addresses of pods":    {own, "{spec: {podCIDR: null}}", "of a node's spec the agent writes"},
		"label":                {own, "{metadata: {labels: {zone: b}}}", "of a node's metadata the agent writes nothing"},
		"annotation":           {own, "{metadata: {annotations: {a: b}}}", "of a node's metadata the agent writes nothing"},
		"labels removed":       {own, "{metadata: {labels: null}}", "of a node's metadata the agent writes nothing"},
		"finalizer":            {own, "{metadata: {finalizers: [a/b]}}", "of a node's metadata the agent writes nothing"},
		"capacity":             {own, "{status: {capacity: {cpu: '3'}}}", "of a node's status the agent writes the condition fairlead.io/Ready alone"},
		"images removed":       {own, "{status: {images: null}}", "of a node's status the agent writes"},
		"ready":                {own, "{status: {conditions: [{type: Ready, status: 'False'}]}}", "of a node's conditions the agent writes fairlead.io/Ready alone"},
		"another condition":    {own, "{status: {conditions: [{type: Ready, status: 'True'}, {type: other, status: 'True'}]}}", "of a node's conditions the agent writes"},
		"conditions removed":   {own, "{status: {conditions: null}}", "of a node's conditions the agent writes"},

		"somebody else": {by("system:serviceaccount:fairlead-system:other", ""), "{spec: {unschedulable: true}}", ""},
		"the kubelet":   {by("system:node:n2", ""), "{status: {conditions: null}}", ""},
	} {
		images := strings.TrimSuffix(strings.Repeat(`{names: ["example.test/some/image@sha256:0123456789abcdef", "example.test/some/image:v1"], sizeBytes: 12345678}, `, 50), ", ") // as many as a kubelet names
		before := map[string]any{}
		change := map[string]any{}
		for text, into := range map[string]*map[string]any{strings.Replace(someNode, "IMAGES", images, 1): &before, test.change: &change} {
			if err := yaml.UnmarshalStrict([]byte(text), into); err != nil {
				t.Fatal(err)
			}
		}
		after := merged(before, change)
		typed := policy.ask(t, test.who, as(t, &corev1.Node{}, before), as(t, &corev1.Node{}, after))
		loose := policy.ask(t, test.who, &unstructured.Unstructured{Object: before}, &unstructured.Unstructured{Object: after})
		for how, got := range map[string]string{"typed": typed, "untyped": loose} {
			if (test.want == "") != (got == "") || !strings.Contains(got, test.want) {
				t.Errorf("%s (%s): denied: %q, want %q", name, how, got, test.want)
			}
		}
	}
}

// A node without anything optional is no obstacle.
func TestNodePolicyOnABareNode(t *testing.T) {
	policy := policyOf(t, "fairlead-fairlead-system-nodes")
	bare := &corev1.Node{}
	bare.Name = "n1"
	after := bare.DeepCopy()
	after.Spec.Taints = []corev1.Taint{{Key: "fairlead.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule}}
	after.Status.Conditions = []corev1.NodeCondition{{Type: "fairlead.io/Ready", Status: corev1.ConditionTrue}}
	for _, step := range [][2]*corev1.Node{{bare, after}, {after, bare}} {
		if got := policy.ask(t, by(agentUser, "n1"), step[0], step[1]); got != "" {
			t.Errorf("denied: %s", got)
		}
	}
}

// Each policy is bound, and denies.
func TestPoliciesAreBound(t *testing.T) {
	objects := installation{values: nodeWriter}.objects(t)
	policies := 0
	for key, o := range objects {
		name, found := strings.CutPrefix(key, "ValidatingAdmissionPolicy ")
		if !found {
			continue
		}
		policies++
		binding := objects["ValidatingAdmissionPolicyBinding "+name]
		if binding == nil || binding.at("spec", "policyName") != name || binding.at("spec", "validationActions", 0) != "Deny" {
			t.Errorf("%s: its binding is %v", name, binding)
		}
		if o.at("spec", "failurePolicy") != "Fail" {
			t.Errorf("%s: failurePolicy %v", name, o.at("spec", "failurePolicy"))
		}
	}
	if policies != 3 {
		t.Errorf("%d policies", policies)
	}
}

// as reads an object into one of its type.
func as[T any](t *testing.T, into T, of map[string]any) T {
	t.Helper()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(of, into); err != nil {
		t.Fatal(err)
	}
	return into
}

// merged is base with a change laid over it; null takes away, lists are replaced.
func merged(base, change map[string]any) map[string]any {
	out := map[string]any{}
	for key, value := range base {
		out[key] = value
	}
	for key, value := range change {
		inner, isMap := value.(map[string]any)
		was, wasMap := out[key].(map[string]any)
		switch {
		case value == nil:
			delete(out, key)
		case isMap && wasMap:
			out[key] = merged(was, inner)
		default:
			out[key] = value
		}
	}
	return out
}

// A policy is one that is rendered, compiled as the API server does it.
type policy struct {
	validator validating.Validator
	resource  schema.GroupVersionResource
	sub       string
}

func policyOf(t *testing.T, name string) policy {
	t.Helper()
	p := &admissionv1.ValidatingAdmissionPolicy{}
	if err := yaml.UnmarshalStrict([]byte(text(t, installation{values: nodeWriter}.objects(t)["ValidatingAdmissionPolicy "+name])), p); err != nil {
		t.Fatal(err)
	}
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	vars, mode := cel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.StoredExpressions
	var variables []cel.NamedExpressionAccessor
	for _, v := range p.Spec.Variables {
		variables = append(variables, &validating.Variable{Name: v.Name, Expression: v.Expression})
	}
	compiler.CompileAndStoreVariables(variables, vars, mode)
	var conditions, messages []cel.ExpressionAccessor
	for _, v := range p.Spec.Validations {
		conditions = append(conditions, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason})
		var message cel.ExpressionAccessor
		if v.MessageExpression != "" {
			message = &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}
		}
		messages = append(messages, message)
	}
	var matches []cel.ExpressionAccessor
	for i := range p.Spec.MatchConditions {
		matches = append(matches, (*matchconditions.MatchCondition)(&p.Spec.MatchConditions[i]))
	}
	rule := p.Spec.MatchConstraints.ResourceRules[0].Rule
	resource, sub, _ := strings.Cut(rule.Resources[0], "/")
	return policy{
		validator: validating.NewValidator(
			compiler.CompileCondition(conditions, vars, mode),
			matchconditions.NewMatcher(compiler.CompileCondition(matches, vars, mode), p.Spec.FailurePolicy, "policy", "validate", p.Name),
			compiler.CompileCondition(nil, vars, mode),
			compiler.CompileCondition(messages, cel.OptionalVariableDeclarations{}, mode),
			p.Spec.FailurePolicy, nil),
		resource: schema.GroupVersionResource{Group: rule.APIGroups[0], Version: rule.APIVersions[0], Resource: resource},
		sub:      sub,
	}
}

// ask returns why a request is denied, or nothing.
func (p policy) ask(t *testing.T, who user.Info, before, after runtime.Object) string {
	t.Helper()
	operation := admission.Update
	if before == nil {
		operation = admission.Create
	}
	request := &admission.VersionedAttributes{
		Attributes:         admission.NewAttributesRecord(after, before, schema.GroupVersionKind{}, "shop", "web", p.resource, p.sub, operation, nil, false, who),
		VersionedObject:    admission.NewLazyObject(after),
		VersionedOldObject: admission.NewLazyObject(before),
	}
	result := p.validator.Validate(t.Context(), p.resource, request, nil, nil, celconfig.RuntimeCELCostBudget, nil)
	var why []string
	for _, d := range result.Decisions {
		if d.Action != validating.ActionAdmit {
			why = append(why, d.Message)
		}
		if d.Evaluation == validating.EvalError {
			t.Errorf("an expression cannot be evaluated: %s", d.Message)
		}
	}
	return strings.Join(slices.Compact(why), "; ")
}
