package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Own returns the calling process's group, below which it may make others. Of a
// version 2 hierarchy with controllers that is the root: see the package comment.
func Own() (Group, error) {
	memberships, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	g, err := parse(string(memberships), string(mounts))
	if err != nil {
		return nil, err
	}
	for i, b := range g {
		if b.Options != "" {
			continue
		}
		controllers, err := os.ReadFile(filepath.Join(b.Mount, "cgroup.controllers"))
		if err != nil {
			return nil, fmt.Errorf("cannot tell which controllers there are: %w", err)
		}
		if len(controllers) > 0 {
			g[i].Path = "/"
		}
	}
	return g, nil
}

// parse finds, for each line of /proc/PID/cgroup, where its hierarchy is mounted.
// What is mounted nowhere is left out: nobody can use it.
func parse(memberships, mounts string) (Group, error) {
	var g Group
	for line := range strings.Lines(memberships) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			return nil, fmt.Errorf("cannot read the line %q of /proc/self/cgroup", line)
		}
		if b, ok := findMount(parts[1], parts[2], mounts); ok {
			g = append(g, b)
		}
	}
	if len(g) == 0 {
		return nil, errors.New("no control groups are mounted; remedy: mount them at /sys/fs/cgroup, as every distribution does")
	}
	return g, nil
}

// findMount looks for the mount of a hierarchy, known by its controllers (none:
// version 2), in which a group is visible.
func findMount(controllers, group, mounts string) (Branch, bool) {
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 5 || len(right) < 3 {
			continue
		}
		root, mount, kind, options := left[3], left[4], right[0], strings.Split(right[2], ",")
		path, below := strings.CutPrefix(group, strings.TrimSuffix(root, "/"))
		switch {
		case !below, path != "" && path[0] != '/':
		case controllers == "" && kind == "cgroup2":
			return Branch{Mount: mount, Path: filepath.Join("/", path)}, true
		case controllers != "" && kind == "cgroup" && containsAll(options, strings.Split(controllers, ",")):
			if strings.HasPrefix(controllers, "name=") {
				controllers = "none," + controllers
			}
			return Branch{Mount: mount, Options: controllers, Path: filepath.Join("/", path)}, true
		}
	}
	return Branch{}, false
}

func containsAll(all, some []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}
