package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

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
	file, nodeErr := openWithin(node, path, unix.O_RDONLY|unix.O_NONBLOCK)
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

// openWithin opens what a path names in another root. Its links lead where they lead there:
// in an ordinary open an absolute one, as /var/run often is, would lead into our own root.
// It does not go by a process, as /proc/PID/ns/net would: which one has that number may be
// different there. It needs Linux 5.6.
func openWithin(root, path string, flags uint64) (*os.File, error) {
	const tries = 100
	dir, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	how := unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := -1, error(unix.EAGAIN)
	for n := 0; n < tries && (errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR)); n++ {
		fd, err = unix.Openat2(int(dir.Fd()), path, &how)
	}
	_ = dir.Close() // nothing was written
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), path), nil
}

// unsaid reports whether an error of openWithin says nothing about what is there. Something is
// mounted or renamed on the machine all the time, which keeps a ".." from being followed.
func unsaid(err error) bool { return exhausted(err) || errors.Is(err, unix.EAGAIN) }
