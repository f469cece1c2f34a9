package hostnet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Mode is how the kubelet's connections are told from others.
type Mode string

// The modes, the best first. The last two program nothing.
const (
	ByCgroup       Mode = "the kubelet's cgroup"
	ByClass        Mode = "the kubelet's net_cls class"
	AnyHostProcess Mode = "any host process"
	HostAddress    Mode = "the host's address"
	NoProbes       Mode = "off"
)

// A Kubelet is how the kubelet is recognised.
type Kubelet struct {
	Mode Mode
	// PID and Cgroup are the process's, if there is one.
	PID    int
	Cgroup string
	// Reason is why it is AnyHostProcess.
	Reason string

	id    uint64 // of the cgroup in the unified hierarchy
	level uint32
	class uint32
}

// same says whether both make the same rules.
func (k Kubelet) same(o Kubelet) bool {
	return k.Mode == o.Mode && k.id == o.id && k.level == o.level && k.class == o.class
}

// A process is open as a directory of /proc: what is read through it is that process's,
// or fails once it has ended.
type process struct {
	pid    int
	dir    *os.File
	space  *os.File // its cgroup namespace, nil if the kernel has none
	cgroup string   // its cgroup file, as the agent sees it
}

func (p *process) close() error {
	err := p.dir.Close()
	if p.space != nil {
		err = errors.Join(err, p.space.Close())
	}
	return err
}

func (p *process) read(name string) (string, error) {
	fd, err := unix.Openat(int(p.dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "openat", Path: filepath.Join(p.dir.Name(), name), Err: err}
	}
	file := os.NewFile(uintptr(fd), name)
	var text strings.Builder
	_, err = file.WriteTo(&text)
	return text.String(), errors.Join(err, file.Close())
}

// moved reports whether the process has ended, or is in another cgroup.
func (p *process) moved() bool {
	now, err := p.read("cgroup")
	return err != nil || now != p.cgroup
}

// findKubelet finds the oldest process by one of the names that is in the host's network
// namespace and in no pod's cgroup. It returns nil if there is none.
func (c Config) findKubelet() (*process, error) {
	host, err := c.hostInode()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(c.Proc)
	if err != nil {
		return nil, fmt.Errorf("cannot look for the kubelet: %w", err)
	}
	var oldest *process
	var since uint64
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		name, err := os.ReadFile(filepath.Join(c.Proc, entry.Name(), "comm"))
		if err != nil || !slices.Contains(c.Names, strings.TrimSpace(string(name))) {
			continue // or one that has just ended
		}
		p, started := c.openProcess(pid, host)
		switch {
		case p == nil:
			continue
		case oldest != nil && since <= started:
			err = p.close()
		default:
			if oldest != nil {
				err = oldest.close()
			}
			oldest, since = p, started
		}
		if err != nil {
			return nil, err
		}
	}
	return oldest, nil
}

// openProcess opens a process, and returns nil if it is none of the host's or has ended.
func (c Config) openProcess(pid int, host uint64) (p *process, started uint64) {
	dir, err := os.OpenFile(filepath.Join(c.Proc, strconv.Itoa(pid)), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, 0
	}
	p = &process{pid: pid, dir: dir}
	inode, err := p.namespace("net")
	if err == nil && inode != host {
		err = errors.New("it is in another network namespace")
	}
	if err == nil {
		p.cgroup, err = p.read("cgroup")
	}
	if err == nil && strings.Contains(p.cgroup, "kubepods") {
		err = errors.New("it is in a pod")
	}
	if err == nil {
		started, err = p.started()
	}
	if err != nil {
		_ = p.close() // it was only looked at
		return nil, 0
	}
	if p.space, err = os.Open(filepath.Join(dir.Name(), "ns/cgroup")); err != nil {
		p.space = nil
	}
	return p, started
}

// namespace is the inode number of one of the process's namespaces.
func (p *process) namespace(kind string) (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstatat(int(p.dir.Fd()), "ns/"+kind, &stat, 0); err != nil {
		return 0, err
	}
	return stat.Ino, nil
}

// started is when the process did, in ticks since the boot.
func (p *process) started() (uint64, error) {
	const field = 22 - 3 // counted from the one after the name, which may hold anything
	stat, err := p.read("stat")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) <= field {
		return 0, errors.New("a stat file without a start time")
	}
	return strconv.ParseUint(fields[field], 10, 64)
}

// hostInode is the inode number of the host's network namespace. It is held, so that
// the number is nobody else's.
func (c Config) hostInode() (uint64, error) {
	var stat unix.Stat_t
	err := c.Host.File(func(f *os.File) error { return unix.Fstat(int(f.Fd()), &stat) })
	return stat.Ino, err
}
