// Package config reads the agent's one configuration file: strict, versioned YAML
// in the manner of the kubelet's. A field that it does not know is refused by
// name; a field that is left out has the default that [Default] gives.
//
// # Failures it survives
//
//   - A field that does not exist or stands twice, a value of another type or out of
//     range: refused with the field's name, what stands there and what may stand
//     there, all of them at once.
//   - A path too long for a socket, waits too long for the plugin: refused here, and
//     not by the kernel at the start or by the runtime at a pod's ADD.
//   - A file of another kind or version: refused before any of its fields is read. Of
//     several documents in one file the second would be overlooked: refused.
//   - What is valid and hardly meant: [Config.Warnings] says it.
package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/hostnet"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/strictyaml"
	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// The file's own identity, and where it lies unless said otherwise.
const (
	APIVersion  = "agent.fairlead.io/v1alpha1"
	Kind        = "AgentConfig"
	DefaultPath = "/etc/fairlead/config.yaml"
)

// Config is the agent's configuration.
type Config struct {
	metav1.TypeMeta `json:",inline"`

	// RunDir holds the agent's socket, its lock and its log files; a tmpfs.
	RunDir string `json:"runDir"`
	// Kubeconfig is how the Kubernetes API is reached; empty if the agent runs in the
	// cluster. Not used with --pods-from.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// NodeName is the name of this node in the API; empty if NODE_NAME in the environment
	// says it. Not used with --pods-from.
	NodeName string `json:"nodeName,omitempty"`
	// ProxySocket is where node proxies dial in.
	ProxySocket string `json:"proxySocket"`
	// HTTPAddress serves /metrics, /readyz and /livez; empty serves none of them.
	HTTPAddress string `json:"httpAddress"`
	// CNICache is where libcni keeps the results of ADDs, by which pods that started
	// before the agent are found. It is the runtime's to choose.
	CNICache string `json:"cniCache"`
	// LogLevel is debug, info, warn or error.
	LogLevel slog.Level `json:"logLevel"`

	// ExcludeNamespaces are never captured, whatever their labels say.
	ExcludeNamespaces []string `json:"excludeNamespaces"`
	// EnablementSelectors choose the pods; one that matches is enough.
	EnablementSelectors []Selector `json:"enablementSelectors"`
	// UnsupportedRuntimeClasses are the runtime classes, by their names or their handlers',
	// whose pods have a network stack of their own and are never captured; a * stands for
	// any text.
	UnsupportedRuntimeClasses []string `json:"unsupportedRuntimeClasses"`
	// DNSCapture is the default for pods that do not say.
	DNSCapture bool `json:"dnsCapture"`
	// ExistingConnections says what becomes of connections that are older than a pod's
	// capture: reset, keep, or, left out, by their cause.
	ExistingConnections intent.Existing `json:"existingConnections,omitempty"`
	// Installed is when Fairlead was installed on this cluster, as 2026-01-02T15:04:05Z:
	// what started later has been promised capture, and its connections that are older
	// than that are reset if it ran before the agent did. Left out, it is when the agent's
	// DaemonSet was created; without one it is not known.
	Installed metav1.Time `json:"installed,omitzero"`
	// ProbeAddresses are the kubelet's source addresses as captured pods see them.
	ProbeAddresses ProbeAddresses `json:"probeAddresses"`
	// Probes says how the kubelet's health probes get these addresses: snat, by rules in
	// the host's network namespace; hostIP, the host has them; off, not at all.
	Probes hostnet.Probes `json:"probes"`
	// ProbeMark is the bit of the host's connection marks that snat uses: one that nothing
	// else on the host does.
	ProbeMark uint32 `json:"probeMark"`
	// KubeletProcesses are the names of processes that may be the kubelet.
	KubeletProcesses []string `json:"kubeletProcesses"`

	// Install has the agent install the CNI plugin on its node; left out, it does not.
	Install *Install `json:"install,omitempty"`

	// Node is what the API is to show of the agent's node, nothing unless it is said.
	Node Node `json:"node"`

	// Waits bound what a CNI ADD waits for.
	Waits Waits `json:"waits"`
	// AckTimeout closes the connection of a proxy that does not answer.
	AckTimeout metav1.Duration `json:"ackTimeout"`
	// ReleaseGrace and DrainTimeout are how long, at least and at most, a released
	// pod's proxied connections may go on.
	ReleaseGrace metav1.Duration `json:"releaseGrace"`
	DrainTimeout metav1.Duration `json:"drainTimeout"`
	// SweepInterval is how often each pod is compared with its intent when nothing
	// else calls for it.
	SweepInterval metav1.Duration `json:"sweepInterval"`
}

// A Selector is one enablement selector; a part left out matches everything.
type Selector struct {
	PodSelector       *metav1.LabelSelector `json:"podSelector,omitempty"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
}

// ProbeAddresses is one address of each family.
type ProbeAddresses struct {
	IPv4 netip.Addr `json:"ipv4"`
	IPv6 netip.Addr `json:"ipv6"`
}

// Waits are the bounds of what an ADD waits for: its pod's object, a proxy, and
// the proxy's answer. Together they are bounded by what the plugin waits for the
// agent, so each must leave room for an answer that says why. What the plugin waits
// is fixed: 5 s for an agent, 10 s in all for the answer to ADD, 2 s for that to DEL.
type Waits struct {
	Pod   metav1.Duration `json:"pod"`
	Proxy metav1.Duration `json:"proxy"`
	Ack   metav1.Duration `json:"ack"`
}

// Default returns the configuration of an empty file.
func Default() Config {
	seconds := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }
	return Config{
		TypeMeta:          metav1.TypeMeta{APIVersion: APIVersion, Kind: Kind},
		RunDir:            "/run/fairlead",
		ProxySocket:       ztunnelproto.DefaultSocket,
		HTTPAddress:       ":15014",
		CNICache:          "/var/lib/cni/results",
		LogLevel:          slog.LevelInfo,
		ExcludeNamespaces: []string{"kube-system"},
		EnablementSelectors: []Selector{
			{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{intent.LabelMode: intent.ModeAmbient}}},
			{
				PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: intent.LabelMode, Operator: metav1.LabelSelectorOpNotIn, Values: []string{intent.ModeNone}},
				}},
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{intent.LabelMode: intent.ModeAmbient}},
			},
		},
		UnsupportedRuntimeClasses: []string{"gvisor", "runsc", "kata*"},

		DNSCapture:     true,
		ProbeAddresses: ProbeAddresses{IPv4: ruleset.DefaultProbeIPv4, IPv6: ruleset.DefaultProbeIPv6},
		Probes:         hostnet.SNAT, ProbeMark: hostnet.DefaultMark, KubeletProcesses: hostnet.DefaultNames(),
		Node:          Node{Taint: TaintNone},
		Waits:         Waits{Pod: seconds(5), Proxy: seconds(5), Ack: seconds(5)},
		AckTimeout:    seconds(10),
		ReleaseGrace:  seconds(5),
		DrainTimeout:  seconds(30),
		SweepInterval: seconds(10),
	}
}

// Load reads the file at path.
func Load(path string) (Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("cannot read the configuration: %w", err)
	}
	c, err := Parse(text)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// Parse reads a configuration, fills in the defaults and validates it.
func Parse(text []byte) (Config, error) {
	doc, err := strictyaml.Parse(text)
	if err == nil {
		err = single(text)
	}
	if err != nil {
		return Config{}, err
	}
	if version, kind := doc.Text("apiVersion"), doc.Text("kind"); version != APIVersion || kind != Kind {
		return Config{}, fmt.Errorf("the file has apiVersion %q and kind %q, but this agent reads apiVersion: %s, kind: %s", version, kind, APIVersion, Kind)
	}
	c := Default()
	problems := doc.Decode(&c)
	if c.Install != nil {
		c.Install.complete(c)
	}
	if err := c.Validate(); err != nil {
		problems = append(problems, err)
	}
	if problems != nil {
		return Config{}, fmt.Errorf("invalid configuration:\n%w", errors.Join(problems...))
	}
	return c, nil
}

// single refuses what follows the first document and would not be read.
func single(text []byte) error {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for found := 0; ; {
		part, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("not YAML: %w", err)
		}
		if doc, err := strictyaml.Parse(part); err == nil && doc.Empty() {
			continue
		}
		if found++; found > 1 {
			return errors.New("the file has more than one YAML document, set apart by ---; a configuration is one")
		}
	}
}

// Warnings says what is valid and hardly meant.
func (c Config) Warnings() []string {
	var warnings []string
	if len(c.EnablementSelectors) == 0 {
		warnings = append(warnings, "enablementSelectors is an empty list: no pod is captured, whatever its labels say; leave the field out for the default")
	}
	// No more than a warning: a node without a clock of its own is in the past for a while
	// after each boot.
	if now := time.Now(); c.Installed.After(now) {
		warnings = append(warnings, fmt.Sprintf("installed: %s is in the future; on this node it is %s",
			c.Installed.UTC().Format(time.RFC3339), now.UTC().Format(time.RFC3339)))
	}
	return warnings
}

// Policy returns what the configuration says of which pods are captured.
func (c Config) Policy() (intent.Policy, error) {
	p := intent.Policy{
		ExcludeNamespaces: c.ExcludeNamespaces, CaptureDNS: c.DNSCapture, Existing: c.ExistingConnections,
		OwnStacks: c.UnsupportedRuntimeClasses,
	}
	var errs []error
	for i, pattern := range c.UnsupportedRuntimeClasses {
		if _, err := path.Match(pattern, ""); err != nil {
			errs = append(errs, fmt.Errorf("unsupportedRuntimeClasses[%d]: %q is not a name or a pattern such as kata*", i, pattern))
		}
	}
	for i, s := range c.EnablementSelectors {
		field := fmt.Sprintf("enablementSelectors[%d].", i)
		pod, podErr := selector(field+"podSelector", s.PodSelector)
		namespace, nsErr := selector(field+"namespaceSelector", s.NamespaceSelector)
		errs = append(errs, podErr, nsErr)
		p.Selectors = append(p.Selectors, intent.Selector{Pod: pod, Namespace: namespace})
	}
	return p, errors.Join(errs...)
}

// File returns the path of a file in the run directory.
func (c Config) File(name string) string { return filepath.Join(c.RunDir, name) }

func selector(field string, s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return labels.Everything(), nil
	}
	for i, e := range s.MatchExpressions {
		switch e.Operator {
		case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
		default:
			return nil, fmt.Errorf("%s.matchExpressions[%d].operator: %q is not In, NotIn, Exists or DoesNotExist", field, i, e.Operator)
		}
	}
	parsed, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return parsed, nil
}
