// Package intent decides, from labels and annotations alone, whether a pod should
// be captured, how, and if not, why not. It is the only place that decides: the
// CNI ADD, the informers and the status report all ask here, so they cannot
// disagree.
//
// It is pure: the same pod, namespace and policy always give the same [Decision].
//
// # Failures it survives
//
//   - Labels that ask for capture on a pod that cannot be captured (host network,
//     an injected sidecar, an excluded namespace, a pod that is over): the hard
//     exclusions come first, whatever the labels say. A runtime class with a network
//     stack of its own is a decision that is seen, and not a capture without effect.
//   - A mode label whose value is neither ambient nor none, such as Ambient: a pod
//     that is left alone because of it has a warning that says so.
//   - An annotation that does not parse: it is ignored with a warning that names it;
//     what it would have changed stays at the node's default.
//   - An interface name that would break out of a rule's text: names are validated,
//     and one bad name discards that name alone.
//   - An annotation of the greatest size, full of names, good or bad: the first 64
//     are used, and the first few bad ones named. A pod's author can fill neither the
//     ruleset nor the log nor the status report.
package intent

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// Labels and annotations read from pods and namespaces; the values are fixed by
// ambient meshes in use today.
const (
	LabelMode         = "istio.io/dataplane-mode"
	ModeAmbient       = "ambient"
	ModeNone          = "none"
	AnnotationSidecar = "sidecar.istio.io/status"
	AnnotationIngress = "ambient.istio.io/bypass-inbound-capture"
	AnnotationDNS     = "ambient.istio.io/dns-capture"
	AnnotationVirtual = "istio.io/reroute-virtual-interfaces"

	// AnnotationExisting, on a namespace, says what becomes of connections that are
	// older than a pod's capture.
	AnnotationExisting = "fairlead.io/existing-connections"

	// AnnotationConfigHash is the identity that the runtime knows a static pod by.
	AnnotationConfigHash = "kubernetes.io/config.hash"
)

// A Pod is what a decision needs to know of a pod.
type Pod struct {
	Namespace, Name, UID string
	ServiceAccount       string
	Labels, Annotations  map[string]string
	HostNetwork          bool
	RuntimeClass         string // empty: the node's default
	RuntimeHandler       string // the class's, as the runtime knows it; empty if that is not known
	Phase                string
	Deleting             bool // it is to end
	IPs                  []netip.Addr
}

// Is reports whether uid, as the runtime gives it, is this pod's. A static pod is
// known to the runtime by its manifest's hash; a pod whose object carries no UID
// takes the UID of its ADD.
func (p Pod) Is(uid string) bool {
	return p.UID == "" || p.UID == uid || (uid != "" && p.Annotations[AnnotationConfigHash] == uid)
}

// RuntimeUID is the UID that the runtime knows the pod by; empty if that is known
// from its ADD alone.
func (p Pod) RuntimeUID() string {
	if hash := p.Annotations[AnnotationConfigHash]; hash != "" {
		return hash
	}
	return p.UID
}

// A Namespace is what a decision needs to know of a Kubernetes namespace.
type Namespace struct {
	Name                string
	Labels, Annotations map[string]string
}

// A Selector is one enablement selector: a pod is in if both match.
type Selector struct {
	Pod, Namespace labels.Selector
}

// A Policy is the part of a decision that is the same for all pods of a node.
type Policy struct {
	ExcludeNamespaces []string
	Selectors         []Selector
	CaptureDNS        bool
	// Existing is the default for namespaces that do not say.
	Existing Existing
	// OwnStacks are the runtime classes, by their names or their handlers', whose pods have
	// a network stack of their own, in which the kernel's redirects have no effect. A *
	// stands for any text.
	OwnStacks []string
}

// Existing says what becomes of connections that are older than a pod's capture.
type Existing string

// What may become of them. ByCause resets those of a pod whose redirects were away, or
// that was quicker than the agent, and keeps those of one that was labelled while it
// ran.
const (
	ByCause Existing = ""
	Reset   Existing = "reset"
	Keep    Existing = "keep"
)

// A Reason says in one word why a pod should or should not be captured.
type Reason string

// The reasons for a decision.
const (
	Selected          Reason = "Selected"
	NotLabelled       Reason = "NotLabelled"
	OptedOut          Reason = "OptedOut"
	HostNetwork       Reason = "HostNetwork"
	Sidecar           Reason = "Sidecar"
	NamespaceExcluded Reason = "NamespaceExcluded"
	Terminated        Reason = "Terminated"

	// OwnNetworkStack is of a pod that asks to be captured and cannot be.
	OwnNetworkStack Reason = "OwnNetworkStack"
	// NodeDrained is of a pod that asks to be captured, on a node where none is any more.
	NodeDrained Reason = "NodeDrained"
)

// A Decision says whether a pod should be captured, and how.
type Decision struct {
	Capture bool
	Reason  Reason
	Message string
	Redirect
	Existing Existing
	Warnings []string // what of the labels and annotations was ignored, and why: few, and short
}

// Redirect is how a pod that should be captured is redirected.
type Redirect struct {
	CaptureDNS        bool
	Ingress           bool // inbound traffic is left alone
	VirtualInterfaces []string
}

// Decide decides about one pod.
func (p Policy) Decide(pod Pod, ns Namespace) Decision {
	if reason, message := p.excluded(pod); reason != "" {
		return Decision{Reason: reason, Message: message}
	}
	for i, s := range p.Selectors {
		if s.Pod.Matches(labels.Set(pod.Labels)) && s.Namespace.Matches(labels.Set(ns.Labels)) {
			if class := p.ownStack(pod); class != "" {
				return Decision{Reason: OwnNetworkStack, Message: fmt.Sprintf(
					"enablement selector %d matches, but pods of runtime class %s have a network stack of their own", i+1, class)}
			}
			d := Decision{Capture: true, Reason: Selected, Message: fmt.Sprintf("enablement selector %d matches", i+1)}
			d.Redirect, d.Warnings = p.redirect(pod.Annotations)
			d.Existing = p.Existing
			switch text := ns.Annotations[AnnotationExisting]; Existing(text) {
			case ByCause:
			case Reset, Keep:
				d.Existing = Existing(text)
			default:
				d.Warnings = append(d.Warnings, fmt.Sprintf("namespace annotation %s: %q is neither reset nor keep; ignored", AnnotationExisting, clip(text)))
			}
			return d
		}
	}
	if pod.Labels[LabelMode] == ModeNone {
		return Decision{Reason: OptedOut, Message: "the pod's label " + LabelMode + " is " + ModeNone}
	}
	return Decision{
		Reason: NotLabelled, Message: "no enablement selector matches the pod and its namespace",
		Warnings: append(oddMode("label ", pod.Labels), oddMode("label of its namespace ", ns.Labels)...),
	}
}

// On is the decision on a node that is drained, or not or no longer: there a pod that asks
// to be captured is released, and none of what else was decided is forgotten.
func (d Decision) On(drained bool) Decision {
	switch {
	case drained && d.Capture:
		d.Capture, d.Reason = false, NodeDrained
	case !drained && d.Reason == NodeDrained:
		d.Capture, d.Reason = true, Selected
	}
	return d
}

// Asked says whether the pod asks to be captured, and could be.
func (d Decision) Asked() bool { return d.Capture || d.Reason == NodeDrained }

// oddMode warns of a mode that is no mode.
func oddMode(whose string, all map[string]string) []string {
	mode, ok := all[LabelMode]
	if !ok || mode == ModeAmbient || mode == ModeNone {
		return nil
	}
	return []string{fmt.Sprintf("%s%s has value %q: it is %s or %s; ignored", whose, LabelMode, clip(mode), ModeAmbient, ModeNone)}
}

// excluded applies the hard exclusions.
func (p Policy) excluded(pod Pod) (Reason, string) {
	if pod.HostNetwork {
		return HostNetwork, "the pod uses the node's own network"
	}
	if _, ok := pod.Annotations[AnnotationSidecar]; ok {
		return Sidecar, "a sidecar is injected (annotation " + AnnotationSidecar + ")"
	}
	for _, name := range p.ExcludeNamespaces {
		if pod.Namespace == name {
			return NamespaceExcluded, "namespace " + name + " is in excludeNamespaces"
		}
	}
	if pod.Phase == "Succeeded" || pod.Phase == "Failed" {
		return Terminated, "the pod's phase is " + pod.Phase
	}
	return "", ""
}

// ownStack returns the pod's runtime class, in words, if it gives pods a network stack of
// their own. Its name is anybody's choice; the handler's is what the runtime acts on.
func (p Policy) ownStack(pod Pod) string {
	is := func(name string) bool {
		return slices.ContainsFunc(p.OwnStacks, func(pattern string) bool {
			match, err := path.Match(pattern, name)
			return err == nil && match
		})
	}
	switch {
	case is(pod.RuntimeClass):
		return clip(pod.RuntimeClass)
	case pod.RuntimeHandler != "" && is(pod.RuntimeHandler):
		return clip(pod.RuntimeClass) + " (handler " + clip(pod.RuntimeHandler) + ")"
	}
	return ""
}

// redirect reads the annotations that change the rules.
func (p Policy) redirect(annotations map[string]string) (Redirect, []string) {
	r := Redirect{CaptureDNS: p.CaptureDNS}
	var warnings []string
	for _, a := range []struct {
		name string
		into *bool
	}{{AnnotationDNS, &r.CaptureDNS}, {AnnotationIngress, &r.Ingress}} {
		text, ok := annotations[a.name]
		if !ok {
			continue
		}
		value, err := strconv.ParseBool(text)
		if err != nil {
			warnings = append(warnings, fmt.Sprintf("annotation %s: %q is neither true nor false; ignored", a.name, clip(text)))
			continue
		}
		*a.into = value
	}
	var bad []string
	r.VirtualInterfaces, bad = interfaceNames(annotations[AnnotationVirtual])
	return r, append(warnings, bad...)
}

const (
	maxInterfaces = 64 // package ruleset refuses more
	maxBadNames   = 5  // are named in warnings; the rest is counted
)

// interfaceNames parses a comma list of interface names, each once, in order.
func interfaceNames(list string) (names, warnings []string) {
	warn := func(format string, args ...any) {
		warnings = append(warnings, "annotation "+AnnotationVirtual+": "+fmt.Sprintf(format, args...))
	}
	seen := map[string]bool{}
	bad := 0
	for field := range strings.SplitSeq(list, ",") {
		name := clip(strings.TrimSpace(field)) // a clipped name is never a good one
		if name == "" || seen[name] {
			continue
		}
		if err := ruleset.CheckInterface(name); err != nil {
			if bad++; bad <= maxBadNames {
				warn("%v; ignored", err)
			}
			continue
		}
		if len(names) == maxInterfaces {
			warn("more than %d interfaces; %q and what follows it are ignored", maxInterfaces, name)
			break
		}
		seen[name] = true
		names = append(names, name)
	}
	if bad > maxBadNames {
		warn("… %d more such names; ignored", bad-maxBadNames)
	}
	return names, warnings
}

// clip shortens what a warning quotes.
func clip(s string) string {
	const most = 40
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
