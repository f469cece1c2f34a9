package ruleset

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Config is what one pod's redirection depends on.
type Config struct {
	// CaptureDNS sends the pod's DNS queries (port 53, UDP and TCP) to the proxy.
	CaptureDNS bool
	// Ingress leaves inbound connections alone (annotation ambient.istio.io/bypass-inbound-capture).
	Ingress bool
	// VirtualInterfaces are interfaces behind which something else lives, a virtual machine for instance: what comes in
	// on them is treated as outbound traffic (annotation istio.io/reroute-virtual-interfaces).
	VirtualInterfaces []string
	// IPv4 and IPv6 say which families the pod's kernel has. A family that exists and is not named here is not captured.
	IPv4, IPv6 bool
	// ProbeIPv4 and ProbeIPv6 are the source addresses of the kubelet's probes; unset means the default ones.
	ProbeIPv4, ProbeIPv6 netip.Addr
	// Form has no default: a wrong guess either leaks or resets connections.
	Form Form
}

// Equal reports whether two configurations are the same.
func (c Config) Equal(d Config) bool {
	return c.CaptureDNS == d.CaptureDNS && c.Ingress == d.Ingress && slices.Equal(c.VirtualInterfaces, d.VirtualInterfaces) &&
		c.IPv4 == d.IPv4 && c.IPv6 == d.IPv6 && c.ProbeIPv4 == d.ProbeIPv4 && c.ProbeIPv6 == d.ProbeIPv6 && c.Form == d.Form
}

// maxInterfaces keeps an annotation from making a table that is too large to be sent or checked at once.
const maxInterfaces = 64

// Form says how much of the ruleset is wanted.
type Form uint8

const (
	// FormMarks is only what a proxied connection needs to stay alive: marks, DNS zones and a place on the nat hook. Nothing
	// is captured. It stands before the proxy has acknowledged a pod and while a pod is being released.
	FormMarks Form = iota + 1
	// FormSYN captures the connections that begin from now on, so that older ones live. It leaks what it must
	// not capture: a proxied connection whose conntrack entry is lost goes on in the clear. Only while older ones exist.
	FormSYN
	// FormFull captures every TCP packet that conntrack sees first, be it a SYN or not: a connection whose entry was
	// lost goes back to the proxy or is reset, never out.
	FormFull
)

func (f Form) String() string {
	switch f {
	case FormMarks:
		return "marks"
	case FormSYN:
		return "syn"
	case FormFull:
		return "full"
	}
	return fmt.Sprintf("form(%d)", uint8(f))
}

// MarshalText gives String's form, to be written down.
func (f Form) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText reads MarshalText's form.
func (f *Form) UnmarshalText(text []byte) error {
	for form := range FormFull + 1 {
		if form.String() == string(text) {
			*f = form
			return nil
		}
	}
	return fmt.Errorf("there is no form %q", text)
}

// CheckInterface says why a name cannot be the name of a virtual interface, or nil.
//
// Wildcards are refused, not taken literally: a name that can match nothing would leave the traffic out in silence.
func CheckInterface(name string) error {
	const maxName = 15 // IFNAMSIZ less the terminating zero
	switch {
	case name == "":
		return errors.New("an interface name is empty")
	case len(name) > maxName:
		return fmt.Errorf("interface name %q is longer than %d characters", name, maxName)
	case name == "." || name == "..":
		return fmt.Errorf("interface name %q is not allowed by the kernel", name)
	case name == Loopback:
		return errors.New(`interface "lo" cannot be a virtual interface: nothing enters the pod there`)
	case strings.HasSuffix(name, "+") || strings.Contains(name, "*"):
		return fmt.Errorf("interface name %q holds a wildcard: name each interface", name)
	}
	for i := range len(name) {
		if c := name[i]; c <= ' ' || c > '~' || strings.IndexByte(`/:"\`, c) >= 0 {
			return fmt.Errorf("interface name %q holds the character %q: "+
				`allowed are the visible ASCII characters without / : " and \`, name, c)
		}
	}
	return nil
}

// normal is a Config with defaults filled in and repeated interfaces removed, if it is one that makes sense.
func (c Config) normal() (Config, error) {
	var errs []error
	if c.Form < FormMarks || c.Form > FormFull {
		errs = append(errs, fmt.Errorf("there is no form %d", c.Form))
	}
	if !c.IPv4 && !c.IPv6 {
		errs = append(errs, errors.New("neither IPv4 nor IPv6 is on"))
	}
	if !c.ProbeIPv4.IsValid() {
		c.ProbeIPv4 = DefaultProbeIPv4
	}
	if !c.ProbeIPv6.IsValid() {
		c.ProbeIPv6 = DefaultProbeIPv6
	}
	if !c.ProbeIPv4.Is4() {
		errs = append(errs, fmt.Errorf("probe address %s is not an IPv4 address", c.ProbeIPv4))
	}
	if !c.ProbeIPv6.Is6() || c.ProbeIPv6.Is4In6() || c.ProbeIPv6.Zone() != "" {
		errs = append(errs, fmt.Errorf("probe address %s is not a plain IPv6 address", c.ProbeIPv6))
	}
	for _, a := range []netip.Addr{c.ProbeIPv4, c.ProbeIPv6} {
		if a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() {
			errs = append(errs, fmt.Errorf("probe address %s cannot be the source of a probe", a))
		}
	}
	seen := make(map[string]bool)
	var names []string
	for _, name := range c.VirtualInterfaces {
		if err := CheckInterface(name); err != nil {
			errs = append(errs, err)
		} else if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	if len(names) > maxInterfaces {
		errs = append(errs, fmt.Errorf("%d virtual interfaces are more than %d", len(names), maxInterfaces))
	}
	c.VirtualInterfaces = names
	if len(errs) > 0 {
		// One line: it ends up in what `kubectl describe pod` shows.
		return Config{}, errors.New(strings.ReplaceAll(errors.Join(errs...).Error(), "\n", "; "))
	}
	return c, nil
}
