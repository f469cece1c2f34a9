// Package sandbox answers which network namespace is a pod's. A [Place] says where
// it is, from which source that is known, and which namespace it was when it was
// found: a path is a name that can be given to another namespace later.
//
// # Failures it survives
//
//   - The runtime names a path that is no network namespace, is gone, or is the
//     node's own: refused, before anything is written into it.
//   - The namespace at a path is gone, or another one took its place: [Place.Gone]
//     says so, and [Finder.Open] refuses it.
package sandbox

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// SourceADD: the runtime said so, in the CNI ADD of the sandbox that runs now.
const SourceADD = "CNI ADD"

// ErrNotAPods is part of errors that are about the namespace itself, not about our
// means of looking at it.
var ErrNotAPods = errors.New("not a pod's network namespace")

// A Place is where a pod's network namespace is.
type Place struct {
	Path   string
	Source string
	ID     netns.ID

	dev, ino uint64
}

// A Finder finds and opens pods' network namespaces.
type Finder struct {
	refused map[netns.ID]string
}

// New returns a Finder that refuses the calling process's own namespace, which on
// a node is the host's, and that of the machine's first process.
func New() (*Finder, error) {
	f := &Finder{refused: map[netns.ID]string{}}
	for _, path := range []string{"/proc/1/ns/net", "/proc/thread-self/ns/net"} {
		h, err := netns.Open(path)
		if err != nil {
			return nil, fmt.Errorf("cannot identify the node's own network namespace: %w", err)
		}
		f.refused[h.ID()] = "the node's own network namespace"
		if err := h.Close(); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// Told returns the Place that the runtime has named in a CNI ADD.
func (f *Finder) Told(path string) (Place, error) {
	p := Place{Path: path, Source: SourceADD}
	h, err := f.open(path)
	if err != nil {
		return Place{}, err
	}
	p.ID = h.ID()
	p.dev, p.ino, err = inode(path)
	return p, errors.Join(err, h.Close())
}

// Open opens the namespace at p, if it still is the one that was found there.
func (f *Finder) Open(p Place) (*netns.Handle, error) {
	h, err := f.open(p.Path)
	if err != nil {
		return nil, err
	}
	if h.ID() != p.ID {
		return nil, errors.Join(fmt.Errorf("%s: %w: another one (%s) took the place of the pod's (%s)", p.Path, ErrNotAPods, h.ID(), p.ID), h.Close())
	}
	return h, nil
}

func (f *Finder) open(path string) (*netns.Handle, error) {
	h, err := netns.Open(path)
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNotAPods, err)
	}
	if whose, refused := f.refused[h.ID()]; refused {
		return nil, errors.Join(fmt.Errorf("%s: %w: it is %s (%s)", path, ErrNotAPods, whose, h.ID()), h.Close())
	}
	return h, nil
}

// Gone reports whether the path no longer leads to the namespace that was found
// there. It costs two system calls: while the namespace is held its inode number
// is not given to another, and the path of one that is not held is opened, and
// compared by its ID, before it is used.
func (p Place) Gone() bool {
	dev, ino, err := inode(p.Path)
	return err != nil || dev != p.dev || ino != p.ino
}

// inode returns the numbers of a namespace's file; a path at which none is mounted
// is an error.
func inode(path string) (dev, ino uint64, err error) {
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
