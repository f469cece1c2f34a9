package main

import (
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/hostnet"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// exemptProbes makes what lets the kubelet's health probes into captured pods. The agent
// lives in the host's network namespace.
func (a *agent) exemptProbes() error {
	// It is open for as long as the process lives.
	host, err := netns.Current()
	if err != nil {
		return err
	}
	a.probes, err = hostnet.New(hostnet.Config{
		Host: host, Probes: a.config.Probes, Watcher: a.watcher,
		Mark: a.config.ProbeMark, IPv4: a.config.ProbeAddresses.IPv4, IPv6: a.config.ProbeAddresses.IPv6,
		Names: a.config.KubeletProcesses, Within: netns.InCgroup,
		Look: time.Second, Sweep: a.config.SweepInterval.Duration,
		Changed: a.probesChanged(),
	})
	if err != nil {
		return err
	}
	a.registry.MustRegister(a.probes)
	return nil
}

// probesChanged tells, in the log, what is new about the exemption.
func (a *agent) probesChanged() func(hostnet.Status) {
	var last hostnet.Status
	return func(now hostnet.Status) {
		if now.Kubelet != last.Kubelet {
			a.logger.Info("the kubelet's health probes are told by", "mode", now.Kubelet.Mode, "pid", now.Kubelet.PID, "cgroup", now.Kubelet.Cgroup, "reason", now.Kubelet.Reason)
		}
		if now.Repairs != last.Repairs {
			a.logger.Warn("the exemption of health probes was put right", "drift", strings.Join(now.Drift, "; "), "by", now.By)
		}
		if now.Unguarded != "" && now.Unguarded != last.Unguarded {
			a.logger.Warn("pods' interfaces are not guarded: a pod may send from the probes' address", "reason", now.Unguarded)
		}
		if now.Problem != "" && now.Problem != last.Problem {
			a.logger.Warn("health probes of captured pods may fail", "problem", now.Problem)
		}
		last = now
	}
}
