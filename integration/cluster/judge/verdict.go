package judge

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// A Recording is what the pods of one node have sent.
type Recording struct {
	Node     string
	Untagged []Segment
	Tagged   map[netip.Addr]int // segments that count, by sender
	Lost     int                // packets that the kernel had to drop
}

// A Pod is one that may be a sender.
type Pod struct {
	Node, Namespace, Name string

	Addrs    []netip.Addr
	From, To time.Time // when it had them; To is zero if it still has
	Captured bool
	Exempt   []Exemption

	// OnPurpose: it bypasses the proxy, from each of its addresses, to show that this is
	// found. It is judged as if it was captured.
	OnPurpose bool
}

// An Exemption is what a captured pod may send without a tag. Zero stands for any.
type Exemption struct {
	Port       uint16 // the pod's
	Remote     netip.Prefix
	RemotePort uint16
}

// A Bypass is the untagged segments of one captured pod from one address to another.
type Bypass struct {
	Node, Pod string
	First     Segment
	Segments  int

	onPurpose bool
}

func (b Bypass) String() string {
	more := ""
	if b.Segments > 1 {
		more = fmt.Sprintf(", the first of %d segments", b.Segments)
	}
	return fmt.Sprintf("%s %s %s %s > %s: %s without the proxy's tag%s",
		b.First.Time.UTC().Format("15:04:05.000000"), b.Node, b.Pod, b.First.From, b.First.To, b.First.What, more)
}

// A Verdict is what Judge found.
type Verdict struct {
	Bypasses  []Bypass       // in order of time
	OnPurpose []Bypass       // those that were to be found
	Tagged    map[string]int // segments that count, by captured pod
	Doubts    []string       // why there may be more than was found
}

// Judge finds the bypasses in what was recorded.
func Judge(recordings []Recording, pods []Pod) Verdict {
	v := Verdict{Tagged: map[string]int{}}
	for _, r := range recordings {
		if r.Lost > 0 {
			v.doubt("%s: %d packets were lost before anybody looked at them", r.Node, r.Lost)
		}
		for _, p := range pods {
			if p.Node == r.Node && p.Captured {
				for _, addr := range p.Addrs {
					v.Tagged[p.name()] += r.Tagged[addr]
				}
			}
		}
		found := v.judge(r, pods)
		for _, p := range pods {
			v.lookFor(found, r.Node, p)
		}
		if !slices.ContainsFunc(pods, func(p Pod) bool { return p.Node == r.Node && p.OnPurpose }) {
			v.doubt("%s: no pod bypassed on purpose, so that nobody knows whether it would have been found", r.Node)
		}
	}
	byTime := func(a, b Bypass) int { return a.First.Time.Compare(b.First.Time) }
	slices.SortStableFunc(v.Bypasses, byTime)
	slices.SortStableFunc(v.OnPurpose, byTime)
	return v
}

func (v *Verdict) doubt(format string, args ...any) {
	v.Doubts = append(v.Doubts, fmt.Sprintf(format, args...))
}

// judge adds the bypasses of one recording, and returns which addresses they came from.
func (v *Verdict) judge(r Recording, pods []Pod) map[netip.Addr]bool {
	type flow struct {
		pod      string
		from, to netip.AddrPort
	}
	flows := map[flow]*Bypass{}
	found := map[netip.Addr]bool{}
	strangers := map[netip.Addr]int{}
	for _, s := range r.Untagged {
		p := sender(s, r.Node, pods)
		switch {
		case p == nil:
			strangers[s.From.Addr()]++
			continue
		case !p.Captured && !p.OnPurpose, p.exempts(s):
			continue
		}
		found[s.From.Addr()] = true
		key := flow{p.name(), s.From, s.To}
		if flows[key] == nil {
			flows[key] = &Bypass{Node: r.Node, Pod: p.name(), First: s, onPurpose: p.OnPurpose}
		}
		flows[key].Segments++
	}
	for _, b := range flows {
		if b.onPurpose {
			v.OnPurpose = append(v.OnPurpose, *b)
		} else {
			v.Bypasses = append(v.Bypasses, *b)
		}
	}
	for _, addr := range slices.SortedFunc(maps.Keys(strangers), netip.Addr.Compare) {
		v.doubt("%s: %d untagged segments from %s, which was no known pod's then", r.Node, strangers[addr], addr)
	}
	return found
}

// lookFor doubts if a pod's bypass on purpose was not found.
func (v *Verdict) lookFor(found map[netip.Addr]bool, node string, p Pod) {
	if p.Node != node || !p.OnPurpose {
		return
	}
	for _, addr := range p.Addrs {
		if !found[addr] {
			v.doubt("%s: %s bypassed on purpose from %s, and that was not found", node, p.name(), addr)
		}
	}
}

// sender is the pod that had a segment's address when that was sent, or nil. The
// address of a pod that is going may be another's already: so the younger one.
func sender(s Segment, node string, pods []Pod) *Pod {
	var youngest *Pod
	for i := range pods {
		p := &pods[i]
		if p.Node == node && slices.Contains(p.Addrs, s.From.Addr()) && !s.Time.Before(p.From) &&
			(p.To.IsZero() || s.Time.Before(p.To)) && (youngest == nil || p.From.After(youngest.From)) {
			youngest = p
		}
	}
	return youngest
}

func (p Pod) name() string { return p.Namespace + "/" + p.Name }

func (p Pod) exempts(s Segment) bool {
	if to := s.To.Addr(); to == ruleset.DefaultProbeIPv4 || to == ruleset.DefaultProbeIPv6 {
		return true
	}
	return slices.ContainsFunc(p.Exempt, func(e Exemption) bool {
		return cmp.Or(e.Port, s.From.Port()) == s.From.Port() && cmp.Or(e.RemotePort, s.To.Port()) == s.To.Port() &&
			(!e.Remote.IsValid() || e.Remote.Contains(s.To.Addr()))
	})
}

// Err says why the run has failed, or nil.
func (v Verdict) Err() error {
	var errs []error
	if len(v.Bypasses) > 0 {
		errs = append(errs, fmt.Errorf("captured pods bypassed the proxy:\n%s", lines(v.Bypasses)))
	}
	for _, doubt := range v.Doubts {
		errs = append(errs, errors.New(doubt))
	}
	return errors.Join(errs...)
}

// String is the whole verdict, for people.
func (v Verdict) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "bypasses: %d\n%s", len(v.Bypasses), lines(v.Bypasses))
	fmt.Fprintf(&b, "on purpose, and found: %d\n%s", len(v.OnPurpose), lines(v.OnPurpose))
	fmt.Fprintf(&b, "tagged segments that were seen of captured pods:\n")
	for _, pod := range slices.Sorted(maps.Keys(v.Tagged)) {
		fmt.Fprintf(&b, "  %s %d\n", pod, v.Tagged[pod])
	}
	fmt.Fprintf(&b, "doubts: %d\n", len(v.Doubts))
	for _, doubt := range v.Doubts {
		fmt.Fprintf(&b, "  %s\n", doubt)
	}
	return b.String()
}

func lines(bypasses []Bypass) string {
	var b strings.Builder
	for _, bypass := range bypasses {
		fmt.Fprintf(&b, "  %s\n", bypass)
	}
	return b.String()
}
