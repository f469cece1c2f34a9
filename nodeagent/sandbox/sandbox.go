// Package sandbox answers which network namespace is a pod's. A [Place] says where
// it is, from which source that is known, and which namespace it was when it was
// found: a path is a name that can be given to another namespace later.
//
// The best source is the runtime, which names the namespace in the ADD of a sandbox
// ([Finder.Told]). For pods that it has not told us of, [Finder.Search] asks libcni's
// result cache first and then, once for all that are left, the processes: one counts
// whose cgroup is the pod's, at the level of the cgroup's path that the kubelet
// makes. What is found so must hold one of the pod's addresses, where they are known.
//
// # Failures it survives
//
//   - The runtime names a path that is no network namespace, is gone, or is the
//     node's own: refused, before anything is written into it.
//   - A namespace is a connected proxy's: refused too.
//   - The directory that the runtime names is not mounted for the agent: the path is
//     followed as the node's first process would follow it, links and all.
//   - The namespace at a path is gone, or another one took its place: [Place.Gone]
//     says so, and [Finder.Open] refuses it.
//   - The cache names namespaces from before the boot, of sandboxes that are over, or
//     by a process id: only a path at which one is mounted now counts.
//   - A file in the cache is half written, no JSON, endless, a FIFO, or goes away
//     while it is read: it is passed over.
//   - Two live namespaces may be the pod's: its addresses and its processes decide,
//     or nobody does, and the error names both.
//   - A process ends, and its number is another's: all is read through one open
//     directory, which is that process's or fails.
//   - Processes of a pod are in other namespaces (a container engine or a kubelet in
//     the pod, the runtime's own processes, in the node's): those nearest the pod's
//     cgroup count, and those that hold its addresses.
//   - The process by which a namespace was found ends: the Place is where the
//     namespace is mounted, if it is anywhere; otherwise it says so ([Place.Process]).
//   - Nobody has written down when a sandbox was made: a namespace that is mounted has
//     the kernel's own time of it, one that is not is as old as its oldest process.
//   - The agent sees cgroups from within its own cgroup namespace, or is itself on a
//     node inside of a pod.
//   - A namespace with addresses without end: so many are looked through, and no more.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/cni/inroot"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// SourceADD: the runtime said so, in the CNI ADD of the sandbox that runs now.
const SourceADD = "CNI ADD"

// ErrNotAPods is part of errors that are about the namespace itself, not about our
// means of looking at it.
var ErrNotAPods = errors.New("not a pod's network namespace")

// ErrAnothers is an ErrNotAPods: the namespace is the node's own, or a proxy's.
var ErrAnothers = fmt.Errorf("%w", ErrNotAPods)

// A Place is where a pod's network namespace is.
type Place struct {
	Path   string
	Source string
	ID     netns.ID
	// Process is not 0 if nothing is known that leads to the namespace but this
	// process. The Place is gone with it, though the namespace may live on.
	Process int
	// Born is when the sandbox was made, or soon after. It is zero if that is not
	// known: where the runtime has named the namespace nobody looks.
	Born time.Time

	dev, ino uint64
	node     string // the root in which Path is to be followed; empty: ours
}

// A Finder finds and opens pods' network namespaces. Its fields are not changed once
// it is in use.
type Finder struct {
	// CNICache is where libcni keeps the results of ADDs; nowhere, unless it is set.
	CNICache string
	// Proc is where the node's processes are seen.
	Proc string
	// Proxies, if not nil, returns the process ids of the proxies that are connected
	// now. Their network namespaces are refused.
	Proxies func() []int

	node map[netns.ID]string
}

// New returns a Finder that refuses the calling process's own namespace, which on
// a node is the host's, and that of the machine's first process.
func New() (*Finder, error) {
	f := &Finder{Proc: "/proc", node: map[netns.ID]string{}}
	for _, path := range []string{"/proc/1/ns/net", "/proc/thread-self/ns/net"} {
		h, err := netns.Open(path)
		if err != nil {
			return nil, fmt.Errorf("cannot identify the node's own network namespace: %w", err)
		}
		f.node[h.ID()] = "the node's own network namespace"
		if err := h.Close(); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// refused returns the namespaces that are no pod's to be captured, with whose they
// are.
func (f *Finder) refused() (map[netns.ID]string, error) {
	if f.Proxies == nil {
		return f.node, nil
	}
	all := maps.Clone(f.node)
	for _, pid := range f.Proxies() {
		h, err := netns.Open(filepath.Join(f.Proc, strconv.Itoa(pid), "ns/net"))
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return nil, fmt.Errorf("cannot identify the network namespace of the connected proxy (process %d): %w", pid, err)
		}
		if _, known := all[h.ID()]; !known {
			all[h.ID()] = fmt.Sprintf("the network namespace of a connected proxy (process %d)", pid)
		}
		if err := h.Close(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Told returns the Place that the runtime has named in a CNI ADD.
func (f *Finder) Told(path string) (Place, error) {
	h, node, err := f.open(path)
	if err != nil {
		return Place{}, err
	}
	var stat unix.Stat_t
	err = errors.Join(h.File(func(file *os.File) error { return unix.Fstat(int(file.Fd()), &stat) }), h.Close())
	return Place{Path: path, Source: SourceADD, ID: h.ID(), dev: stat.Dev, ino: stat.Ino, node: node}, err
}

// Attached returns the namespaces of all sandboxes that libcni's cache has: where one is
// mounted now, each once. Whose they are is not asked. unread says what could not be made
// sense of.
func (f *Finder) Attached(ctx context.Context) (places []Place, unread []error, err error) {
	if f.CNICache == "" {
		return nil, nil, nil
	}
	unread, err = readCache(ctx, f.CNICache, func(e entry) error {
		for _, path := range e.paths {
			if mounted(path) != nil || slices.ContainsFunc(places, func(p Place) bool { return p.Path == path }) {
				continue
			}
			place, err := f.Told(path)
			if errors.Is(err, ErrNotAPods) {
				continue // it is the node's, a proxy's, or gone by now
			}
			if err != nil {
				return err
			}
			place.Source = SourceCache
			places = append(places, place)
		}
		return nil
	})
	return places, unread, err
}

// Open opens the namespace at p, if it still is the one that was found there.
func (f *Finder) Open(p Place) (*netns.Handle, error) {
	h, _, err := f.open(p.Path)
	if err != nil {
		return nil, err
	}
	if h.ID() != p.ID {
		return nil, errors.Join(fmt.Errorf("%s: %w: another one (%s) took the place of the pod's (%s)", p.Path, ErrNotAPods, h.ID(), p.ID), h.Close())
	}
	return h, nil
}

func (f *Finder) open(path string) (h *netns.Handle, node string, err error) {
	if h, node, err = f.reach(path); err != nil {
		return nil, "", notAPods(err)
	}
	refused, err := f.refused()
	if err != nil {
		return nil, "", errors.Join(err, h.Close())
	}
	if whose, is := refused[h.ID()]; is {
		return nil, "", errors.Join(fmt.Errorf("%s: %w: it is %s (%s)", path, ErrAnothers, whose, h.ID()), h.Close())
	}
	return h, node, nil
}

// notAPods makes an ErrNotAPods of a failure to open a namespace, unless it says
// nothing about the namespace.
func notAPods(err error) error {
	if unsaid(err) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrNotAPods, err)
}

// exhausted reports whether an error says only that there is nothing left to open a
// file with.
func exhausted(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM)
}

// Gone reports whether the path no longer leads to the namespace that was found
// there. In our root it costs one system call: while the namespace is held its inode number
// is not given to another, and the path of one that is not held is opened, and
// compared by its ID, before it is used. No other file system has the device's number.
func (p Place) Gone() bool {
	var stat unix.Stat_t
	if p.node != "" {
		file, err := inroot.Open(p.node, p.Path, unix.O_PATH)
		if err != nil {
			return !unsaid(err)
		}
		err = errors.Join(unix.Fstat(int(file.Fd()), &stat), file.Close())
		return err != nil || stat.Dev != p.dev || stat.Ino != p.ino
	}
	err := unix.Stat(p.Path, &stat)
	return err != nil || stat.Dev != p.dev || stat.Ino != p.ino
}

// inodeAt returns the numbers of a namespace's file; a path at which none is mounted
// is an error.
func inodeAt(path string) (dev, ino uint64, err error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return 0, 0, fmt.Errorf("cannot look at %s: %w", path, err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return 0, 0, fmt.Errorf("%s: %w: nothing is mounted there", path, ErrNotAPods)
	}
	var stat unix.Stat_t
	if err := unix.Stat(path, &stat); err != nil {
		return 0, 0, fmt.Errorf("cannot look at %s: %w", path, err)
	}
	return stat.Dev, stat.Ino, nil
}
