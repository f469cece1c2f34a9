package sandbox

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/cni/inroot"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// reach opens the namespace at a path as the runtime means it: where that is not one to us,
// since the runtime's directory is not mounted for us, as the node's first process sees it.
// node is where that one's root was, if it was needed.
func (f *Finder) reach(path string) (h *netns.Handle, node string, err error) {
	h, err = netns.Open(path)
	if err == nil || exhausted(err) {
		return h, "", err
	}
	node = filepath.Join(f.Proc, "1/root")
	file, nodeErr := inroot.Open(node, path, unix.O_RDONLY|unix.O_NONBLOCK)
	if nodeErr == nil {
		h, nodeErr = netns.FromFile(file)
	}
	switch {
	case nodeErr == nil:
		return h, node, nil
	case unsaid(nodeErr):
		return nil, "", nodeErr
	}
	return nil, "", fmt.Errorf("%w; nor can it be had as the node's first process sees it: %w", err, nodeErr)
}

// unsaid reports whether an error of [inroot.Open] says nothing about what is there.
func unsaid(err error) bool { return exhausted(err) || errors.Is(err, unix.EAGAIN) }
