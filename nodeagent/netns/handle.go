// Package netns is the project's one door into a network namespace, and, for what the
// kernel counts from there, into a cgroup namespace ([InCgroup]).
//
// A namespace is never passed around as a bare number. A [Handle] owns the open
// file of a namespace for as long as anybody needs it: it has one owner, who
// closes it once; everybody else borrows it through [Handle.Do] and
// [Handle.File], which keep the file open for the whole call. [Handle.Dup] makes
// a second owner.
//
// A namespace's identity ([ID]) is its cookie (SO_NETNS_COOKIE, Linux 5.14),
// which the kernel never gives twice until it is booted again. Before that it is
// the device and inode number of its nsfs file, which the kernel does give
// again, at once: such an ID is only good while a Handle on that namespace is
// held.
//
// # Failures it survives
//
//   - The garbage collector closes a file whose number is still in use: the number
//     never leaves a call, and the file stays open until the call is over.
//   - File descriptor 0, which netlink libraries take for "no namespace", is never
//     used: such a file is moved to a higher number.
//   - A path that is no network namespace (a plain file left behind where the
//     mount was, another kind of namespace) is refused when it is opened.
//   - A thread that cannot be brought back to its own namespace is not used again:
//     it ends with its goroutine.
//   - Others, or the agent itself, look where its process is while it works in a pod:
//     the first thread, which stands for the process, never leaves its namespace.
//   - A panic, or runtime.Goexit, inside Do reaches the caller; the process's other
//     threads stay where they were.
package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A Handle owns one open file of a network namespace.
type Handle struct {
	file *os.File
	id   ID
}

// Open opens the network namespace at path, as /run/netns/NAME or /proc/PID/ns/net.
func Open(path string) (*Handle, error) {
	// O_NONBLOCK: a FIFO at the path would otherwise wait for its writer.
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open network namespace: %w", err)
	}
	h, err := FromFile(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return h, nil
}

// FromFile makes a Handle of an open namespace file. It owns file from then on,
// and has closed it when it fails.
func FromFile(file *os.File) (*Handle, error) {
	file, err := aboveStdio(file)
	if err != nil {
		return nil, err
	}
	h := &Handle{file: file}
	if err := h.identify(); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return h, nil
}

// Current returns the network namespace that the calling process works in.
func Current() (*Handle, error) {
	return Open("/proc/thread-self/ns/net")
}

// New makes a new network namespace, in which nothing is configured and lo is
// down. It lives as long as something holds it: the Handle, a mount, a socket.
func New() (*Handle, error) {
	var h *Handle
	err := onOwnThread(network, func() error {
		created, err := netns.New()
		if err != nil {
			return fmt.Errorf("cannot create network namespace: %w", err)
		}
		h, err = FromFile(os.NewFile(uintptr(created), "netns"))
		return err
	})
	return h, err
}

// ID returns the namespace's identity.
func (h *Handle) ID() ID { return h.id }

// Do runs fn on a thread that is in the namespace. fn must neither wait nor start
// goroutines, which would run in another namespace. A socket that fn opens stays
// in the namespace, and keeps it alive, wherever it is used later.
func (h *Handle) Do(fn func() error) error {
	return onOwnThread(network, func() error {
		if err := h.enter(); err != nil {
			return err
		}
		return fn()
	})
}

// File lends the namespace's file to fn, to be sent to another process or bind
// mounted. It stays open until fn returns; fn must not close or keep it.
func (h *Handle) File(fn func(*os.File) error) error {
	var err error
	if lent := h.control(func(uintptr) { err = fn(h.file) }); lent != nil {
		return lent
	}
	return err
}

// Dup returns a second Handle on the same namespace, with an owner of its own.
func (h *Handle) Dup() (*Handle, error) {
	var (
		fd  int
		err error
	)
	if lent := h.control(func(own uintptr) {
		fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, firstFree)
	}); lent != nil {
		return nil, lent
	}
	if err != nil {
		return nil, fmt.Errorf("cannot duplicate network namespace %s: %w", h.id, err)
	}
	return &Handle{file: os.NewFile(uintptr(fd), h.file.Name()), id: h.id}, nil
}

// Close gives the namespace up. Calls under way finish first; later ones fail
// with an error that is os.ErrClosed.
func (h *Handle) Close() error {
	if err := h.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("cannot close network namespace %s: %w", h.id, err)
	}
	return nil
}

// control runs fn with the file's number, and keeps the file open meanwhile.
func (h *Handle) control(fn func(fd uintptr)) error {
	raw, err := h.file.SyscallConn()
	if err == nil {
		err = raw.Control(fn)
	}
	runtime.KeepAlive(h)
	if err != nil { // Control fails on a closed file only, with an error that is not os.ErrClosed
		return fmt.Errorf("cannot use network namespace %s: %w", h.id, os.ErrClosed)
	}
	return nil
}

// enter moves the calling thread into the namespace and looks whether it is there.
func (h *Handle) enter() error {
	var err error
	if lent := h.control(func(fd uintptr) {
		if err = netns.Set(netns.NsHandle(fd)); err != nil {
			return
		}
		var want, got unix.Stat_t
		if err = errors.Join(unix.Fstat(int(fd), &want), unix.Stat("/proc/thread-self/ns/net", &got)); err != nil {
			return
		}
		if want.Dev != got.Dev || want.Ino != got.Ino {
			err = fmt.Errorf("the thread is in another one (inode %d, not %d)", got.Ino, want.Ino)
		}
	}); lent != nil {
		return lent
	}
	if err != nil {
		return fmt.Errorf("cannot enter network namespace %s: %w", h.id, err)
	}
	return nil
}

// firstFree is the lowest number a namespace's file may have.
const firstFree = 3

// aboveStdio moves a file that has a standard stream's number to a higher one.
func aboveStdio(file *os.File) (*os.File, error) {
	fd := file.Fd()
	if fd >= firstFree {
		return file, nil
	}
	moved, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, firstFree)
	name := file.Name()
	if err := errors.Join(err, file.Close()); err != nil {
		return nil, fmt.Errorf("cannot move %s away from file descriptor %d: %w", name, fd, err)
	}
	return os.NewFile(uintptr(moved), name), nil
}
