package plugin

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

const ownNetns = "/proc/thread-self/ns/net"

// checkNetns refuses what is not a network namespace, and the one that the
// plugin itself, or the node's first process, runs in: rules in there would cut
// off the node.
func checkNetns(path string) error {
	if path == "" {
		return errors.New("it is empty")
	}
	fd, err := openNetns(path)
	if err != nil {
		return fmt.Errorf("%s: %v", path, err)
	}
	defer unix.Close(fd) //nolint:errcheck // opened to be looked at
	for _, host := range []string{ownNetns, "/proc/1/ns/net"} {
		same, err := sameFile(fd, host)
		switch {
		case err != nil && host == ownNetns:
			return fmt.Errorf("cannot compare %s with the plugin's own: %v", path, err)
		case err == nil && same:
			return fmt.Errorf("%s is the host's own (%s)", path, host)
		}
	}
	return nil
}

// openNetns does not wait for what may be a FIFO.
func openNetns(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := isNetns(fd); err != nil {
		return -1, errors.Join(err, unix.Close(fd))
	}
	return fd, nil
}

func isNetns(fd int) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if fs.Type != unix.NSFS_MAGIC {
		return errors.New("it is not a namespace: an ordinary file is left where a mount was, or never was")
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return fmt.Errorf("cannot tell the kind of namespace: %v", err)
	}
	if kind != unix.CLONE_NEWNET {
		return errors.New("it is a namespace, but not a network namespace")
	}
	return nil
}

// sameFile compares an open namespace with one that is alive because a process
// is in it, so neither inode number can have been reused.
func sameFile(fd int, path string) (bool, error) {
	var a, b unix.Stat_t
	if err := unix.Fstat(fd, &a); err != nil {
		return false, err
	}
	if err := unix.Stat(path, &b); err != nil {
		return false, err
	}
	return a.Dev == b.Dev && a.Ino == b.Ino, nil
}
