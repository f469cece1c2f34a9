package judge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// A Roster knows the pods of a cluster, those too that have gone, from what kubectl prints:
//
//	kubectl get pods --all-namespaces --watch --output-watch-events --output=json
//
// It has to read before the first pod is deleted whose packets are to be judged.
type Roster struct {
	// Captured says which pods are to be captured, from their first packet to the last;
	// those on the host's network are left out.
	Captured func(namespace string, labels map[string]string) bool
	// OnPurpose says which ones bypass on purpose, likewise.
	OnPurpose func(namespace string, labels map[string]string) bool

	mu    sync.Mutex
	byUID map[string]Pod
}

// An event is what counts of one that kubectl prints.
type event struct {
	Type   string
	Object struct {
		Metadata struct {
			Namespace, Name, UID string
			Labels               map[string]string
			CreationTimestamp    time.Time
		}
		Spec struct {
			NodeName    string
			HostNetwork bool
		}
		Status struct {
			Phase  string
			PodIPs []struct{ IP netip.Addr }
		}
	}
}

// Read reads to the end of the stream.
func (r *Roster) Read(stream io.Reader) error {
	for decoder := json.NewDecoder(stream); ; {
		var e event
		err := decoder.Decode(&e)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read which pods there are: %w", err)
		}
		r.note(e, time.Now())
	}
}

func (r *Roster) note(e event, now time.Time) {
	o := e.Object
	if o.Spec.HostNetwork {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p, known := r.byUID[o.Metadata.UID]
	if !known {
		p = Pod{
			Namespace: o.Metadata.Namespace, Name: o.Metadata.Name, From: o.Metadata.CreationTimestamp,
			Captured:  r.Captured(o.Metadata.Namespace, o.Metadata.Labels),
			OnPurpose: r.OnPurpose(o.Metadata.Namespace, o.Metadata.Labels),
		}
	}
	p.Node = o.Spec.NodeName
	for _, ip := range o.Status.PodIPs { // a pod that has ended may show none any more
		if !slices.Contains(p.Addrs, ip.IP) {
			p.Addrs = append(p.Addrs, ip.IP)
		}
	}
	over := e.Type == "DELETED" || o.Status.Phase == "Succeeded" || o.Status.Phase == "Failed"
	if over && p.To.IsZero() {
		p.To = now
	}
	if r.byUID == nil {
		r.byUID = map[string]Pod{}
	}
	r.byUID[o.Metadata.UID] = p
}

// Pods are all that have had an address.
func (r *Roster) Pods() []Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	var pods []Pod
	for _, p := range r.byUID {
		if len(p.Addrs) > 0 {
			pods = append(pods, p)
		}
	}
	slices.SortFunc(pods, func(a, b Pod) int { return a.From.Compare(b.From) })
	return pods
}
