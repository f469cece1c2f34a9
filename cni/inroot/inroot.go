// Package inroot opens what a path leads to for a process with another root directory, such as
// the runtime's process, whose own paths are all that we know.
//
// # Failures it survives
//
//   - Links that lead out of that root: an absolute one, as /var/run often is, and one with
//     too many ".." lead within it, as they do for the process.
//   - Links that lead by a process, as /proc/PID/ns/net: refused, since which process has that
//     number may be different there.
//   - A file that is mounted or renamed on the machine at the same moment, which keeps a ".."
//     from being followed: tried again.
package inroot

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tries is how often a path is followed. Something is mounted or renamed all the time.
const tries = 100

// Open opens the path in that root directory, as /proc/PID/root. Its error is [unix.EAGAIN] if
// what is there could not be found out. It needs Linux 5.6.
func Open(root, path string, flags int) (*os.File, error) {
	dir, err := os.OpenFile(root, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	how := unix.OpenHow{Flags: uint64(flags) | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
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
