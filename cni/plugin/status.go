package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

// orphanAfter is how long after a node's boot an agent may start for the first time. By
// then it is not expected any more, and STATUS does not keep the node from being ready.
const orphanAfter = 30 * time.Minute

// leftover says what to do where no agent is meant to run any more. In which way the plugin
// was installed it does not know.
const leftover = "if none is meant to run here any more, run fairlead uninstall, or take fairlead-cni out of the runtime's directory of network configurations " +
	"(/etc/cni/net.d, if it is the usual one): the file 02-fairlead.conflist, fairlead.conf in a directory there, or its entry in another list"

// status succeeds once the agent has been ready since the node booted. Whether
// it runs now is ADD's question: a node that is not ready evicts its pods.
func (p *Plugin) status(args *skel.CmdArgs) error {
	c, err := p.configure(args.StdinData)
	if err != nil || c.Status == statusNever {
		return err
	}
	err = agentapi.CheckReady(p.socket)
	if err == nil {
		return nil
	}
	if agentapi.LastSeen(p.socket).IsZero() && agentapi.Uptime() >= cmp.Or(c.orphanAfter, orphanAfter) {
		p.log.Warn("no agent has started since this node booted: only its pods are kept from starting, not the node from being ready",
			"command", "STATUS", "remedy", leftover)
		return nil
	}
	return types.NewError(types.ErrPluginNotAvailable, err.Error(),
		"pods can start here once the fairlead agent of this node is ready: check its pod; "+leftover)
}

// gc has the agent forget what the runtime does not have. It fails for a configuration
// that is broken, and for nothing else: what is to be collected the agent sees by itself,
// though later.
func (p *Plugin) gc(args *skel.CmdArgs) error {
	if _, err := p.configure(args.StdinData); err != nil {
		return err
	}
	const field = "cni.dev/valid-attachments"
	var all map[string]json.RawMessage
	_ = json.Unmarshal(args.StdinData, &all) // configure has
	var valid []types.GCAttachment           // null: libcni says so when there are none
	if err := json.Unmarshal(all[field], &valid); err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("cannot read %s: %v", field, err), "")
	}
	request := agentapi.Request{Version: agentapi.Version, GC: &agentapi.GCRequest{Valid: []string{}}}
	for _, a := range valid {
		request.GC.Valid = append(request.GC.Valid, a.ContainerID)
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.delWait)
	defer cancel()
	answer, err := p.call(ctx, p.socket, request)
	switch {
	case err != nil:
		p.log.Warn("nothing is collected: the agent does not answer", "command", "GC", "error", err)
	case answer.Error != nil:
		p.log.Warn("nothing is collected: the agent failed", "command", "GC", "error", answer.Error)
	}
	return nil
}
