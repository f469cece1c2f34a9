package hostnet

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// pods are who has which address and interface.
type pods struct {
	named map[string]Pod  // by UID
	found map[string]bool // UIDs that only the kernel has named yet
	ended map[string]bool // UIDs deleted since, which are not to be found again
	// The UIDs that named an address, or an interface, the last one last: it is its.
	addresses claims[netip.Addr]
	links     claims[string]
}

func newPods() pods {
	return pods{named: map[string]Pod{}, found: map[string]bool{}, ended: map[string]bool{}, addresses: claims[netip.Addr]{}, links: claims[string]{}}
}

func (p Pod) checked(uid string) (Pod, error) {
	var errs []error
	if uid == "" {
		errs = append(errs, errors.New("it has no UID"))
	}
	c := Pod{Links: slices.Compact(slices.Sorted(slices.Values(p.Links)))}
	for _, a := range p.Addrs {
		a = a.Unmap()
		if !a.IsGlobalUnicast() || a.Zone() != "" {
			errs = append(errs, fmt.Errorf("%s cannot be a pod's address", a))
		}
		c.Addrs = append(c.Addrs, a)
	}
	slices.SortFunc(c.Addrs, netip.Addr.Compare)
	c.Addrs = slices.Compact(c.Addrs)
	if err := errors.Join(errs...); err != nil {
		return Pod{}, fmt.Errorf("cannot exempt the health probes of pod %q: %w", uid, err)
	}
	return c, nil
}

func (p *pods) set(uid string, pod Pod) {
	old := p.named[uid]
	delete(p.found, uid)
	delete(p.ended, uid)
	p.named[uid] = pod
	p.addresses.change(uid, old.Addrs, pod.Addrs)
	p.links.change(uid, old.Links, pod.Links)
}

func (p *pods) remove(uid string) {
	p.set(uid, Pod{})
	delete(p.named, uid)
	p.ended[uid] = true
}

// adopt takes over what stands in the kernel and nobody has named.
func (p *pods) adopt(t table) {
	for a, uid := range t.addresses {
		if len(p.addresses[a]) == 0 {
			p.addFound(uid, Pod{Addrs: []netip.Addr{a}})
		}
	}
	for link, uid := range t.guards {
		if len(p.links[link]) == 0 {
			p.addFound(uid, Pod{Links: []string{link}})
		}
	}
}

// addFound adds to a pod of an earlier agent's. One that has been named by now is not
// changed: its owner knows better.
func (p *pods) addFound(uid string, more Pod) {
	if pod, named := p.named[uid]; !p.ended[uid] && (!named || p.found[uid]) {
		p.set(uid, Pod{Addrs: slices.Concat(pod.Addrs, more.Addrs), Links: slices.Concat(pod.Links, more.Links)})
		p.found[uid] = true
	}
}

func (p *pods) keepOnly(uids []string) {
	for uid := range maps.Clone(p.found) {
		if !slices.Contains(uids, uid) {
			p.remove(uid)
		}
	}
	clear(p.ended) // nothing is adopted from now on
}

// claims are the UIDs that claim a thing.
type claims[K comparable] map[K][]string

func (c claims[K]) change(uid string, old, now []K) {
	for _, k := range old {
		if !slices.Contains(now, k) {
			c[k] = slices.DeleteFunc(c[k], func(u string) bool { return u == uid })
			if len(c[k]) == 0 {
				delete(c, k)
			}
		}
	}
	for _, k := range now {
		if !slices.Contains(old, k) {
			c[k] = append(c[k], uid)
		}
	}
}

// owners are who has what.
func (c claims[K]) owners() map[K]string {
	all := make(map[K]string, len(c))
	for k, uids := range c {
		all[k] = cut(uids[len(uids)-1])
	}
	return all
}

// forget says that an interface is no more.
func (p *pods) forget(link string) {
	for _, uid := range p.links[link] {
		pod := p.named[uid]
		pod.Links = slices.DeleteFunc(slices.Clone(pod.Links), func(l string) bool { return l == link })
		p.named[uid] = pod
	}
	delete(p.links, link)
}
