package netns

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// An ID says whether two namespaces are the same one. IDs are compared with ==.
type ID struct {
	cookie   uint64
	dev, ino uint64
}

// String returns the cookie, or dev:inode on kernels without cookies.
func (id ID) String() string {
	if id.cookie != 0 {
		return fmt.Sprintf("cookie %d", id.cookie)
	}
	return fmt.Sprintf("inode %d:%d", id.dev, id.ino)
}

// MarshalText gives String's form, to be written down until the next boot.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads MarshalText's form.
func (id *ID) UnmarshalText(text []byte) error {
	var read ID
	format, into := "cookie %d", []any{&read.cookie}
	if bytes.HasPrefix(text, []byte("inode")) {
		format, into = "inode %d:%d", []any{&read.dev, &read.ino}
	}
	if _, err := fmt.Sscanf(string(text), format, into...); err != nil || read.String() != string(text) {
		return fmt.Errorf("cannot read a network namespace's identity from %q", text)
	}
	*id = read
	return nil
}

// SocketID returns the identity of the namespace that a socket belongs to. It does
// not take over fd.
func SocketID(fd int) (ID, error) {
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err == nil {
		return ID{cookie: cookie}, nil
	}
	if !errors.Is(err, unix.ENOPROTOOPT) {
		return ID{}, fmt.Errorf("cannot read the network namespace cookie of a socket: %w", err)
	}
	return socketInode(fd)
}

// socketInode is SocketID for kernels before 5.14.
func socketInode(fd int) (ID, error) {
	ns, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	if err != nil {
		return ID{}, fmt.Errorf("cannot open the network namespace of a socket: %w", err)
	}
	var stat unix.Stat_t
	if err := errors.Join(unix.Fstat(ns, &stat), unix.Close(ns)); err != nil {
		return ID{}, fmt.Errorf("cannot identify the network namespace of a socket: %w", err)
	}
	return ID{dev: stat.Dev, ino: stat.Ino}, nil
}

// identify refuses a file that is no network namespace, and reads the identity of
// one that is.
func (h *Handle) identify() error {
	var err error
	if lent := h.control(func(fd uintptr) { err = checkType(int(fd)) }); lent != nil {
		return lent
	}
	if err != nil {
		return err
	}
	return h.Do(func() error {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("cannot open a socket in the network namespace: %w", err)
		}
		id, err := SocketID(fd)
		h.id = id
		return errors.Join(err, unix.Close(fd))
	})
}

func checkType(fd int) error {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return fmt.Errorf("cannot stat: %w", err)
	}
	if fs.Type != unix.NSFS_MAGIC {
		return errors.New("not a namespace: nothing of type nsfs is mounted here (the namespace is gone, or was never here)")
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return fmt.Errorf("cannot read the kind of namespace: %w", err)
	}
	if kind != unix.CLONE_NEWNET {
		return fmt.Errorf("a namespace, but not a network namespace (type %#x)", kind)
	}
	return nil
}
