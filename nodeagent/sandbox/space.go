package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// A space is a namespace that a search has come across. It is held until the end of
// the search, so that its inode number stays its own.
type space struct {
	inode
	handle *netns.Handle
	// made is when the inode was. Nobody can change it, and it lasts as long as a
	// mount, or an open file, pins the inode: where none did before us it is now.
	made time.Time
}

type inode struct{ dev, ino uint64 }

// A search is one run of Finder.Search.
type search struct {
	finder  *Finder
	pods    []*pod
	byUID   map[string]*pod
	refused map[netns.ID]string
	spaces  map[inode]*space
	unread  []error

	found   map[string]Found
	missing map[string]error
}

func newSearch(f *Finder, want []Wanted) *search {
	s := &search{
		finder: f, byUID: map[string]*pod{}, spaces: map[inode]*space{},
		found: map[string]Found{}, missing: map[string]error{},
	}
	for _, w := range want {
		w.IPs = slices.Clone(w.IPs)
		for i := range w.IPs {
			w.IPs[i] = w.IPs[i].Unmap()
		}
		p := &pod{Wanted: w}
		s.pods = append(s.pods, p)
		s.byUID[dashes(w.UID)] = p
	}
	return s
}

func (s *search) close() error {
	var errs []error
	for _, sp := range s.spaces {
		errs = append(errs, sp.handle.Close())
	}
	return errors.Join(errs...)
}

// space takes an open namespace over. An error that is not ErrNotAPods is about our
// means.
func (s *search) space(file *os.File) (*space, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	at := inode{stat.Dev, stat.Ino}
	if known := s.spaces[at]; known != nil {
		return s.admit(known, file.Close())
	}
	h, err := netns.FromFile(file)
	if err != nil {
		return nil, notAPods(err)
	}
	s.spaces[at] = &space{at, h, time.Unix(stat.Mtim.Unix())}
	return s.admit(s.spaces[at], nil)
}

func (s *search) admit(sp *space, err error) (*space, error) {
	if whose, refused := s.refused[sp.handle.ID()]; refused {
		return nil, errors.Join(fmt.Errorf("%w: it is %s", ErrNotAPods, whose), err)
	}
	return sp, err
}

// entry takes what the cache says of a pod, if that is wanted.
func (s *search) entry(e entry) error {
	p := s.byUID[dashes(e.uid)]
	if p == nil || p.UID != e.uid {
		return nil
	}
	if (p.Name != "" && e.name != "" && p.Name != e.name) || (p.Namespace != "" && e.namespace != "" && p.Namespace != e.namespace) {
		p.note("the cache has its UID for another pod, %.64s/%.64s", e.namespace, e.name)
		return nil
	}
	p.entries = append(p.entries, e)
	for _, path := range e.paths {
		sp, err := s.mounted(path)
		if errors.Is(err, ErrNotAPods) {
			p.note("the cache names %.128s: %v", path, err)
			continue
		}
		if err != nil {
			return err
		}
		c := p.candidate(sp)
		if c.path == "" {
			c.path = path
		}
		c.entries = append(c.entries, e)
	}
	return nil
}

func (s *search) mounted(path string) (*space, error) {
	if err := mounted(path); err != nil {
		return nil, notAPods(err)
	}
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, notAPods(err)
	}
	return s.space(file)
}

// walk looks at all processes for those of the pods that are not found.
func (s *search) walk(ctx context.Context) error {
	self, err := os.ReadFile(filepath.Join(s.finder.Proc, "self/cgroup"))
	if err != nil {
		return fmt.Errorf("cannot read this process's own cgroups: %w", err)
	}
	above := levels(string(self))
	return processes(ctx, s.finder.Proc, func(proc process) error {
		cgroup, err := proc.cgroup()
		if err != nil {
			return err
		}
		m, is := podOf(cgroup, above)
		p := s.byUID[m.uid]
		if !is || p == nil {
			return nil
		}
		if _, found := s.found[p.UID]; found {
			return nil
		}
		sp, err := s.spaceOf(proc)
		if errors.Is(err, ErrNotAPods) {
			p.note("process %d is in its cgroup, but: %v", proc.pid, err)
			return nil
		}
		if err != nil {
			return err
		}
		p.candidate(sp).seen(proc.pid, m, proc.started())
		return nil
	})
}

func (s *search) spaceOf(proc process) (*space, error) {
	file, err := proc.open("ns/net")
	if ended(err) {
		return nil, err
	}
	if err != nil {
		return nil, notAPods(err)
	}
	return s.space(file)
}

// seen adds a process of the pod that is in the namespace.
func (c *candidate) seen(pid int, m membership, started time.Time) {
	c.oldest = earlier(c.oldest, started)
	if c.process == 0 || m.depth < c.depth {
		c.process, c.depth, c.containers = pid, m.depth, nil
	}
	if m.depth == c.depth && !slices.Contains(c.containers, m.container) {
		c.containers = append(c.containers, m.container)
	}
}

// settle decides on the pods that are not found yet.
func (s *search) settle(ctx context.Context, walked bool) error {
	var at map[uint64]string
	if walked {
		var err error
		if at, err = mounts(s.finder.Proc); err != nil {
			return err
		}
	}
	for _, p := range s.pods {
		if _, found := s.found[p.UID]; found {
			continue
		}
		for _, c := range p.candidates {
			p.check(ctx, c)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if c := p.choose(); c != nil {
			s.found[p.UID] = s.describe(p, c, at)
		}
	}
	return nil
}

func (s *search) describe(p *pod, c *candidate, mounts map[uint64]string) Found {
	found := Found{Place: Place{Path: c.path, Source: SourceCache, ID: c.handle.ID(), dev: c.dev, ino: c.ino}, Checked: len(p.IPs) > 0, IPs: c.known}
	if c.path == "" {
		found.Source = fmt.Sprintf("process %d", c.process)
		found.Path, found.Process = s.path(c, mounts)
	}
	if found.Born = c.oldest; found.Process == 0 {
		found.Born = earlier(c.made, c.oldest)
	}
	if e := p.entryOf(c); e != nil {
		found.ContainerID, found.Interface = e.container, e.ifname
		found.IPs = e.ips
	}
	return found
}

// earlier returns the earlier of two times; zero is one that is not known.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || (!b.IsZero() && b.Before(a)) {
		return b
	}
	return a
}

// path returns where a candidate is mounted, or its process's path.
func (s *search) path(c *candidate, mounts map[uint64]string) (path string, process int) {
	if path = mounts[c.ino]; path != "" {
		if dev, ino, err := inodeAt(path); err == nil && (inode{dev, ino}) == c.inode {
			return path, 0
		}
	}
	return filepath.Join(s.finder.Proc, strconv.Itoa(c.process), "ns/net"), c.process
}

// entryOf returns the entry of the pod's own interface in a candidate: of those that
// name it or, where they name no namespace, of those whose sandbox has a process
// there.
func (p *pod) entryOf(c *candidate) *entry {
	entries := c.entries
	if len(entries) == 0 {
		for _, e := range p.entries {
			if slices.ContainsFunc(c.containers, func(name string) bool {
				return e.container != "" && (name == e.container || strings.HasSuffix(name, "-"+e.container))
			}) {
				entries = append(entries, e)
			}
		}
	}
	if len(entries) == 0 {
		return nil
	}
	best := slices.MaxFunc(entries, func(a, b entry) int { return p.rank(a) - p.rank(b) })
	return &best
}

// rank says how likely an entry is about the interface that the kubelet knows of.
func (p *pod) rank(e entry) int {
	switch {
	case slices.ContainsFunc(e.ips, func(a netip.Addr) bool { return slices.Contains(p.IPs, a) }):
		return 2
	case e.ifname == "eth0":
		return 1
	}
	return 0
}
