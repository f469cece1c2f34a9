package plugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

// Pauses between attempts to reach the agent: dialling costs microseconds, and
// an agent that has just started is noticed at once.
const (
	firstPause = 10 * time.Millisecond
	maxPause   = 160 * time.Millisecond
)

func (p *Plugin) add(args *skel.CmdArgs) error {
	before, err := p.forward("ADD", args, func(a *agentapi.Attachment) agentapi.Request {
		return agentapi.Request{Add: a}
	})
	p.result = before.print
	return err
}

func (p *Plugin) check(args *skel.CmdArgs) error {
	_, err := p.forward("CHECK", args, func(a *agentapi.Attachment) agentapi.Request {
		return agentapi.Request{Check: a}
	})
	return err
}

// forward asks the agent about a pod. Everything that can fail without the agent
// comes first, so that the agent does not do what would have to be undone.
func (p *Plugin) forward(command string, args *skel.CmdArgs, request func(*agentapi.Attachment) agentapi.Request) (previous, error) {
	started := time.Now()
	c, err := p.configure(args.StdinData)
	if err != nil {
		return previous{}, err
	}
	before, err := readPrevious(c)
	if err != nil {
		return previous{}, types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	}
	pod, err := parsePodArgs(args.Args)
	if err != nil {
		return previous{}, types.NewError(types.ErrInvalidEnvironmentVariables, err.Error(), "")
	}
	log := p.log.With("command", command, "pod", pod.String(), "container", args.ContainerID)
	if !pod.isPod() {
		log.Info("passed on: not a pod")
		return before, nil
	}
	req := request(&agentapi.Attachment{
		Namespace: pod.namespace, Name: pod.name, UID: pod.uid,
		ContainerID: args.ContainerID, Netns: args.Netns, Interface: args.IfName, IPs: before.ips,
	})
	req.Version = agentapi.Version
	if err := req.Validate(); err != nil {
		return previous{}, types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("cannot describe pod %s to the agent: %v", pod, err), "")
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.totalWait)
	defer cancel()
	answer, err := p.ask(ctx, req)
	took := time.Since(started).Round(10 * time.Microsecond)
	switch {
	case err != nil && slices.Contains(c.AllowWithoutAgent, pod.namespace):
		log.Warn("passed on without the agent, as allowWithoutAgent says", "took", took, "error", err)
	case err != nil:
		return previous{}, p.noAnswer(c, pod, took, err)
	case answer.Error != nil:
		e := answer.Error
		return previous{}, types.NewError(e.Code, fmt.Sprintf("pod %s: %s", pod, e.Message), e.Details)
	default:
		log.Info("the agent agreed", "took", took)
	}
	return before, nil
}

// ask repeats req until the agent answers: for agentWait while it is absent, and
// until ctx ends if connections to it break. Repeating is safe, since the agent
// knows the attachment by its container id.
func (p *Plugin) ask(ctx context.Context, req agentapi.Request) (agentapi.Response, error) {
	absentSince := time.Now()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		answer, err := p.call(ctx, p.socket, req)
		switch {
		case errors.Is(err, agentapi.ErrBroken):
			absentSince = time.Now()
		case !errors.Is(err, agentapi.ErrAbsent):
			return answer, err
		case time.Since(absentSince)+pause > p.agentWait:
			return agentapi.Response{}, err
		}
		select {
		case <-ctx.Done():
			return agentapi.Response{}, err
		case <-time.After(pause):
		}
	}
}

// noAnswer is the error of a pod that cannot start because of the agent.
func (p *Plugin) noAnswer(c *config, pod podArgs, took time.Duration, cause error) error {
	what, advice := "does not answer", ""
	if errors.Is(cause, agentapi.ErrAbsent) {
		what, advice = "is not running", "; "+leftover
		if seen := agentapi.LastSeen(p.socket); !seen.IsZero() {
			what += " (last seen " + seen.UTC().Format(time.RFC3339) + ")"
		}
	}
	details := fmt.Sprintf("%v; waited %v; the pod starts by itself once the agent is back: check the fairlead agent's pod of this node, and %s",
		cause, took.Round(100*time.Millisecond), agentapi.LogFile(p.socket))
	if len(c.AllowWithoutAgent) > 0 {
		details += "; only pods of " + strings.Join(c.AllowWithoutAgent, ", ") + " start without it"
	}
	details += advice
	return types.NewError(agentapi.CodeNoAgent, fmt.Sprintf("pod %s cannot start: the fairlead agent of this node %s", pod, what), details)
}
