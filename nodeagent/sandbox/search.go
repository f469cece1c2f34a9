package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// ErrNotFound is part of errors that say that nothing on the node leads to a pod's
// namespace. It may be that there is none yet.
var ErrNotFound = errors.New("nothing leads to it")

// SourceCache: libcni's result cache names it.
const SourceCache = "libcni cache"

// A Wanted is a pod whose network namespace is looked for.
type Wanted struct {
	// UID is the one that the kubelet uses: for a static pod its manifest's hash.
	UID             string
	Namespace, Name string
	IPs             []netip.Addr // as far as they are known
}

// A Found is what is known of a pod's sandbox that this agent was not told of.
type Found struct {
	Place
	// ContainerID is the sandbox's, and Interface the pod's in it; both are empty
	// where libcni's cache does not have them.
	ContainerID string
	Interface   string
	// IPs are the addresses that the cache has or, without it, those that were wanted.
	IPs []netip.Addr
	// Checked: the namespace holds one of the wanted IPs. Otherwise none were known.
	Checked bool
}

// Search looks for the namespaces of pods. Each pod is, by its UID, in one of the two
// results. It reads libcni's cache once and the processes at most once, whatever the
// number of pods.
//
// A Found's Path is where the namespace is mounted, which lasts as long as the
// sandbox. Where it is mounted nowhere, the Path is a process's, and Process says so:
// if such a Place is gone, the process is, and the namespace perhaps not. Search again
// before anything is concluded from it.
func (f *Finder) Search(ctx context.Context, want []Wanted) (map[string]Found, map[string]error) {
	s := newSearch(f, want)
	err := s.run(ctx)
	for _, p := range s.pods {
		if _, found := s.found[p.UID]; found {
			continue
		}
		reason := p.missing(s)
		if err != nil {
			reason = err
		}
		s.missing[p.UID] = fmt.Errorf("cannot find the network namespace of pod %s/%s (%s): %w", p.Namespace, p.Name, p.UID, reason)
	}
	return s.found, s.missing
}

// run is the search. Its error leaves the pods that are not found undecided.
func (s *search) run(ctx context.Context) (err error) {
	defer func() { err = errors.Join(err, s.close()) }()
	if s.refused, err = s.finder.refused(); err != nil {
		return err
	}
	if s.unread, err = readCache(ctx, s.finder.CNICache, s.entry); err != nil {
		return err
	}
	if err := s.settle(ctx, false); err != nil || len(s.found) == len(s.pods) {
		return err
	}
	if err := s.walk(ctx); err != nil {
		return err
	}
	return s.settle(ctx, true)
}

// A pod is one that is looked for, and what has been seen of it.
type pod struct {
	Wanted
	entries    []entry
	candidates []*candidate
	notes      []string // why something that was seen is not a candidate
}

// A candidate is a namespace that may be the pod's.
type candidate struct {
	*space
	path       string    // in the cache
	entries    []entry   // that name it
	process    int       // one of those that are nearest to the pod's cgroup, 0: none
	depth      int       // of that process
	containers []string  // of all the processes that are as near
	oldest     time.Time // when the oldest of all the processes started

	known   []netip.Addr // the addresses to recognise it by
	checked bool         // it was looked for them
	wrong   error        // what speaks against it
}

func (c *candidate) String() string {
	var from []string
	if c.path != "" {
		from = append(from, SourceCache+": "+c.path)
	}
	if c.process != 0 {
		from = append(from, fmt.Sprintf("process %d", c.process))
	}
	return fmt.Sprintf("%s (%s)", c.handle.ID(), strings.Join(from, ", "))
}

// candidate returns the pod's candidate that is a namespace, a new one if need be.
func (p *pod) candidate(sp *space) *candidate {
	for _, c := range p.candidates {
		if c.space == sp {
			return c
		}
	}
	c := &candidate{space: sp}
	p.candidates = append(p.candidates, c)
	return c
}

func (p *pod) note(format string, args ...any) {
	const enough = 4
	if text := fmt.Sprintf(format, args...); len(p.notes) < enough && !slices.Contains(p.notes, text) {
		p.notes = append(p.notes, text)
	}
}

// check looks whether a candidate holds the pod's addresses: those that are wanted
// or, where none are, those that the cache has.
func (p *pod) check(ctx context.Context, c *candidate) {
	known := p.IPs
	if len(known) == 0 {
		for _, e := range c.entries {
			known = append(known, e.ips...)
		}
	}
	if len(known) == 0 || (c.checked && len(known) == len(c.known)) {
		return
	}
	c.known, c.checked = known, true
	c.wrong = holds(ctx, c.handle, known)
}

// choose returns the one candidate that is the pod's, nil if there is none.
func (p *pod) choose() *candidate {
	var sound, nearest []*candidate
	var cached, unclear bool
	for _, c := range p.candidates {
		if c.wrong != nil {
			unclear = unclear || !errors.Is(c.wrong, errNone)
			continue
		}
		sound = append(sound, c)
		cached = cached || c.path != ""
		if c.process == 0 {
			continue
		}
		if len(nearest) > 0 && c.depth < nearest[0].depth {
			nearest = nil
		}
		if len(nearest) == 0 || c.depth == nearest[0].depth {
			nearest = append(nearest, c)
		}
	}
	chosen := sound
	// The pod's processes decide, unless they contradict the cache.
	if len(nearest) == 1 && (!cached || nearest[0].path != "") {
		chosen = nearest
	}
	if len(chosen) != 1 || (unclear && !chosen[0].checked) {
		return nil
	}
	return chosen[0]
}

// missing says why nothing was chosen.
func (p *pod) missing(s *search) error {
	var sound, wrong []string
	for _, c := range p.candidates {
		if c.wrong == nil {
			sound = append(sound, c.String())
		} else {
			wrong = append(wrong, fmt.Sprintf("%s: %v", c, c.wrong))
		}
	}
	switch {
	case len(sound) > 1 && len(p.IPs) == 0:
		return fmt.Errorf("it may be any of %s; the pod's IPs, which would tell, are not known", strings.Join(sound, " and "))
	case len(sound) > 1:
		return fmt.Errorf("it may be any of %s; each holds one of the pod's IPs (%s)", strings.Join(sound, " and "), list(p.IPs))
	case len(wrong) > 0:
		return errors.New(strings.Join(append(wrong, sound...), "; "))
	}
	notes := p.notes
	if len(p.entries) == 0 {
		notes = append(notes, s.finder.CNICache+" has no entry with its UID")
	}
	if len(s.unread) > 0 {
		notes = append(notes, fmt.Sprintf("of what could not be read (%d) the first is: %v", len(s.unread), s.unread[0]))
	}
	notes = append(notes, "no process has both its cgroup and a network namespace of its own")
	return fmt.Errorf("%w: %s", ErrNotFound, strings.Join(notes, "; "))
}
