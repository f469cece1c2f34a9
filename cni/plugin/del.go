package plugin

import (
	"context"
	"io"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

// del tells the agent, once, that a sandbox goes. An agent that does not hear of
// it sees the namespace go.
func (p *Plugin) del() {
	conf, err := io.ReadAll(p.stdin)
	if err != nil {
		p.log.Warn("cannot read the configuration", "command", "DEL", "error", err)
	}
	if socket := lenientSocket(conf); socket != "" {
		p.socket = socket
	}
	log := p.log.With("command", "DEL", "container", p.getenv("CNI_CONTAINERID"))
	pod, err := parsePodArgs(p.getenv("CNI_ARGS"))
	if err == nil && !pod.isPod() {
		log.Info("passed on: not a pod")
		return
	}
	log = log.With("pod", pod.String())
	req := agentapi.Request{Version: agentapi.Version, Del: &agentapi.Attachment{
		Namespace: pod.namespace, Name: pod.name, UID: pod.uid,
		ContainerID: p.getenv("CNI_CONTAINERID"),
		Netns:       p.getenv("CNI_NETNS"),
		Interface:   p.getenv("CNI_IFNAME"),
	}}
	if req.Validate() != nil {
		// The container id is what the agent needs.
		req.Del = &agentapi.Attachment{ContainerID: req.Del.ContainerID}
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.delWait)
	defer cancel()
	answer, err := p.call(ctx, p.socket, req)
	switch {
	case err != nil:
		log.Warn("deleted without the agent", "error", err)
	case answer.Error != nil:
		log.Warn("deleted, though the agent failed", "error", answer.Error)
	default:
		log.Info("deleted")
	}
}
