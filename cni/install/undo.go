package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Remove takes ours out of the runtime's configuration, in whatever mode it was put
// there, and Run does not put it there again. Files of others are then as they were, byte
// for byte.
//
// The binary stays; see [Installer.RemoveBinary].
func (i *Installer) Remove(ctx context.Context) error {
	defer i.hold(ctx)()
	i.working.Lock()
	defer i.working.Unlock()
	i.leaving = true
	err := errors.Join(i.sweep(""), i.unchain())
	i.unnamed = err == nil
	if err != nil {
		err = fmt.Errorf("cannot take fairlead-cni out of the runtime's configuration: %w; pods may not be able to start until that is done", err)
	}
	err = errors.Join(err, i.removeTemps())
	i.set(State{Problem: errors.Join(errors.New("the plugin was removed from the runtime's configuration on purpose"), err)})
	return err
}

// ErrNamed is why the plugin's binary is not removed: every ADD and DEL of the node would fail.
var ErrNamed = errors.New("the runtime's configuration still names it")

// RemoveBinary removes the plugin's binary; with ErrNamed, unless Remove has succeeded. A
// runtime may execute it even so: until it has loaded its configuration again, and for a
// pod's DEL what the list named at the ADD (CRI-O). A pod whose DEL finds no binary cannot
// be deleted.
func (i *Installer) RemoveBinary() error {
	i.working.Lock()
	defer i.working.Unlock()
	if !i.unnamed {
		return fmt.Errorf("cannot remove the plugin's binary: %w", ErrNamed)
	}
	if err := removeFile(i.config.BinDir, PluginName); err != nil {
		return fmt.Errorf("cannot remove the plugin's binary: %w", err)
	}
	return nil
}

// removeTemps removes files that were not whole yet when an agent was killed, and the
// directories that were made for them.
func (i *Installer) removeTemps() error {
	errs := []error{
		removeFile(i.config.BinDir, tempName(PluginName)),
		removeFile(i.config.ConfDir, tempName(ListName)),
		removeFile(i.config.ConfDir, tempName(dropInName)),
	}
	inside, _ := filepath.Glob(filepath.Join(i.config.ConfDir, "*", tempName(dropInName))) // the pattern is a valid one
	for _, path := range inside {
		errs = append(errs, os.Remove(path))
		_ = os.Remove(filepath.Dir(path)) // fails where others have plugins in it
	}
	return errors.Join(errs...)
}

// sweep removes files that are ours, but for one.
func (i *Installer) sweep(keep string) error {
	var errs []error
	if i.list() != keep {
		errs = append(errs, removeFile(i.config.ConfDir, ListName))
	}
	entries, err := os.ReadDir(i.config.ConfDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	for _, entry := range entries {
		dir := filepath.Join(i.config.ConfDir, entry.Name())
		path := filepath.Join(dir, dropInName)
		if !entry.IsDir() || path == keep || !isOurDropIn(path) {
			continue
		}
		errs = append(errs, i.reloading(func() error { return removeFile(dir, dropInName) }))
		_ = os.Remove(dir) // fails where others have plugins in it
	}
	return errors.Join(errs...)
}

// reloading has the runtime read its configuration again after a change that it does
// not see: in a directory below its own. What it sees is that the marker goes; one that
// a killed process has left goes at the next start, with the same effect.
func (i *Installer) reloading(change func() error) error {
	marker := filepath.Join(i.config.ConfDir, tempName(dropInName))
	if err := os.WriteFile(marker, nil, listMode); err != nil {
		return err
	}
	return errors.Join(change(), os.Remove(marker))
}

// unchain takes our entries out of others' lists.
func (i *Installer) unchain() error {
	dir := i.config.ConfDir
	names, err := configs(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var errs []error
	for _, name := range names {
		text, err := read(filepath.Join(dir, name))
		if err == nil && bytes.Contains(text, []byte(PluginName)) {
			err = unchainFrom(dir, name, text)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", filepath.Join(dir, name), err))
		}
	}
	return errors.Join(errs...)
}

func unchainFrom(dir, name string, text []byte) error {
	l, err := parseList(name, text)
	if err != nil {
		return err
	}
	c, _ := l.chain() // if there is none, it has no plugins
	switch {
	case len(l.plugins) > 0 && !slices.ContainsFunc(l.plugins, func(p plugin) bool { return !isOurs(p) }):
		return errors.New("nothing but fairlead-cni stands in it, and it was not made by the agent: remove it")
	case !slices.ContainsFunc(c.plugins, isOurs):
		return nil // our name stands there for something else
	}
	if target, err := os.Readlink(filepath.Join(dir, name)); err == nil {
		return fmt.Errorf("it is a link to %s, and not replaced by a file: take the entry of fairlead-cni out of that by hand", target)
	}
	return edit(dir, name, c.without(), text)
}

func removeFile(dir, name string) error {
	if err := os.Remove(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return syncDir(dir)
}
