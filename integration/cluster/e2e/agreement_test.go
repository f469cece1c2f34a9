//go:build e2e

package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
)

// agree waits until all that can be asked says the same of every pod, and of what is
// left of pods that are gone: nothing. Asked are the labels, the agent of the pod's node,
// the annotation, the condition, the kernel, and the node's proxies.
func agree(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	eventually(t, "labels, agent, API, kernel and proxy", "", func() (string, error) {
		w, err := look(t, c)
		if err != nil {
			return "", err
		}
		return gocmp.Diff(w.expected(), w.observed()), nil
	})
}

// A world is all that is known of a cluster's pods.
type world struct {
	pods       []apiPod
	namespaces map[string]map[string]string // their labels
	nodes      map[string]nodeView
}

// A nodeView is what is seen on one node.
type nodeView struct {
	agent    map[string]statusPod // by UID
	problems []string             // the agent's
	proxies  []proxyView
	kernel   kernelView
}

// A statusPod is what the tests read of "fairlead status -o json".
type statusPod struct{ Namespace, Name, UID, State, Reason, Message, Annotation string }

// A proxyView is what the tests read of a reference proxy's config_dump.
type proxyView struct {
	Relayed       struct{ Outbound, Inbound, HBONE, DNS int }
	WorkloadState map[string]struct {
		State, Error string
		Relayed      struct{ Outbound, Inbound, HBONE, DNS int }
	}
}

func look(t *testing.T, c *cluster.Cluster) (world, error) {
	t.Helper()
	w := world{namespaces: map[string]map[string]string{}, nodes: map[string]nodeView{}}
	type object struct {
		Metadata struct {
			Name   string
			Labels map[string]string
		}
	}
	namespaces, err := list[object](t, c, "namespaces")
	if err != nil {
		return w, err
	}
	for _, n := range namespaces {
		w.namespaces[n.Metadata.Name] = n.Metadata.Labels
	}
	if w.pods, err = list[apiPod](t, c, "pods", "-A"); err != nil {
		return w, err
	}
	agents, proxies := podsOf(w.pods, "fairlead"), podsOf(w.pods, "nodeproxy")
	for _, n := range c.Nodes {
		var view nodeView
		if len(agents[n.Name]) != 1 || len(proxies[n.Name]) == 0 {
			return w, fmt.Errorf("%s has %d agents and %d proxies", n.Name, len(agents[n.Name]), len(proxies[n.Name]))
		}
		if view.agent, view.problems, err = askAgent(t, c, agents[n.Name][0]); err != nil {
			return w, err
		}
		for _, p := range proxies[n.Name] {
			proxy, err := askProxy(t, c, p)
			if err != nil {
				return w, err
			}
			view.proxies = append(view.proxies, proxy)
		}
		if view.kernel, err = askKernel(t, n); err != nil {
			return w, err
		}
		w.nodes[n.Name] = view
	}
	return w, nil
}

func askAgent(t *testing.T, c *cluster.Cluster, agent apiPod) (pods map[string]statusPod, problems []string, err error) {
	t.Helper()
	// It fails also if a pod is not as it should be, and prints the same then.
	out, failed := c.Kubectl(t.Context(), "-n", system, "exec", agent.Metadata.Name, "--", "fairlead", "status", "-o", "json")
	var report struct {
		Node struct{ Problems []string }
		Pods []statusPod
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		return nil, nil, cmp.Or(failed, err)
	}
	pods = map[string]statusPod{}
	for _, p := range report.Pods {
		pods[p.UID] = p
	}
	return pods, report.Node.Problems, nil
}

func askProxy(t *testing.T, c *cluster.Cluster, proxy apiPod) (proxyView, error) {
	t.Helper()
	var view proxyView
	if len(proxy.Status.PodIPs) == 0 {
		return view, fmt.Errorf("the proxy %s has no address yet", proxy)
	}
	dump, err := get(t, c, "http://"+net.JoinHostPort(proxy.Status.PodIPs[0].IP, "15021")+"/config_dump")
	if err == nil {
		err = json.Unmarshal([]byte(dump), &view)
	}
	return view, err
}

// intent says whether a pod should be captured, by the chart's defaults, and if not why.
func (w world) intent(p apiPod) (capture bool, reason string) {
	const label = "istio.io/dataplane-mode"
	mode, namespace := p.Metadata.Labels[label], w.namespaces[p.Metadata.Namespace][label]
	switch {
	case p.Spec.HostNetwork:
		return false, "HostNetwork"
	case p.Metadata.Namespace == "kube-system":
		return false, "NamespaceExcluded"
	case p.over():
		return false, "Terminated"
	case mode == "ambient", mode != "none" && namespace == "ambient":
		return true, "OK"
	case mode == "none":
		return false, "OptedOut"
	}
	return false, "NotLabelled"
}

// What stands in a namespace, and what does not.
const (
	inPlace = "redirects to 15001 15006 15053, marked packets routed for v4 v6, listeners on 15001 15006 15008 15053"
	absent  = "nothing"
)

// expected has a paragraph for each pod, by its labels.
func (w world) expected() string {
	var s strings.Builder
	for _, p := range w.pods {
		capture, reason := w.intent(p)
		state, annotation, condition, kernel, proxy := "NotCaptured", "none", "not True", absent, "no"
		if capture {
			state, annotation, condition, kernel, proxy = "Captured", "enabled", "True (OK)", inPlace, "Up"
		}
		var proxies []string
		for range w.nodes[p.Spec.NodeName].proxies {
			proxies = append(proxies, proxy)
		}
		paragraph(&s, p, state+" ("+reason+")", annotation, condition, kernel, proxies)
	}
	return s.String()
}

// observed has the same paragraphs as expected, and a line for each thing that is left.
func (w world) observed() string {
	var s strings.Builder
	for _, p := range w.pods {
		node := w.nodes[p.Spec.NodeName]
		state := "unknown"
		agent, known := node.agent[p.runtimeUID()]
		if known {
			state = agent.State + " (" + agent.Reason + ")"
			if agent.State != "Captured" && agent.State != "NotCaptured" {
				state += " " + agent.Message
			}
		}
		condition := p.condition("fairlead.io/Captured")
		// Its reason alone is written once a minute only.
		if condition == "no" || strings.HasPrefix(condition, "False ") {
			condition = "not True"
		}
		kernel := absent
		if !p.Spec.HostNetwork {
			for _, ip := range p.Status.PodIPs {
				if found, ok := node.kernel.byAddress[ip.IP]; ok {
					kernel = found
				}
			}
		}
		var proxies []string
		for _, proxy := range node.proxies {
			workload, ok := proxy.WorkloadState[p.runtimeUID()]
			if !ok {
				workload.State = "no"
			}
			proxies = append(proxies, strings.TrimSpace(workload.State+" "+workload.Error))
		}
		paragraph(&s, p, state, cmp.Or(p.Metadata.Annotations["ambient.istio.io/redirection"], "none"), condition, kernel, proxies)
	}
	for _, line := range w.left() {
		s.WriteString(line + "\n")
	}
	return s.String()
}

func paragraph(s *strings.Builder, p apiPod, state, annotation, condition, kernel string, proxies []string) {
	fmt.Fprintf(s, "%s on %s\n  agent       %s\n  annotation  %s\n  condition   %s\n  kernel      %s\n  proxies     %s\n",
		p, p.Spec.NodeName, state, annotation, condition, kernel, strings.Join(proxies, ", "))
}

// left tells, a line each, what is there of pods that are gone, and what the agents
// complain of.
func (w world) left() []string {
	known, lives, captured, addresses := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, p := range w.pods {
		known[p.runtimeUID()] = true
		lives[p.runtimeUID()] = !p.over()
		capture, _ := w.intent(p)
		for _, ip := range p.Status.PodIPs {
			addresses[ip.IP] = !p.over()
			captured[ip.IP] = capture
		}
	}
	var lines []string
	add := func(node, format string, args ...any) {
		lines = append(lines, node+": "+fmt.Sprintf(format, args...))
	}
	for node, view := range w.nodes {
		for _, problem := range view.problems {
			add(node, "the agent has a problem: %s", problem)
		}
		for uid, p := range view.agent {
			if !known[uid] {
				add(node, "the agent knows a pod that is gone: %s/%s %s, %s (%s)", p.Namespace, p.Name, uid, p.State, p.Reason)
			}
		}
		for _, proxy := range view.proxies {
			for uid := range proxy.WorkloadState {
				if !lives[uid] {
					add(node, "a proxy serves a pod that is gone, or over: %s", uid)
				}
			}
		}
		for _, uid := range view.kernel.records {
			if !lives[uid] {
				add(node, "there is a record of a pod that is gone, or over: %s", uid)
			}
		}
		for address, found := range view.kernel.byAddress {
			if !addresses[address] && found != absent {
				add(node, "there is a namespace of a pod that is gone: %s, with %s", address, found)
			}
		}
		for _, address := range view.kernel.probed {
			if !captured[address] {
				add(node, "probes are exempt for what is no captured pod: %s", address)
			}
		}
		for _, held := range view.kernel.held {
			add(node, "the agent holds %s", held)
		}
	}
	slices.Sort(lines)
	return lines
}
