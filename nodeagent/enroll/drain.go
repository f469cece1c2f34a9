package enroll

import (
	"context"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

// Drain has every pod of the node released, and none captured or started that asks for
// it, until it is called with false. It returns when each pod has had a turn since, or ctx
// ends: what is reported from then on has taken note of it.
//
// A pod that asks for capture does not start meanwhile: it would bypass the mesh, and
// nobody would have said so. Those that run are let out because somebody has asked for it.
func (r *Reconciler) Drain(ctx context.Context, on bool) {
	if r.drained.Swap(on) != on {
		r.config.Logger.Info("the node's pods are released, and none is captured", "drained", on)
	}
	select { // a worker would adopt them
	case <-r.adopted:
	case <-ctx.Done():
		return
	}
	r.Seek(ctx)
	turned := make(chan struct{})
	waits := 0
	for _, uid := range r.uids() {
		waits++
		go func() {
			_ = r.ask(ctx, check, agentapi.Attachment{UID: uid}) // that it had its turn is all
			select {
			case turned <- struct{}{}:
			case <-ctx.Done():
			}
		}()
	}
	for range waits {
		select {
		case <-turned:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Reconciler) uids() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var uids []string
	for uid := range r.pods {
		uids = append(uids, uid)
	}
	return uids
}
