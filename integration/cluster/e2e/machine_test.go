//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/fairlead-mesh/fairlead/integration/cluster/cgroup"
)

// machineState tells, as text, all of this machine that a cluster could leave
// something in, or change. The machine is the test's own PID, mount and network
// namespace; control groups and sysctls are those of everybody.
func machineState(t *testing.T) string {
	t.Helper()
	var s strings.Builder
	section := func(title string, lines []string) {
		fmt.Fprintf(&s, "# %s\n%s\n", title, strings.Join(lines, "\n"))
	}
	processes, namespaces := processes(t)
	section("processes", processes)
	section("namespaces", namespaces)
	section("mounts", strings.Split(read(t, "/proc/self/mountinfo"), "\n"))
	section("links and routes", network(t))
	section("control groups", groups(t))
	section("sysctls", sysctls(t))
	return s.String()
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(content))
}

func processes(t *testing.T) (commands, namespaces []string) {
	t.Helper()
	found, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range found {
		// What has ended meanwhile is not there.
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue
		}
		commands = append(commands, strings.Join(strings.Fields(string(stat))[:3:3], " "))
		links, err := filepath.Glob(filepath.Join(dir, "ns/*"))
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range links {
			if target, err := os.Readlink(link); err == nil {
				namespaces = append(namespaces, target)
			}
		}
	}
	for i, command := range commands { // the state, which is the third field, changes
		fields := strings.Fields(command)
		if fields[2] != "Z" {
			fields[2] = "alive"
		}
		commands[i] = strings.Join(fields, " ")
	}
	slices.Sort(namespaces)
	return commands, slices.Compact(namespaces)
}

func network(t *testing.T) []string {
	t.Helper()
	var lines []string
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		lines = append(lines, fmt.Sprintf("%s %s %s", link.Attrs().Name, link.Type(), link.Attrs().Flags))
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, route := range routes {
		lines = append(lines, route.String())
	}
	return lines
}

// groups lists the control groups below our own, but for other clusters'.
func groups(t *testing.T) []string {
	t.Helper()
	own, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, branch := range own {
		root := filepath.Join(branch.Mount, branch.Path)
		err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist): // another's group, just removed
				return nil
			case err != nil:
				return err
			case !entry.IsDir():
				return nil
			case strings.HasPrefix(entry.Name(), "fairlead-") && !strings.HasPrefix(entry.Name(), "fairlead-e2e-"):
				return fs.SkipDir
			}
			lines = append(lines, path)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return lines
}

func sysctls(t *testing.T) []string {
	t.Helper()
	var lines []string
	for _, name := range []string{
		"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
		"kernel/keys/root_maxbytes", "kernel/random/boot_id", "kernel/hostname", "net/ipv4/ip_forward", "net/netfilter/nf_conntrack_max",
	} {
		lines = append(lines, name+"="+read(t, "/proc/sys/"+name))
	}
	return lines
}
