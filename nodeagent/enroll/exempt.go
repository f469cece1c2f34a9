package enroll

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// Probes lets the kubelet's health probes into captured pods: package hostnet's
// Exemption. It keeps what it was told, whatever happens to it in the kernel.
type Probes interface {
	// Exempt exempts the probes of a pod's addresses, and of no others of its. With an
	// error the wish stands, or may.
	Exempt(ctx context.Context, uid string, pod *netns.Handle, addrs []netip.Addr) error
	// Delete ends that; with an error it will.
	Delete(ctx context.Context, uid string) error
	// KeepOnly ends the exemption of pods that are not named and that only an earlier
	// agent has exempted.
	KeepOnly(ctx context.Context, uids []string) error
}

// exempt exempts the pod's probes, once for the same addresses.
func (p *pod) exempt(ctx context.Context) error {
	addrs := p.attachment.IPs
	if len(addrs) == 0 {
		addrs = p.object.IPs
	}
	if slices.Equal(addrs, p.exempted) {
		return nil
	}
	err := p.r.config.Probes.Exempt(ctx, p.uid, p.kernel.Netns(), addrs)
	if err == nil {
		p.exempted = slices.Clone(addrs)
	}
	return err
}

// unexempt ends the exemption, whatever became of the namespace. It has its own time:
// who waited for the pod may not wait any more.
func (p *pod) unexempt() {
	const most = time.Second
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	if err := p.r.config.Probes.Delete(ctx, p.uid); err != nil {
		p.r.config.Logger.Debug("a pod's probes are still exempt", "pod", p.name(), "error", err)
	}
	p.exempted = nil
}

// prune ends what an earlier agent has exempted, of pods that are no more, once all pods
// are known: now and then, since one may end while nobody who knows it hears of that.
func (r *Reconciler) prune(ctx context.Context) {
	select {
	case <-r.adopted:
	default:
		return
	}
	if !r.config.Source.Synced() {
		return
	}
	if err := r.config.Probes.KeepOnly(ctx, r.sandboxes()); err != nil {
		r.config.Logger.Debug("cannot end the exemption of pods that are no more", "error", err)
	}
}

// sandboxes returns the UIDs of the pods that may have one, as the runtime knows them.
func (r *Reconciler) sandboxes() []string {
	objects := r.config.Source.Pods()
	r.mu.Lock()
	defer r.mu.Unlock()
	var uids []string
	for uid := range r.pods {
		uids = append(uids, uid)
	}
	for _, object := range objects {
		if uid := object.RuntimeUID(); uid != "" && r.pods[uid] == nil && !r.over(uid) {
			uids = append(uids, uid)
		}
	}
	return uids
}
