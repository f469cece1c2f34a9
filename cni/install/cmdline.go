package install

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/cni/inroot"
)

// maxFiles bounds how many configurations are read of one process, whatever it names and
// whatever they import.
const maxFiles = 100

// toldTo are the configurations that a process was told on its command line to read, by
// absolute paths, the last element of which may be a pattern. There are none if it was told
// nothing, or a path that depends on where it was started.
func toldTo(dir, name string) []string {
	text, _ := read(filepath.Join(dir, "cmdline")) // one that cannot be read tells nothing
	args := strings.Split(string(text), "\x00")
	file := lastFlag(args, "c", "config")
	if name == "crio" {
		dropIns := lastFlag(args, "d", "config-dir")
		if file == "" && dropIns == "" {
			return nil
		}
		return []string{cmp.Or(file, "/etc/crio/crio.conf"), filepath.Join(cmp.Or(dropIns, "/etc/crio/crio.conf.d"), "*")}
	}
	if name != "containerd" || file == "" { // K3s's own -c is not of containerd
		return nil
	}
	return []string{file}
}

// lastFlag is the absolute path that a flag has as its value; of several, the last one counts.
func lastFlag(args []string, names ...string) (path string) {
	for n, arg := range args {
		flag, value, inside := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(arg, "-"), "-"), "=")
		if !strings.HasPrefix(arg, "-") || !slices.Contains(names, flag) {
			continue
		}
		if !inside && n+1 < len(args) {
			value = args[n+1]
		}
		path = value
	}
	if !filepath.IsAbs(path) {
		return ""
	}
	return path
}

// configs reads what the process was told to read, and what that imports: later ones go
// before earlier ones.
func (p process) configs() []tomlFile {
	var all []tomlFile
	patterns := slices.Clone(p.told)
	for n := 0; n < len(patterns); n++ {
		for _, path := range matches(p.root, patterns[n]) {
			if len(all) == maxFiles {
				return all
			}
			file := readTOML(p.root, path)
			all = append(all, file)
			for _, more := range words(file.content["imports"]) {
				if !filepath.IsAbs(more) {
					more = filepath.Join(filepath.Dir(path), more)
				}
				if len(patterns) < maxFiles && !slices.Contains(patterns, more) {
					patterns = append(patterns, more)
				}
			}
		}
	}
	return all
}

// matches are the paths that a pattern stands for.
func matches(root, pattern string) (paths []string) {
	dir, base := filepath.Split(pattern)
	if !strings.ContainsAny(base, `*?[\`) {
		return []string{pattern}
	}
	_ = inside(root, dir, func(here string) error { // without the directory there are none
		entries, err := os.ReadDir(here)
		for _, entry := range entries {
			if ok, _ := filepath.Match(base, entry.Name()); ok { // a bad pattern matches nothing
				paths = append(paths, filepath.Join(dir, entry.Name()))
			}
		}
		return err
	})
	return paths
}

// inside has something done with what a path leads to for a process with another root
// directory (/proc/PID/root); without one, for us.
// Nothing is opened by that: a device may act on it.
func inside(root, path string, do func(here string) error) error {
	if root == "" {
		return do(path)
	}
	file, err := inroot.Open(root, path, unix.O_PATH)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // nothing was written
	return do(fmt.Sprintf("/proc/self/fd/%d", file.Fd()))
}
