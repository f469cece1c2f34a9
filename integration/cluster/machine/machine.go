// Package machine makes a node's inside, in namespaces that its first process has
// been started in: a machine of its own as far as the kubelet, the runtime and a CNI
// plugin can tell, with all paths where they are on any other.
//
//   - /etc is as outside, until it is written to, and but for the configuration of
//     what runs in nodes; /opt and /var are empty at the first start. What is written
//     to these is kept in the node's directory, which is its disk.
//   - /run is empty at each start.
//   - /proc, /sys and the control groups show this node only.
//   - The kubelet writes sysctls that the whole machine has in common. It finds files
//     in their place that have the values it wants, and the machine keeps its own.
//
// # Failures it survives
//
//   - It fails half-way: everything it does is in the namespaces, and ends with them.
//   - The disk was used before: that is how a node starts again.
package machine

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/cluster/cgroup"
)

// A Config says which node it is.
type Config struct {
	Name   string
	BootID string       // another one at each start
	Disk   string       // the directory that stands for its disk; not below OwnDirs
	Cgroup cgroup.Group // its own, as it is seen from outside
	Socket string       // its first process takes requests there
}

// Read reads a Config from a file.
func Read(file string) (Config, error) {
	var c Config
	content, err := os.ReadFile(file)
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal(content, &c); err != nil {
		return c, fmt.Errorf("cannot read %s: %w", file, err)
	}
	return c, nil
}

// NewBootID returns an ID as the kernel makes one when it starts.
func NewBootID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// OwnDirs are not the machine's. Of the first one its content is seen inside, but for
// what is notOurs; nothing of the others is.
var OwnDirs = []string{"/etc", "/opt", "/var", "/run"}

// notOurs is configuration that the machine may have for itself.
var notOurs = []string{"cni", "kubernetes", "containerd", "fairlead"}

// sysctls are what the kubelet sets where it finds other values.
var sysctls = map[string]string{
	"vm/overcommit_memory":      "1",
	"vm/panic_on_oom":           "0",
	"kernel/panic":              "10",
	"kernel/panic_on_oops":      "1",
	"kernel/keys/root_maxkeys":  "1000000",
	"kernel/keys/root_maxbytes": "25000000",
}

// Furnish makes the inside. The caller is the first process in PID, mount, network,
// UTS, IPC and cgroup namespaces, and stays so.
func Furnish(c Config) error {
	steps := []struct {
		what string
		do   func() error
	}{
		{"name it", func() error { return unix.Sethostname([]byte(c.Name)) }},
		{"make its mounts private", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") }},
		{"mount /proc", func() error { return unix.Mount("proc", "/proc", "proc", 0, "") }},
		{"mount /etc", c.mountEtc},
		{"mount its disk", c.mountDisk},
		{"mount /run", mountRun},
		{"keep it from the machine's sysctls", c.guardSysctls},
		{"mount /sys", func() error { return unix.Mount("sysfs", "/sys", "sysfs", 0, "") }},
		{"give it control groups", c.mountCgroups},
		{"let it forward", forward},
		// What the kubelet and the runtime mount is seen in containers, and the other way.
		{"share its mounts", func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "") }},
	}
	for _, step := range steps {
		if err := step.do(); err != nil {
			return fmt.Errorf("node %s: cannot %s: %w", c.Name, step.what, err)
		}
	}
	return nil
}

// mountEtc lays what is written to /etc over the machine's.
func (c Config) mountEtc() error {
	upper, work := filepath.Join(c.Disk, "etc"), filepath.Join(c.Disk, "etc.work")
	if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755)); err != nil {
		return err
	}
	for _, name := range notOurs {
		dir := filepath.Join(upper, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Setxattr(dir, "trusted.overlay.opaque", []byte("y"), 0); err != nil {
			return fmt.Errorf("hide %s: %w", dir, err)
		}
	}
	return unix.Mount("overlay", "/etc", "overlay", 0, fmt.Sprintf("lowerdir=/etc,upperdir=%s,workdir=%s", upper, work))
}

// mountDisk gives it directories that are empty at its first start.
func (c Config) mountDisk() error {
	for _, dir := range []string{"/opt", "/var"} {
		disk := filepath.Join(c.Disk, dir)
		if err := os.MkdirAll(disk, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(disk, dir, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s on %s: %w", disk, dir, err)
		}
	}
	for _, dir := range []string{"/var/lib", "/var/log", "/var/tmp"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink("/run", "/var/run"); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func mountRun() error {
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
		return err
	}
	return errors.Join(os.Mkdir("/run/netns", 0o755), os.Mkdir("/run/lock", 0o755))
}

func (c Config) guardSysctls() error {
	const dir = "/run/sysctl"
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	values := maps.Clone(sysctls)
	values["kernel/random/boot_id"] = c.BootID
	for name, value := range values {
		shared := filepath.Join("/proc/sys", name)
		if _, err := os.Stat(shared); errors.Is(err, fs.ErrNotExist) {
			continue // this kernel does not have it, and the kubelet does not ask
		}
		guard := filepath.Join(dir, strings.ReplaceAll(name, "/", "."))
		if err := os.WriteFile(guard, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := unix.Mount(guard, shared, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", shared, err)
		}
	}
	return nil
}

func forward() error {
	err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	err6 := os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0)
	if errors.Is(err6, fs.ErrNotExist) { // the kernel has no IPv6
		err6 = nil
	}
	return errors.Join(err, err6)
}

// mountCgroups shows the node's groups only. Its first process then leaves their
// root: version 2 allows no process there once there are others below.
func (c Config) mountCgroups() error {
	if len(c.Cgroup) == 0 {
		return errors.New("there are none")
	}
	if first := c.Cgroup[0]; first.Options != "" || len(c.Cgroup) > 1 {
		if err := unix.Mount("tmpfs", "/sys/fs/cgroup", "tmpfs", 0, "mode=0755"); err != nil {
			return err
		}
	}
	if err := c.Cgroup.Mount(); err != nil {
		return err
	}
	own, err := cgroup.Own()
	if err != nil {
		return err
	}
	first := own.Child("init")
	if err := first.Create(); err != nil {
		return err
	}
	if err := first.Enter(); err != nil {
		return err
	}
	return own.Delegate()
}
