package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// A Mode is how the runtime is made to execute the plugin.
type Mode string

// The modes.
const (
	Owned   Mode = "owned"   // by a list of our own, derived from the primary
	Chained Mode = "chained" // by an entry in the primary's list
	DropIn  Mode = "dropin"  // by a file in the directory of plugins that belongs to the primary
)

// dropInName is the file of mode dropin.
const dropInName = "fairlead.conf"

// A plan is the file by which the runtime executes our plugin, and what has to stand in
// it.
type plan struct {
	primary  string // the name of its file
	first    string // the name of the one that the runtime has to take
	before   string // the name of one that it takes instead
	path     string
	content  []byte
	mode     fs.FileMode
	made     []byte // in somebody else's file: the text that the content was made of
	present  bool   // the plugin is executed already, if perhaps by another content
	noStatus error  // why STATUS, asked for always, is not to be had
}

func (p plan) holds() bool {
	if p.made != nil {
		return bytes.Equal(p.made, p.content)
	}
	return holds(p.path, p.content, p.mode)
}

// plan finds out what has to be written where.
func (i *Installer) plan() (plan, error) {
	f, err := survey(i.config.ConfDir)
	if err != nil {
		return plan{primary: f.primary}, remedy(err, i.config.ConfDir, "cniConfDir")
	}
	p := plan{primary: f.primary, first: f.primary, before: f.before(f.primary), mode: listMode}
	switch i.config.Mode {
	case Owned:
		err = i.planOwned(f, &p)
	case Chained:
		err = i.planChained(f, &p)
	case DropIn:
		err = i.planDropIn(f, &p)
	}
	if err == nil && !f.list.inlined {
		err = f.twice()
	}
	if err != nil {
		err = fmt.Errorf("cannot have %s followed by fairlead-cni (install.mode %s): %w", filepath.Join(f.dir, f.primary), i.config.Mode, err)
	}
	return p, err
}

func (i *Installer) planOwned(f *found, p *plan) (err error) {
	p.path, p.first, p.before = i.list(), ListName, f.before(ListName)
	p.present = exists(p.path)
	// A list that is refused is refused at any version, and its programs are not executed.
	if p.content, err = f.list.with(i.entry); err != nil || i.config.Status != StatusAlways {
		return err
	}
	var l *list
	l, p.noStatus = i.raised(f)
	p.content, err = l.with(i.entry)
	return err
}

func (i *Installer) planChained(f *found, p *plan) error {
	name := f.primary
	c, err := f.list.chain()
	if errors.Is(err, errElsewhere) {
		name, c, err = f.delegatedTo()
	}
	if err != nil {
		return err
	}
	p.path, p.made = filepath.Join(f.dir, name), c.text
	p.present = bytes.Contains(c.text, []byte(`"`+PluginName+`"`))
	info, err := os.Lstat(p.path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is a link, and the runtime does not see when its target changes: set install.mode to owned", p.path)
	}
	if err != nil {
		return err
	}
	p.mode = info.Mode().Perm()
	p.content, err = c.with(i.entry)
	return err
}

func (i *Installer) planDropIn(f *found, p *plan) error {
	p.path = filepath.Join(f.dir, f.list.name, dropInName)
	p.content = append(bytes.Clone(i.entry), '\n')
	p.present = exists(p.path)
	switch name := f.list.name; {
	case f.list.single && f.list.multus():
		return errors.New("it is one plugin and no list, for which the runtime loads nothing from a directory: set install.mode to chained")
	case f.list.single:
		return errors.New("it is one plugin and no list, for which the runtime loads nothing from a directory: set install.mode to owned")
	case f.list.inlined:
		return errors.New("it says loadOnlyInlinedPlugins, with which the runtime loads nothing from a directory: set install.mode to owned or chained")
	case name == "" || name == "." || name == ".." || name != filepath.Base(name):
		return fmt.Errorf("its name, %q, is none of a directory", name)
	}
	for _, other := range f.list.plugins {
		if isIstio(other) {
			return errors.New("istio-cni stands in it: uninstall istio-cni first, or set install.mode to owned, which leaves it out")
		}
	}
	if dir := filepath.Dir(p.path); len(f.list.plugins) == 0 && !somethingBefore(dir) {
		return fmt.Errorf("it has no plugins of its own, and of those in %s none sorts before %s: ours would be the first, with no interface to work on; "+
			"have the network's plugins stand in the list, or in files (*.conf) that sort before it", dir, dropInName)
	}
	return speaks(f.list.versions)
}

// somethingBefore says whether the runtime executes somebody else's plugin before a drop-in
// in a directory of plugins, which it takes in the order of names.
func somethingBefore(dir string) bool {
	entries, _ := os.ReadDir(dir) // if there is none, the runtime loads nothing from it
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return !e.IsDir() && filepath.Ext(e.Name()) == ".conf" && e.Name() < dropInName
	})
}

// twice says whether the runtime would execute our plugin twice: somebody else has put
// it into the primary's directory of plugins.
func (f *found) twice() error {
	dir := filepath.Join(f.dir, f.list.name)
	entries, _ := os.ReadDir(dir) // if there is none, the runtime loads nothing from it
	for _, entry := range entries {
		name := entry.Name()
		if filepath.Ext(name) == ".conf" && name != dropInName && isOurDropIn(filepath.Join(dir, name)) {
			return fmt.Errorf("%s names fairlead-cni too, and each pod would have it executed twice: remove it", filepath.Join(dir, name))
		}
	}
	return nil
}

func isOurDropIn(path string) bool {
	var head struct {
		Type string `json:"type"`
	}
	text, err := read(path)
	return err == nil && json.Unmarshal(text, &head) == nil && head.Type == PluginName
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
