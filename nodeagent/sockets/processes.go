package sockets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

// freshness is how old what is known of all processes may be.
const freshness = time.Second

// Processes knows which processes live in which network namespace. One serves all pods
// of a node, so that looks at many of them walk /proc once. Its methods may be called
// from several goroutines.
type Processes struct {
	proc string

	mu     sync.Mutex
	walked time.Time
	living map[nsfs][]int // PIDs, in order
}

// NewProcesses makes Processes of those that are seen in proc, which is /proc.
func NewProcesses(proc string) *Processes { return &Processes{proc: proc} }

// in returns who lives in a namespace, going by the first thread.
func (p *Processes) in(ctx context.Context, at nsfs) ([]int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.living == nil || time.Since(p.walked) >= freshness {
		living, err := p.walk(ctx)
		if err != nil {
			return nil, fmt.Errorf("cannot look for processes: %w", err)
		}
		p.living, p.walked = living, time.Now()
	}
	return p.living[at], nil
}

func (p *Processes) walk(ctx context.Context) (map[nsfs][]int, error) {
	dir, err := os.Open(p.proc)
	if err != nil {
		return nil, err
	}
	living := map[nsfs][]int{}
	err = entries(dir, func(name string) error {
		if pid, err := strconv.Atoi(name); err == nil {
			// Whatever the error is, the process has ended or is hidden from us.
			at, err := nsfsAt(int(dir.Fd()), name+"/ns/net")
			if errors.Is(err, unix.ENOENT) {
				at, err = p.withoutFirstThread(pid)
			}
			if err == nil {
				living[at] = append(living[at], pid)
			}
		}
		return ctx.Err()
	})
	for _, pids := range living {
		slices.Sort(pids)
	}
	return living, errors.Join(err, dir.Close())
}

// withoutFirstThread is where a process lives whose first thread has ended.
func (p *Processes) withoutFirstThread(pid int) (nsfs, error) {
	proc := p.open(pid)
	if proc == nil {
		return nsfs{}, unix.ESRCH
	}
	defer proc.close()
	at, _, err := proc.home()
	return at, err
}

// open opens a process, nil if it has ended.
func (p *Processes) open(pid int) *process {
	dir, err := os.OpenFile(filepath.Join(p.proc, strconv.Itoa(pid)), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil
	}
	return &process{pid, dir}
}

// nsfs identifies a namespace for as long as somebody holds it.
type nsfs struct{ dev, ino uint64 }

// nsfsAt identifies a namespace by its path in a directory, or by its open file where
// there is no path.
func nsfsAt(dir int, path string) (nsfs, error) {
	var stat unix.Stat_t
	flags := 0
	if path == "" {
		flags = unix.AT_EMPTY_PATH
	}
	if err := unix.Fstatat(dir, path, &stat, flags); err != nil {
		return nsfs{}, fmt.Errorf("cannot identify a network namespace: %w", err)
	}
	return nsfs{stat.Dev, stat.Ino}, nil
}

// A process is open as a directory of /proc: what is read through it is that
// process's, or fails once it has ended, even if its number has been given again.
type process struct {
	pid int
	dir *os.File
}

func (p *process) close() { _ = p.dir.Close() } // nothing was written

// home is where the process lives, and the directory of a thread that tells: the first
// thread's, unless it has ended. The others, and the open files, live on without it.
func (p *process) home() (at nsfs, thread string, err error) {
	if at, err = nsfsAt(int(p.dir.Fd()), "ns/net"); !errors.Is(err, unix.ENOENT) {
		return at, ".", err
	}
	p.list("task", func(dir int, name string) error {
		if found, foundErr := nsfsAt(dir, name+"/ns/net"); foundErr == nil {
			at, thread, err = found, filepath.Join("task", name), nil
			return errEnough
		}
		return nil
	})
	return at, thread, err
}

// list calls each with what a directory of the process's holds, as far as it can be
// read: the process may end at any moment, or be hidden from us.
func (p *process) list(name string, each func(dir int, name string) error) {
	fd, err := unix.Openat(int(p.dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	dir := os.NewFile(uintptr(fd), name)
	_ = entries(dir, func(name string) error { return each(fd, name) })
	_ = dir.Close() // nothing was written
}

// lives says whether all threads of the process are in a namespace. One of a proxy's or
// an agent's, or our own, enters a pod for a moment, while the others stay outside.
func (p *process) lives(at nsfs) bool {
	threads, others := 0, 0
	p.list("task", func(dir int, thread string) error {
		switch in, err := nsfsAt(dir, thread+"/ns/net"); {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH): // has ended
		case err != nil || in != at:
			others++
		default:
			threads++
		}
		return nil
	})
	return threads > 0 && others == 0
}

// sockets calls each with the inode number of each file of a thread's that is a socket,
// and with 0 for any other.
func (p *process) sockets(thread string, each func(inode uint64) error) {
	p.list(filepath.Join(thread, "fd"), func(dir int, file string) error {
		var target [64]byte
		n, err := unix.Readlinkat(dir, file, target[:])
		if err != nil { // closed meanwhile
			return each(0)
		}
		number, is := strings.CutPrefix(string(target[:n]), "socket:[")
		number, closed := strings.CutSuffix(number, "]")
		inode, err := strconv.ParseUint(number, 10, 64)
		if !is || !closed || err != nil {
			inode = 0
		}
		return each(inode)
	})
}

// command is what the process calls itself, which may be anything.
func (p *process) command() string {
	const most = 64
	name := make([]byte, most)
	n := 0
	if fd, err := unix.Openat(int(p.dir.Fd()), "comm", unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
		n, _ = unix.Read(fd, name)
		_ = unix.Close(fd)
	}
	return strings.Map(func(r rune) rune {
		if r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.TrimSuffix(string(name[:max(n, 0)]), "\n"))
}

// entries calls each with the names in a directory.
func entries(dir *os.File, each func(string) error) error {
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			if err := each(name); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
