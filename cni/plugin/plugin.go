// Package plugin is the CNI plugin: it tells the node's agent what the container
// runtime told it, and passes the answer on.
//
// It is chained after the plugin that makes the pod's interface, and is executed
// for every pod of the node, captured or not. It knows nothing of labels; the
// agent decides. Stdout carries the protocol alone: what happened is written to
// stderr when something is wrong, and to cni.log beside the agent's socket.
//
// ADD fails closed. Without an agent it fails for every pod, except those of the
// namespaces in allowWithoutAgent, which may be needed to repair the agent. DEL
// never fails: a pod whose DEL fails cannot be deleted.
//
// STATUS keeps a node from being ready before an agent has been: until one has, in this
// boot, pods cannot be judged. Afterwards ADD alone fails closed, since a node that is not
// ready loses the pods that run on it. A node of which the agent was taken away and the
// configuration left is given half an hour (orphanAfter) for one to start. GC has the agent
// forget pods whose sandboxes the runtime does not have any more.
//
// When the runtime kills the plugin, the connection to the agent closes, and the
// agent undoes what it had begun.
//
// # Failures it survives
//
//   - An agent that is absent, starting, replaced, killed in the middle of a request,
//     or hanging.
//   - A CNI_NETNS that is missing, no network namespace, or the host's.
//   - A configuration with a misspelt field, or one that is no JSON at all; a runtime
//     that adds fields and arguments of its own.
//   - A panic; a log that cannot be written, or that many plugins write and rotate at
//     once.
//   - A DEL that is repeated, late, or for a sandbox long gone.
//   - A configuration that was left on a node where no agent starts any more: it does not
//     keep the node from being ready for ever, and both errors say what to do.
//   - A GC without an agent, or with one that does not answer: there is nothing that it
//     would not find by itself.
package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

// Plugin is one execution of the plugin. Its fields are what it touches of the
// world.
type Plugin struct {
	getenv     func(string) string
	stdin      io.Reader
	stdout     io.Writer
	stderr     io.Writer
	dispatch   func(skel.CNIFuncs, version.PluginInfo, string) *types.Error
	call       func(ctx context.Context, socket string, req agentapi.Request) (agentapi.Response, error)
	checkNetns func(path string) error

	agentWait time.Duration // for an agent that is absent or starting
	totalWait time.Duration // for the answer to ADD or CHECK, agentWait included
	delWait   time.Duration // for the answer to DEL

	socket string // the agent's; the default until the configuration is read
	log    *slog.Logger
	file   *logFile
	result []byte // what ADD prints
}

// New returns the plugin of this process.
func New() *Plugin {
	return newPlugin(Plugin{
		getenv:   os.Getenv,
		stdin:    os.Stdin,
		stdout:   os.Stdout,
		stderr:   os.Stderr,
		dispatch: skel.PluginMainFuncsWithError,
		call: func(ctx context.Context, socket string, req agentapi.Request) (agentapi.Response, error) {
			return agentapi.Client{Socket: socket}.Call(ctx, req)
		},
		checkNetns: checkNetns,
		socket:     agentapi.Socket,
	})
}

// newPlugin completes p with the waits of the design and the logs.
func newPlugin(p Plugin) *Plugin {
	p.agentWait, p.totalWait, p.delWait = 5*time.Second, 10*time.Second, 2*time.Second
	p.file = &logFile{path: func() string { return agentapi.LogFile(p.socket) }, limit: 1 << 20}
	p.log = slog.New(slog.NewMultiHandler(
		slog.NewTextHandler(p.file, nil),
		slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: slog.LevelWarn, ReplaceAttr: withoutTime}),
	))
	return &p
}

// Run executes the command that the runtime asks for and returns the process's
// exit code. about is shown to people who start the plugin by hand.
func (p *Plugin) Run(about string) (code int) {
	command := p.getenv("CNI_COMMAND")
	defer p.file.close()
	defer func() {
		if panicked := recover(); panicked != nil {
			p.log.Error("the plugin panicked", "command", command, "panic", panicked, "stack", string(debug.Stack()))
			if code = 0; command != "DEL" {
				code = p.print(panicError(panicked))
			}
		}
	}()
	if command == "DEL" {
		// Not through skel, which refuses a bad configuration or environment.
		p.del()
		return 0
	}
	if command == "ADD" || command == "CHECK" {
		// Before anything else: skel looks after ADD has run.
		if err := p.checkNetns(p.getenv("CNI_NETNS")); err != nil {
			return p.fail(command, netnsError(err))
		}
	}
	err := p.dispatch(skel.CNIFuncs{Add: p.add, Check: p.check, Status: p.status, GC: p.gc}, supported, about)
	if err != nil {
		return p.fail(command, err)
	}
	if _, err := p.stdout.Write(p.result); err != nil {
		p.log.Error("cannot print the result", "command", command, "error", err)
		return 1
	}
	return 0
}

var supported = version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0")

// fail logs and prints why command failed.
func (p *Plugin) fail(command string, e *types.Error) int {
	p.log.Error("cannot serve the runtime", "command", command, "container", p.getenv("CNI_CONTAINERID"), "code", e.Code, "error", e)
	return p.print(e)
}

// print writes e as the specification wants it, and returns the exit code.
func (p *Plugin) print(e *types.Error) int {
	out, err := json.MarshalIndent(e, "", "    ")
	if err == nil {
		_, err = p.stdout.Write(append(out, '\n'))
	}
	if err != nil {
		p.log.Error("cannot print the error", "error", err)
	}
	return 1
}

func panicError(panicked any) *types.Error {
	return types.NewError(agentapi.CodeInternal, fmt.Sprintf("fairlead-cni has a defect: %v", panicked),
		"the stack is in cni.log beside the agent's socket, and on the container runtime's stderr")
}

func netnsError(err error) *types.Error {
	return types.NewError(agentapi.CodeNamespace, fmt.Sprintf("cannot use the network namespace in CNI_NETNS: %v", err),
		"nothing was changed; the container runtime must pass the path of the pod's own network namespace")
}

// configure parses the configuration; from then on its socket counts.
func (p *Plugin) configure(stdin []byte) (*config, error) {
	c, err := parseConfig(stdin)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "correct the entry of type fairlead-cni in the CNI configuration")
	}
	p.socket = c.AgentSocket
	return c, nil
}
