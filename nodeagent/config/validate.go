package config

import (
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"path/filepath"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-mesh/fairlead/nodeagent/hostnet"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
)

// Validate says all that is wrong with the configuration.
func (c Config) Validate() error {
	_, policyErr := c.Policy()
	switch c.ExistingConnections {
	case intent.ByCause, intent.Reset, intent.Keep:
	default:
		policyErr = errors.Join(policyErr, fmt.Errorf("existingConnections: %q is neither %s nor %s", c.ExistingConnections, intent.Reset, intent.Keep))
	}
	errs := []error{
		policyErr,
		socket("runDir", c.RunDir, c.File("agent.sock")),
		socket("proxySocket", c.ProxySocket, c.ProxySocket),
		absolute("cniCache", c.CNICache),
		optional("kubeconfig", c.Kubeconfig),
		c.Install.validate(),
		c.Node.validate(),
		family("probeAddresses.ipv4", c.ProbeAddresses.IPv4, c.ProbeAddresses.IPv4.Is4(), "IPv4"),
		family("probeAddresses.ipv6", c.ProbeAddresses.IPv6, c.ProbeAddresses.IPv6.Is6() && !c.ProbeAddresses.IPv6.Is4In6(), "IPv6"),
		c.probes(),
		wait("waits.pod", c.Waits.Pod, 0),
		wait("waits.proxy", c.Waits.Proxy, 0),
		wait("waits.ack", c.Waits.Ack, time.Millisecond),
		between("ackTimeout", c.AckTimeout, time.Millisecond, time.Minute),
		between("drainTimeout", c.DrainTimeout, 0, time.Hour),
		between("sweepInterval", c.SweepInterval, 10*time.Millisecond, time.Hour),
	}
	if grace, drain := c.ReleaseGrace.Duration, c.DrainTimeout.Duration; grace < 0 || grace > drain {
		errs = append(errs, fmt.Errorf("releaseGrace: %s is not between 0s and drainTimeout, which is %s", grace, drain))
	}
	if c.HTTPAddress != "" {
		if _, _, err := net.SplitHostPort(c.HTTPAddress); err != nil {
			errs = append(errs, fmt.Errorf("httpAddress: %q is not host:port or :port", c.HTTPAddress))
		}
	}
	return errors.Join(errs...)
}

func (c Config) probes() error {
	var errs []error
	switch c.Probes {
	case hostnet.SNAT, hostnet.HostIP, hostnet.Off:
	default:
		errs = append(errs, fmt.Errorf("probes: %q is neither %s, %s nor %s", c.Probes, hostnet.SNAT, hostnet.HostIP, hostnet.Off))
	}
	if bits.OnesCount32(c.ProbeMark) != 1 {
		errs = append(errs, fmt.Errorf("probeMark: %#x is not one bit, as %#x", c.ProbeMark, hostnet.DefaultMark))
	}
	const mostName = 15 // of a process
	for i, name := range c.KubeletProcesses {
		if name == "" || len(name) > mostName {
			errs = append(errs, fmt.Errorf("kubeletProcesses[%d]: %q is no process's name as /proc/PID/comm has it, 1 to %d bytes", i, name, mostName))
		}
	}
	if len(c.KubeletProcesses) == 0 {
		errs = append(errs, errors.New("kubeletProcesses: the list is empty; leave the field out for the default"))
	}
	return errors.Join(errs...)
}

// maxSocketPath is what the kernel takes (107 bytes), less the ending under which a
// socket is bound before it is renamed.
const maxSocketPath = 103

// socket checks the field's value and the socket's path that follows from it.
func socket(field, value, path string) error {
	if err := absolute(field, value); err != nil {
		return err
	}
	if n := len(path); n > maxSocketPath {
		return fmt.Errorf("%s: the path of the socket %s has %d bytes, the most is %d: choose a shorter one", field, path, n, maxSocketPath)
	}
	return nil
}

func optional(field, path string) error {
	if path == "" {
		return nil
	}
	return absolute(field, path)
}

func absolute(field, path string) error {
	if !filepath.IsAbs(path) {
		return fmt.Errorf("%s: %q is not an absolute path", field, path)
	}
	return nil
}

func family(field string, addr netip.Addr, ok bool, want string) error {
	text := ""
	if addr.IsValid() {
		text = addr.String()
	}
	if !ok {
		return fmt.Errorf("%s: %q is not an %s address", field, text, want)
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
