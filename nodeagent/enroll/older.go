package enroll

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/sockets"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// resetPoll is how soon we look whether connections that were reset are gone.
const resetPoll = 200 * time.Millisecond

// pair looks for connections that are older than the redirects, or were opened
// while those were away. By their cause they are reset or kept; when none is left,
// form syn, which was there for their sake, becomes full.
func (p *pod) pair(ctx context.Context, out outcome) outcome {
	bypassing, err := p.kernel.Bypassing(ctx, p.applied)
	if err != nil {
		out.reason, out.message = status.ReasonOldConnections, "how many connections are older than the capture, and stay in the clear, is not known: "+err.Error()
		if p.owed() {
			out.state, out.again = status.Bypassing, time.Second
		}
		return out
	}
	p.bypassing, p.paired = len(bypassing), true
	if due := p.due(bypassing); len(due) > 0 {
		return p.reset(ctx, due, out)
	}
	p.gap, p.raced, p.kept = false, false, ids(bypassing)
	if len(bypassing) == 0 {
		return p.noneOlder(ctx, out)
	}
	out.reason = status.ReasonOldConnections
	out.message = "older than the capture, and in the clear: " + some(bypassing)
	return out
}

// due returns the connections that are to be reset. Unless the configuration says,
// the cause decides: a pod whose redirects were away is owed what it had, and one that
// started before the agent did what it was promised, so what was opened meanwhile is
// reset; what was open when a pod was labelled was promised nothing, and is kept.
func (p *pod) due(bypassing []sockets.Connection) []sockets.Connection {
	switch {
	case !p.owed():
		return nil
	case p.decision.Existing == intent.Reset:
		return bypassing
	}
	return slices.DeleteFunc(slices.Clone(bypassing), func(c sockets.Connection) bool {
		_, kept := slices.BinarySearch(p.kept, c.ID())
		return kept
	})
}

// owed says whether there may be connections that are to be reset.
func (p *pod) owed() bool {
	switch p.decision.Existing {
	case intent.Reset:
		return true
	case intent.Keep:
		return false
	}
	return p.gap || p.raced
}

// some counts connections, and names the first.
func some(connections []sockets.Connection) string {
	const most = 3
	var names []string
	for _, c := range connections[:min(len(connections), most)] {
		names = append(names, c.String())
	}
	if len(connections) == 1 {
		return "1 connection, " + names[0]
	}
	text := fmt.Sprintf("%d connections, %s", len(connections), strings.Join(names, ", "))
	if len(connections) > most {
		text += ", ..."
	}
	return text
}

// ids are in order: there may be thousands to be looked up among.
func ids(connections []sockets.Connection) []uint64 {
	var all []uint64
	for _, c := range connections {
		all = append(all, c.ID())
	}
	slices.Sort(all)
	return all
}

// noneOlder is the end of a capture: nothing is left that form full would cut.
func (p *pod) noneOlder(ctx context.Context, out outcome) outcome {
	if p.applied.Form == ruleset.FormSYN {
		if err := p.apply(ctx, p.want(ruleset.FormFull)); err != nil {
			return p.refused(err)
		}
	}
	p.older = false
	return out
}

// reset destroys the connections. Until they are gone the pod bypasses the mesh.
func (p *pod) reset(ctx context.Context, bypassing []sockets.Connection, out outcome) outcome {
	n, err := p.kernel.Destroy(ctx, bypassing)
	p.r.config.Metrics.resets.Add(float64(n))
	if errors.Is(err, sockets.ErrCannotDestroy) {
		out.reason, out.message = status.ReasonOldConnections, fmt.Sprintf("%d connections bypass the proxy: %v", len(bypassing), err)
		return out
	}
	if n > 0 {
		p.r.config.Logger.Warn("connections that bypassed the proxy were reset", "pod", p.name(), "connections", n)
	}
	again := outcome{state: status.Bypassing, reason: status.ReasonOldConnections, again: resetPoll,
		message: fmt.Sprintf("%d connections bypassed the proxy and are being reset", len(bypassing))}
	if err != nil {
		again.message += ": " + err.Error()
		again.again = time.Second
	}
	return again
}
