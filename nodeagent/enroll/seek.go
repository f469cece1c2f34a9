package enroll

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
)

// seekPause is the least time between two searches that something has called for.
const seekPause = time.Second

// seek looks, now and then, for the network namespaces of pods that should be
// captured and that the runtime has not told us of; and at once for one that runs, as
// when it gets its label.
func (r *Reconciler) seek(ctx context.Context) {
	tick := time.NewTicker(r.config.SweepInterval)
	defer tick.Stop()
	var last time.Time
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.prune(ctx)
		case <-r.asked:
			if due == nil {
				due = time.After(seekPause - time.Since(last))
			}
			continue
		case <-due:
			due = nil
			if !r.overlooked() {
				continue
			}
			last = time.Now()
		}
		r.Seek(ctx)
	}
}

// askSeek has seek look whether a pod was overlooked.
func (r *Reconciler) askSeek() {
	select {
	case r.asked <- struct{}{}:
	default: // it is going to
	}
}

// overlooked reports whether a pod that should be captured runs, having addresses, and the
// runtime has not told us of it. One that is just starting has none.
func (r *Reconciler) overlooked() bool {
	objects := r.config.Source.Pods()
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.ContainsFunc(objects, func(object intent.Pod) bool {
		uid := object.RuntimeUID()
		if uid == "" || r.pods[uid] != nil || len(object.IPs) == 0 {
			return false
		}
		asks, _ := r.asks(object)
		return asks
	})
}

// Seek looks once, for all of them together, and for those of ours that are lost.
// Until a pod's namespace is found, its proxies are asked to keep what they may have of
// it.
func (r *Reconciler) Seek(ctx context.Context) {
	wanted := r.unknown()
	if len(wanted) == 0 {
		return
	}
	found, errs := r.config.Search(ctx, wanted)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range wanted {
		place, ok := found[w.UID]
		p := r.pods[w.UID]
		switch {
		case p != nil && p.search != nil:
			p.search = &search{wanted: w, done: true, found: place, err: errs[w.UID]}
			if r.queue != nil {
				r.queue.Add(w.UID)
			}
		case p != nil: // the runtime was faster
		case ok && place.ID == r.ended[w.UID]: // and not cleared away yet
		case ok:
			r.take(w, place)
		case r.kept[w.UID].gone:
			// Neither the API nor the kernel knows it any more.
			delete(r.kept, w.UID)
			r.config.Proxies.Withdraw(w.UID)
		default:
			r.missed(w, errs[w.UID])
		}
	}
}

// kept is a pod that proxies were asked to keep.
type kept struct {
	wanted sandbox.Wanted
	since  time.Time // when it was not found first
	text   string    // why it was not, as it was logged
	gone   bool      // and the source does not know it any more
}

// missed notes that a pod was not found. One that has just ended, and is not known to have,
// is not worth a word. r.mu is held.
func (r *Reconciler) missed(w sandbox.Wanted, err error) {
	k := r.kept[w.UID]
	k.wanted = w
	if k.since.IsZero() {
		k.since = time.Now()
	}
	if text := err.Error(); text != k.text && time.Since(k.since) > ending {
		k.text = text
		r.config.Logger.Warn("a pod that should be captured is not found", "pod", w.Namespace+"/"+w.Name, "error", err)
	}
	r.kept[w.UID] = k
}

// unknown returns the pods to look for, and has proxies keep them.
func (r *Reconciler) unknown() []sandbox.Wanted {
	objects := r.config.Source.Pods()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forgetBygone()
	var wanted []sandbox.Wanted
	known, plain := map[string]bool{}, map[string]bool{}
	for _, object := range objects {
		uid := object.RuntimeUID()
		known[uid] = true
		if uid == "" || r.pods[uid] != nil {
			continue
		}
		asks, ok := r.asks(object)
		if r.plain[uid] || (ok && !asks) {
			plain[uid] = true
		}
		if ok && !asks {
			continue
		}
		w := sandbox.Wanted{UID: uid, Namespace: object.Namespace, Name: object.Name, IPs: object.IPs}
		if ok {
			wanted = append(wanted, w)
		}
		// One of which not enough is known to decide is kept, too: a proxy may have it.
		if _, ok := r.kept[uid]; !ok {
			r.kept[uid] = kept{wanted: w}
			// What proxies may have of a sandbox that is over is not to be kept.
			if !r.over(uid) {
				r.config.Proxies.Keep(uid)
			}
		}
	}
	for _, p := range r.pods {
		if p.search != nil && !p.search.done {
			wanted = append(wanted, p.search.wanted)
		}
	}
	r.plain = plain
	maps.DeleteFunc(r.ended, func(uid string, _ netns.ID) bool { return !known[uid] })
	for uid, k := range r.kept {
		switch {
		case r.pods[uid] != nil:
			delete(r.kept, uid)
		case !known[uid]:
			k.gone = true
			r.kept[uid] = k
			wanted = append(wanted, k.wanted)
		}
	}
	return wanted
}

// over reports whether a sandbox of a pod that we do not have is known to be over. r.mu is held.
func (r *Reconciler) over(uid string) bool {
	_, over := r.ended[uid]
	return over
}

// asks says whether a pod asks to be captured; ok is false if not all is known that it
// takes.
func (r *Reconciler) asks(object intent.Pod) (asks, ok bool) {
	_, namespace, ok := r.config.Source.Lookup(object.Namespace, object.Name)
	return ok && r.config.Policy.Decide(object, namespace).Asked(), ok
}

// raced says whether a pod that was found ran outside the mesh because it was quicker
// than the agent: it was promised capture, being younger than the installation, and
// nobody has labelled it since. What is not known speaks for the pod's connections.
func (r *Reconciler) raced(found sandbox.Found, uid string) bool {
	if r.config.Installed == nil || r.plain[uid] {
		return false
	}
	installed := r.config.Installed()
	return !installed.IsZero() && found.Born.After(installed)
}

// take makes a found namespace the pod's. r.mu is held.
func (r *Reconciler) take(w sandbox.Wanted, found sandbox.Found) {
	p := newPod(r, w.UID)
	p.attachment = &agentapi.Attachment{
		Namespace: w.Namespace, Name: w.Name, UID: w.UID, ContainerID: found.ContainerID,
		Netns: found.Path, Interface: found.Interface, IPs: found.IPs,
	}
	p.place, p.found, p.sought = found.Place, true, true
	p.raced = r.raced(found, w.UID)
	r.pods[w.UID] = p
	delete(r.kept, w.UID)
	if r.queue != nil {
		r.queue.Add(w.UID)
	}
	r.config.Logger.Info("found a pod that the runtime had not told of", "pod", p.name(), "source", found.Source, "netns", found.ID)
}
