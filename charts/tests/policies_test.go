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
		typed := policy.ask(t, test.who, asPod(t, before), asPod(t, after))
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

// Each policy is bound, and denies.
func TestPoliciesAreBound(t *testing.T) {
	objects := installation{}.objects(t)
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
	if policies != 2 {
		t.Errorf("%d policies", policies)
	}
}

func asPod(t *testing.T, of map[string]any) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(of, pod); err != nil {
		t.Fatal(err)
	}
	return pod
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
	if err := yaml.UnmarshalStrict([]byte(text(t, installation{}.objects(t)["ValidatingAdmissionPolicy "+name])), p); err != nil {
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
