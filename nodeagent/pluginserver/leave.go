package pluginserver

import (
	"context"
	"time"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A Leaver takes the node out of the mesh, for good or for a while.
type Leaver interface {
	// Drain has all pods released, or ends that, and returns when what is reported has taken
	// note of it.
	Drain(ctx context.Context, on bool) error
	// Uninstall takes from the node what the agent has put there, and tells of each thing.
	Uninstall(ctx context.Context, done func(status.Step) error) error
}

const (
	// leavingPoll is how often the pods of a drained node are looked at for news.
	leavingPoll = 100 * time.Millisecond
	// takeNote is how long pods may take to take note of a drain: one may keep a worker.
	takeNote = 10 * time.Second
)

// drain has the node drained, and tells of each pod that it concerns: at first, and
// whenever there is news of it, until nothing is left in any. A client that goes ends the
// telling, and not the drain.
func (s *Server) drain(ctx context.Context, c client, undo bool) error {
	noting, cancel := context.WithTimeout(ctx, takeNote)
	err := s.config.Leaver.Drain(noting, !undo)
	cancel()
	if err != nil || undo {
		return s.end(c, err)
	}
	told := map[string]status.Pod{}
	for agentapi.Waits(c.UnixConn) && ctx.Err() == nil {
		known := s.config.Node().Synced // before the pods are listed
		left, err := s.news(c, told)
		if err != nil {
			return err
		}
		if known && !left {
			return s.end(c, nil)
		}
		sleep(ctx, leavingPoll)
	}
	return nil
}

// news tells what is new of the pods that the drain concerns, or did.
func (s *Server) news(c client, told map[string]status.Pod) (left bool, err error) {
	here := map[string]bool{}
	for _, p := range s.config.Pods.Report() {
		key := p.Namespace + "/" + p.Name + "/" + p.UID
		here[key] = true
		before, known := told[key]
		if !known && !p.ToRelease() {
			continue
		}
		left = left || p.Left()
		if known && before.Left() == p.Left() && before.State == p.State && before.Reason == p.Reason {
			continue
		}
		told[key] = p
		if err := writeItem(s, c, p); err != nil {
			return left, err
		}
	}
	for key, p := range told {
		if here[key] || p.Reason == status.Deleted {
			continue
		}
		p.State, p.Reason, p.Message, p.Remedy, p.Annotation, p.Rules = status.NotCaptured, status.Deleted, "the pod has ended", "", status.Unknown, status.Rules{State: "none"}
		told[key] = p
		if err := writeItem(s, c, p); err != nil {
			return left, err
		}
	}
	return left, nil
}

// uninstall has everything taken from the node, and tells of each thing.
func (s *Server) uninstall(ctx context.Context, c client) error {
	return s.end(c, s.config.Leaver.Uninstall(ctx, func(step status.Step) error { return writeItem(s, c, step) }))
}

// end completes an answer of several lines, or says why it stops here.
func (s *Server) end(c client, err error) error {
	c.extend(s.config.RequestTimeout)
	if err == nil {
		return agentapi.WriteEnd(c, nil)
	}
	return agentapi.WriteEnd(c, &agentapi.Error{Code: agentapi.CodeInternal, Message: err.Error()})
}
