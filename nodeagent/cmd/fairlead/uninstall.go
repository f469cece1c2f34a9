package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/cni/install"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
	"github.com/fairlead-mesh/fairlead/nodeagent/kube"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// Uninstall takes from the node what the agent has put there beside the pods, and does not
// put it there again. A step that fails does not keep the next from being taken.
func (a *agent) Uninstall(ctx context.Context, done func(status.Step) error) error {
	if err := a.drained.set(true, a.installation()); err != nil {
		return err
	}
	var errs []error
	say := func(s status.Step) { errs = append(errs, done(s)) }
	if s, written := a.leaveNode(ctx); written { // first: an agent that is not installed would put the taint back
		say(s)
	}
	list := a.removeList(ctx)
	say(list)
	say(step("the rules in the host's network namespace (table inet fairlead)", a.probes.Remove(ctx)))
	say(a.removeRemnants(ctx))
	say(a.removePlugin(ctx, list.Outcome == status.Failed))
	say(a.keepRunDir())
	return errors.Join(errs...)
}

// leaveNode takes away what the API shows of the node, if anything of it is ours.
func (a *agent) leaveNode(ctx context.Context) (s status.Step, written bool) {
	const what = "the node's startup taint and its condition in the API"
	if a.nodeWriter != nil {
		return step(what, a.nodeWriter.Leave(ctx)), true
	}
	if !a.guest {
		return status.Step{}, false
	}
	node := cmp.Or(a.config.NodeName, os.Getenv("NODE_NAME"), "NODE")
	var commands []string
	if a.config.Node.Taint != config.TaintNone {
		commands = append(commands, fmt.Sprintf("kubectl taint node %s %s-", node, kube.StartupTaint))
	}
	if a.config.Node.Condition {
		commands = append(commands, fmt.Sprintf(`kubectl patch node %s --subresource status -p '{"status":{"conditions":[{"type":"%s","$patch":"delete"}]}}'`, node, kube.NodeCondition))
	}
	return status.Step{What: what, Outcome: status.Kept, Message: "no agent runs that could take them away; if they are there: " + strings.Join(commands, "; ")}, commands != nil
}

func step(what string, err error) status.Step {
	if err != nil {
		return status.Step{What: what, Outcome: status.Failed, Message: err.Error()}
	}
	return status.Step{What: what, Outcome: status.Removed}
}

const byHand = "the agent does not install it (no install: in its configuration): whoever has put it there takes it away"

func (a *agent) removeList(ctx context.Context) status.Step {
	if a.installer == nil {
		return status.Step{What: "the plugin's entry in the runtime's configuration", Outcome: status.Kept, Message: byHand}
	}
	return step(install.PluginName+" in "+a.config.Install.CNIConfDir, a.installer.Remove(ctx))
}

// removeRemnants takes what is ours out of namespaces of which nobody knows whose they are.
// Those of pods that are captured even so are as they were: they are said to be left.
func (a *agent) removeRemnants(ctx context.Context) status.Step {
	const what = "rules in pods that nobody knows"
	if left := a.left(); left > 0 {
		return status.Step{What: what, Outcome: status.Kept, Message: fmt.Sprintf("%d pods have not been released: what is redirected in them goes to the node proxy", left)}
	}
	swept, unread, err := a.opener.Sweep(ctx)
	s := step(what, err)
	if err != nil {
		return s
	}
	var notes []string
	if len(swept) > 0 {
		notes = append(notes, "found in "+strings.Join(swept, ", ")+", and not drained")
	}
	if len(unread) > 0 {
		s.Outcome = status.Kept
		notes = append(notes, fmt.Sprintf("of what libcni has written down %d cannot be read, and rules may be left in the pods that it is about; the first: %v; "+
			"restart such pods, or all that were started before now", len(unread), unread[0]))
	}
	s.Message = strings.Join(notes, "; ")
	return s
}

func (a *agent) left() (left int) {
	for _, p := range a.reconciler.Report() {
		if p.Left() {
			left++
		}
	}
	return left
}

// reloadPatience is how long the runtime may take to load its configuration without ours.
// Nobody says when it has: one that has not, and executes what is not there, tries again.
const reloadPatience = 2 * time.Second

// removePlugin removes the plugin's binary where the runtime needs it no more. CRI-O deletes
// a pod by the list that it was started with, and a pod whose DEL finds no binary hangs.
func (a *agent) removePlugin(ctx context.Context, named bool) status.Step {
	c := a.config.Install
	if c == nil {
		return status.Step{What: "the plugin's binary", Outcome: status.Kept, Message: byHand}
	}
	path := filepath.Join(c.CNIBinDir, install.PluginName)
	s := status.Step{What: path, Outcome: status.Kept}
	then := "when no pod is left that was started before now: rm " + path
	switch runtime, err := runtimeOf("/proc"); {
	case named:
		s.Message = install.ErrNamed.Error() + ", and no pod would start or end without it"
	case err != nil:
		s.Message = fmt.Sprintf("which runtime this is cannot be told: %v; %s", err, then)
	case runtime == crio:
		s.Message = "CRI-O executes it when it deletes pods that were started with it; " + then
	case runtime == "":
		s.Message = "no container runtime is seen, and CRI-O would need it; " + then
	default:
		sleep(ctx, reloadPatience)
		return step(path, a.installer.RemoveBinary())
	}
	return s
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

const crio = "crio"

// runtimeOf names the container runtime that runs; CRI-O if it is among several.
func runtimeOf(proc string) (string, error) {
	if _, err := os.Stat(filepath.Join(proc, "1")); err != nil {
		return "", fmt.Errorf("no processes are seen: %w", err)
	}
	found := ""
	for _, name := range install.Runtimes(proc) {
		if found = name; name == crio {
			break
		}
	}
	return found, nil
}

// keepRunDir says what becomes of the run directory, which the agent needs while it runs.
func (a *agent) keepRunDir() status.Step {
	return status.Step{What: a.config.RunDir, Outcome: status.Kept, Message: fmt.Sprintf(
		"emptied when the agent ends, but for %s: until the next boot it keeps an agent that is started again from installing anything", filepath.Base(a.drained.path))}
}

// emptyRunDir is the agent's last act on a node that was uninstalled. The directory itself
// may be a mount point.
func (a *agent) emptyRunDir() error {
	if !a.drained.uninstalled() {
		return nil
	}
	entries, err := os.ReadDir(a.config.RunDir)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	for _, entry := range entries {
		if path := a.config.File(entry.Name()); path != a.drained.path {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	return errors.Join(err, removeDead(a.config.ProxySocket))
}

// removeDead removes a socket on which nobody accepts.
func removeDead(socket string) error {
	info, err := os.Lstat(socket)
	if err == nil && info.Mode().Type() == fs.ModeSocket && errors.Is(dial(socket), unix.ECONNREFUSED) {
		return os.Remove(socket)
	}
	return nil
}

// dial says why nobody accepts on the proxies' socket, or nil.
func dial(socket string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	conn, err := ztunnelproto.Dial(ctx, socket)
	if err != nil {
		return err
	}
	return conn.Close()
}

// unlessUninstalled runs a part of the agent, unless the node was uninstalled: then what it had
// put there is removed. A guest puts nothing there, and removes what it is told to.
func (a *agent) unlessUninstalled(ctx context.Context, run func(context.Context) error, remove func(context.Context) error) error {
	if a.guest {
		return nil
	}
	if a.drained.uninstalled() {
		select {
		case <-a.judged:
		case <-ctx.Done():
			return nil
		}
	}
	if !a.drained.uninstalled() {
		return run(ctx)
	}
	if err := remove(ctx); err != nil {
		a.logger.Warn("the node was uninstalled, and not all is gone: run fairlead uninstall again", "error", err)
	}
	<-ctx.Done()
	return nil
}
