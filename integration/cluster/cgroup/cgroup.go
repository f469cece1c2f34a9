// Package cgroup makes, enters and removes control groups, in all hierarchies at
// once: those of version 1, the unified one, and both side by side.
//
// # Failures it survives
//
//   - A group that is there already, or gone already.
//   - A group whose last process is just ending: its removal is tried until the
//     context ends.
//   - A version 1 cpuset, which is made empty and takes no process: it gets what its
//     parent has.
//   - Version 2 hands no controllers to the children of a group with processes in it:
//     where it has controllers, groups are made below its root.
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// A Group is one control group: its place in each hierarchy.
type Group []Branch

// A Branch is a group's place in one hierarchy.
type Branch struct {
	Mount   string // where the hierarchy is mounted
	Options string // with which options, as "cpu,cpuacct"; empty: version 2
	Path    string // of the group, below Mount
}

func (b Branch) dir() string { return filepath.Join(b.Mount, b.Path) }

// Child returns the group of that name below g.
func (g Group) Child(name string) Group {
	child := slices.Clone(g)
	for i := range child {
		child[i].Path = filepath.Join(child[i].Path, name)
	}
	return child
}

// Inside returns the group as processes see it whose cgroup namespace was made in it,
// and whose hierarchies were mounted there.
func (g Group) Inside() Group {
	root := slices.Clone(g)
	for i := range root {
		root[i].Path = "/"
	}
	return root
}

// Create makes a group whose parent is there.
func (g Group) Create() error {
	for _, b := range g {
		if err := b.create(); err != nil {
			return fmt.Errorf("cannot make the control group %s: %w", b.dir(), err)
		}
	}
	return nil
}

func (b Branch) create() error {
	dir := b.dir()
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if !slices.Contains(strings.Split(b.Options, ","), "cpuset") {
		return nil
	}
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		value, err := os.ReadFile(filepath.Join(filepath.Dir(dir), file))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0); err != nil {
			return err
		}
	}
	return nil
}

// Delegate lets the group's children have all its controllers. In version 2 no
// process may be in the group itself.
func (g Group) Delegate() error {
	for _, b := range g {
		if b.Options != "" {
			continue
		}
		controllers, err := os.ReadFile(filepath.Join(b.dir(), "cgroup.controllers"))
		if err != nil {
			return fmt.Errorf("cannot tell which controllers there are: %w", err)
		}
		for _, controller := range strings.Fields(string(controllers)) {
			if err := os.WriteFile(filepath.Join(b.dir(), "cgroup.subtree_control"), []byte("+"+controller), 0); err != nil {
				return fmt.Errorf("cannot hand on the controller %s: %w", controller, err)
			}
		}
	}
	return nil
}

// Enter moves the calling process into the group.
func (g Group) Enter() error {
	for _, b := range g {
		if err := os.WriteFile(filepath.Join(b.dir(), "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("cannot enter the control group: %w", err)
		}
	}
	return nil
}

// Remove removes the group and all below it, once no process is left in them.
func (g Group) Remove(ctx context.Context) error {
	// All at once: in version 1 each removal waits for the kernel's grace period.
	var all errgroup.Group
	for _, b := range g {
		all.Go(func() error { return removeTree(ctx, b.dir()) })
	}
	return all.Wait()
}

func removeTree(ctx context.Context, dir string) error {
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for {
		err := removeOnce(dir)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return fmt.Errorf("cannot remove a control group, processes are left in it: %w", err)
		}
	}
}

// removeOnce removes the directories of a tree, the lowest first.
func removeOnce(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeOnce(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	// Not os.Remove: it tries unlink first.
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, unix.ENOENT) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// Mount mounts the hierarchies anew, at the same places. In a cgroup namespace they
// begin at the namespace's own group.
func (g Group) Mount() error {
	for _, b := range g {
		if err := os.MkdirAll(b.Mount, 0o755); err != nil {
			return err
		}
		kind := "cgroup"
		if b.Options == "" {
			kind = "cgroup2"
		}
		if err := unix.Mount("cgroup", b.Mount, kind, 0, b.Options); err != nil {
			return fmt.Errorf("cannot mount the control groups at %s: %w", b.Mount, err)
		}
	}
	return nil
}
