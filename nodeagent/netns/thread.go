package netns

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// A kind is one of namespaces, by its name in /proc and its CLONE flag.
type kind struct {
	name string
	flag int
}

var (
	network = kind{"net", unix.CLONE_NEWNET}
	control = kind{"cgroup", unix.CLONE_NEWCGROUP}
)

// InCgroup runs fn on a thread that is in a cgroup namespace: a rule that names a
// cgroup by its level has the level counted from there. The file is one of
// /proc/PID/ns/cgroup, and stays the caller's. fn must neither wait nor start goroutines.
func InCgroup(space *os.File, fn func() error) error {
	return onOwnThread(control, func() error {
		raw, err := space.SyscallConn()
		if err != nil {
			return fmt.Errorf("cannot use a cgroup namespace: %w", err)
		}
		var entered error
		if err := raw.Control(func(fd uintptr) { entered = unix.Setns(int(fd), control.flag) }); err != nil {
			return fmt.Errorf("cannot use a cgroup namespace: %w", err)
		}
		if entered != nil {
			return fmt.Errorf("cannot enter the cgroup namespace %s: %w", space.Name(), entered)
		}
		return fn()
	})
}

// onOwnThread runs fn in a goroutine locked to its thread and brings that thread
// back to the namespace of the kind that it came from. If that is not possible the
// goroutine ends locked, and its thread with it.
func onOwnThread(k kind, fn func() error) error {
	var (
		err      error
		panicked any
		finished bool
	)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { panicked = recover() }()
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// Whoever looks at /proc/PID/ns sees where this thread is. While it is
			// locked here, the work gets another one.
			err, finished = onOwnThread(k, fn), true
			runtime.UnlockOSThread()
			return
		}
		home, homeErr := unix.Open("/proc/thread-self/ns/"+k.name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if homeErr != nil {
			err, finished = fmt.Errorf("cannot open the thread's own %s namespace: %w", k.name, homeErr), true
			return
		}
		defer func() {
			if back := unix.Setns(home, k.flag); back == nil {
				runtime.UnlockOSThread()
			}
			err = errors.Join(err, unix.Close(home))
		}()
		err = fn()
		finished = true
	}()
	<-done
	switch {
	case panicked != nil:
		panic(panicked)
	case !finished:
		return fmt.Errorf("cannot finish work in a %s namespace: its goroutine was ended (runtime.Goexit)", k.name)
	}
	return err
}
