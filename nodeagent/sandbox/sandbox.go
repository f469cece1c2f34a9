// Package sandbox answers which network namespace is a pod's, and how sure that
// is. Each answer carries the source it comes from.
//
// # Failures it survives
//
//   - The runtime names a path that is no network namespace, is gone, or is the
//     node's own: refused, before anything is written into it.
package sandbox

import (
	"errors"
	"fmt"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// SourceADD: the runtime said so, in the CNI ADD of the sandbox that runs now.
const SourceADD = "CNI ADD"

// A Finder opens pods' network namespaces.
type Finder struct {
	own netns.ID
}

// New returns a Finder that refuses the calling process's own namespace, which on
// a node is the host's.
func New() (*Finder, error) {
	own, err := netns.Current()
	if err != nil {
		return nil, err
	}
	return &Finder{own: own.ID()}, own.Close()
}

// Open opens the namespace at path, which the runtime has named as a pod's.
func (f *Finder) Open(path string) (*netns.Handle, error) {
	h, err := netns.Open(path)
	if err != nil {
		return nil, err
	}
	if h.ID() == f.own {
		return nil, errors.Join(
			fmt.Errorf("%s is the node's own network namespace (%s), not a pod's", path, f.own), h.Close())
	}
	return h, nil
}
