package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A process is open as a directory of /proc: what is read through it is that
// process's, or fails once it has ended, even if its number has been given again.
type process struct {
	pid int
	dir *os.File
}

// processes calls each with the processes that there are, the oldest numbers first.
func processes(ctx context.Context, proc string, each func(process) error) error {
	dir, err := os.Open(proc)
	if err != nil {
		return fmt.Errorf("cannot look for processes: %w", err)
	}
	names, err := dir.Readdirnames(-1)
	if err = errors.Join(err, dir.Close()); err != nil {
		return fmt.Errorf("cannot look for processes: %w", err)
	}
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil && pid > 0 {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return err
		}
		dir, err := os.OpenFile(filepath.Join(proc, strconv.Itoa(pid)), unix.O_PATH|unix.O_DIRECTORY, 0)
		if err == nil {
			err = errors.Join(each(process{pid, dir}), dir.Close())
		}
		if err != nil && !ended(err) {
			return fmt.Errorf("cannot look at process %d: %w", pid, err)
		}
	}
	return nil
}

// ended reports whether an error says that a process has ended.
func ended(err error) bool { return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) }

func (p process) open(name string) (*os.File, error) {
	fd, err := unix.Openat(int(p.dir.Fd()), name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "openat", Path: filepath.Join(p.dir.Name(), name), Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Join(p.dir.Name(), name)), nil
}

// read reads one of the process's files.
func (p process) read(name string) (string, error) {
	const most = 64 << 10
	file, err := p.open(name)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(file, most))
	return string(text), errors.Join(err, file.Close())
}

func (p process) cgroup() (string, error) { return p.read("cgroup") }

// started returns when the process did; zero if that cannot be told.
func (p process) started() time.Time {
	stat, err := p.read("stat")
	if err != nil {
		return time.Time{}
	}
	since, ok := parseStart(stat)
	var now unix.Timespec
	if !ok || unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) != nil {
		return time.Time{}
	}
	// By its age, which does not change when the clock is set.
	return time.Now().Add(since - time.Duration(now.Nano())).Round(0)
}

// parseStart finds in a process's stat file how long after the boot it was started.
func parseStart(stat string) (time.Duration, bool) {
	const (
		tick  = time.Second / 100 // the same on every machine
		field = 22 - 3            // counted from the one after the name, which may hold anything
	)
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) <= field {
		return 0, false
	}
	ticks, err := strconv.ParseInt(fields[field], 10, 40)
	if err != nil || ticks < 0 {
		return 0, false
	}
	return time.Duration(ticks) * tick, true
}

// mounts returns where network namespaces are mounted, by their inode numbers.
func mounts(proc string) (map[uint64]string, error) {
	file, err := os.Open(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("cannot look for mounted namespaces: %w", err)
	}
	all := map[uint64]string{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if inode, path, ok := parseMount(lines.Text()); ok && all[inode] == "" {
			all[inode] = path
		}
	}
	if err = errors.Join(lines.Err(), file.Close()); err != nil {
		return nil, fmt.Errorf("cannot look for mounted namespaces: %w", err)
	}
	return all, nil
}

// parseMount reads a line of mountinfo, as
//
//	63 43 0:4 net:[4026532250] /run/netns/cni-1 rw - nsfs none rw
func parseMount(line string) (inode uint64, path string, ok bool) {
	fields := strings.Fields(line)
	if len(fields) < 5 {
		return 0, "", false
	}
	number, isNet := strings.CutPrefix(fields[3], "net:[")
	number, closed := strings.CutSuffix(number, "]")
	inode, err := strconv.ParseUint(number, 10, 64)
	return inode, unescape.Replace(fields[4]), isNet && closed && err == nil
}

// unescape undoes the kernel's escapes of what would end a field, or a line.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
