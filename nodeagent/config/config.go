// Package config reads the agent's one configuration file: strict, versioned YAML
// in the manner of the kubelet's. A field that it does not know is refused by
// name; a field that is left out has the default that [Default] gives.
//
// # Failures it survives
//
//   - A typing error, a field of another version, a value of another type: refused by
//     name, the first one only, since what follows it may be meant otherwise.
//   - A value out of range: refused with the field's name, what stands there and what
//     may stand there; all such values are named at once.
//   - A path too long for a socket, waits too long for the plugin: refused here, and
//     not by the kernel at the start or by the runtime at a pod's ADD.
//   - A file of another kind or version: refused before any of its fields is read.
package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
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
	// ProxySocket is where node proxies dial in.
	ProxySocket string `json:"proxySocket"`
	// HTTPAddress serves /metrics, /readyz and /livez; empty serves none of them.
	HTTPAddress string `json:"httpAddress"`
	// LogLevel is debug, info, warn or error.
	LogLevel slog.Level `json:"logLevel"`

	// ExcludeNamespaces are never captured, whatever their labels say.
	ExcludeNamespaces []string `json:"excludeNamespaces"`
	// EnablementSelectors choose the pods; one that matches is enough.
	EnablementSelectors []Selector `json:"enablementSelectors"`
	// DNSCapture is the default for pods that do not say.
	DNSCapture bool `json:"dnsCapture"`
	// ProbeAddresses are the kubelet's source addresses as captured pods see them.
	ProbeAddresses ProbeAddresses `json:"probeAddresses"`

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
// agent, so each must leave room for an answer that says why.
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
		ProxySocket:       "/var/run/ztunnel/ztunnel.sock",
		HTTPAddress:       ":15014",
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
		DNSCapture:     true,
		ProbeAddresses: ProbeAddresses{IPv4: ruleset.DefaultProbeIPv4, IPv6: ruleset.DefaultProbeIPv6},
		Waits:          Waits{Pod: seconds(5), Proxy: seconds(5), Ack: seconds(5)},
		AckTimeout:     seconds(10),
		ReleaseGrace:   seconds(5),
		DrainTimeout:   seconds(30),
		SweepInterval:  seconds(10),
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
	var head metav1.TypeMeta
	if err := yaml.Unmarshal(text, &head); err != nil {
		return Config{}, fmt.Errorf("not YAML: %w", err)
	}
	if head.APIVersion != APIVersion || head.Kind != Kind {
		return Config{}, fmt.Errorf("the file is %q %q, but this agent reads apiVersion: %s, kind: %s", head.APIVersion, head.Kind, APIVersion, Kind)
	}
	defaults := Default()
	c := defaults
	// A list replaces the default as a whole; decoded over it, their elements would mix.
	c.ExcludeNamespaces, c.EnablementSelectors = nil, nil
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return Config{}, fmt.Errorf("invalid configuration: %w", err)
	}
	if c.ExcludeNamespaces == nil {
		c.ExcludeNamespaces = defaults.ExcludeNamespaces
	}
	if c.EnablementSelectors == nil {
		c.EnablementSelectors = defaults.EnablementSelectors
	}
	if err := c.Validate(); err != nil {
		return Config{}, fmt.Errorf("invalid configuration:\n%w", err)
	}
	return c, nil
}

// Validate says all that is wrong with the configuration.
func (c Config) Validate() error {
	_, policyErr := c.Policy()
	errs := []error{
		policyErr,
		socket("runDir", c.RunDir, c.File("agent.sock")),
		socket("proxySocket", c.ProxySocket, c.ProxySocket),
		family("probeAddresses.ipv4", c.ProbeAddresses.IPv4, c.ProbeAddresses.IPv4.Is4(), "IPv4"),
		family("probeAddresses.ipv6", c.ProbeAddresses.IPv6, c.ProbeAddresses.IPv6.Is6() && !c.ProbeAddresses.IPv6.Is4In6(), "IPv6"),
		wait("waits.pod", c.Waits.Pod, 0),
		wait("waits.proxy", c.Waits.Proxy, 0),
		wait("waits.ack", c.Waits.Ack, time.Millisecond),
		between("ackTimeout", c.AckTimeout, time.Millisecond, time.Minute),
		between("releaseGrace", c.ReleaseGrace, 0, c.DrainTimeout.Duration),
		between("drainTimeout", c.DrainTimeout, 0, time.Hour),
		between("sweepInterval", c.SweepInterval, 10*time.Millisecond, time.Hour),
	}
	if c.HTTPAddress != "" {
		if _, _, err := net.SplitHostPort(c.HTTPAddress); err != nil {
			errs = append(errs, fmt.Errorf("httpAddress: %q is not host:port or :port", c.HTTPAddress))
		}
	}
	return errors.Join(errs...)
}

// Policy returns what the configuration says of which pods are captured.
func (c Config) Policy() (intent.Policy, error) {
	p := intent.Policy{ExcludeNamespaces: c.ExcludeNamespaces, CaptureDNS: c.DNSCapture}
	for i, s := range c.EnablementSelectors {
		pod, podErr := selector(s.PodSelector)
		namespace, nsErr := selector(s.NamespaceSelector)
		if err := errors.Join(podErr, nsErr); err != nil {
			return intent.Policy{}, fmt.Errorf("enablementSelectors[%d]: %w", i, err)
		}
		p.Selectors = append(p.Selectors, intent.Selector{Pod: pod, Namespace: namespace})
	}
	return p, nil
}

// File returns the path of a file in the run directory.
func (c Config) File(name string) string { return filepath.Join(c.RunDir, name) }

func selector(s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return labels.Everything(), nil
	}
	return metav1.LabelSelectorAsSelector(s)
}

// maxSocketPath is what the kernel takes (107 bytes), less the ending under which a
// socket is bound before it is renamed.
const maxSocketPath = 103

// socket checks the field's value and the socket's path that follows from it.
func socket(field, value, path string) error {
	if !filepath.IsAbs(value) {
		return fmt.Errorf("%s: %q is not an absolute path", field, value)
	}
	if n := len(path); n > maxSocketPath {
		return fmt.Errorf("%s: the path of the socket %s has %d bytes, the most is %d: choose a shorter one", field, path, n, maxSocketPath)
	}
	return nil
}

func family(field string, addr netip.Addr, ok bool, want string) error {
	if !ok {
		return fmt.Errorf("%s: %q is not an %s address", field, addr, want)
	}
	return nil
}

func between(field string, d metav1.Duration, low, high time.Duration) error {
	if d.Duration < low || d.Duration > high {
		return fmt.Errorf("%s: %s is not between %s and %s", field, d.Duration, low, high)
	}
	return nil
}

// maxWait keeps the agent's answer within the 10 s that the plugin waits for it.
const maxWait = 9 * time.Second

func wait(field string, d metav1.Duration, low time.Duration) error {
	if d.Duration < low || d.Duration >= maxWait {
		return fmt.Errorf("%s: %s is not at least %s and less than %s; the plugin gives an ADD up after 10s, and would not learn the reason",
			field, d.Duration, low, maxWait)
	}
	return nil
}
