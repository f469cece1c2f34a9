package install

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// A Status is what becomes of STATUS, by which a runtime asks whether pods can start, and
// for which it looks at the version of its list.
type Status string

// The ways. None is the first of them.
const (
	// StatusAuto: it is asked where the primary's list has version 1.1.0 already.
	StatusAuto Status = "auto"
	// StatusAlways: our own list has that version whatever the primary's has, if the runtime
	// and all its plugins take it; else it is as with StatusAuto.
	StatusAlways Status = "always"
	// StatusNever: if it is asked, our plugin says that pods can start.
	StatusNever Status = "never"
)

// statusVersion is the version of a list from which a runtime asks its plugins for STATUS.
const statusVersion = "1.1.0"

// raised returns the list at that version; or as it is, with what stands against it. One that
// has that version already is taken down for an answer, and not because there is none: what
// is being restarted or replaced took it before.
func (i *Installer) raised(f *found) (*list, error) {
	l := f.list
	if slices.ContainsFunc(l.versions, isRaised) {
		return l, nil
	}
	against := i.against(f)
	err := errors.Join(against...)
	stays := err != nil && !slices.ContainsFunc(against, sure) && i.wasRaised(f)
	if err == nil || stays {
		up, fixed := l.at(statusVersion)
		switch {
		case fixed != nil:
			err = fixed
		case stays:
			return up, fmt.Errorf("install.status is always, and whether the list %s can stay at version %s, which it has, is not known: %w", i.list(), statusVersion, err)
		default:
			return up, nil
		}
	}
	return l, fmt.Errorf("install.status is always, and yet STATUS is not asked for: the list %s stays at version %q: %w; "+
		"meanwhile a pod's ADD alone waits for the agent; if it is to stay so, set install.status to auto",
		i.list(), l.versions, err)
}

func isRaised(version string) bool {
	enough, _ := atLeast(version, 1, 1)
	return enough
}

// wasRaised says whether our list, as it is on the disk, has that version already, and has
// every program executed that is to be executed now.
func (i *Installer) wasRaised(f *found) bool {
	text, err := read(i.list())
	if err != nil {
		return false
	}
	l, err := parseList(ListName, text)
	if err != nil || !slices.ContainsFunc(l.versions, isRaised) {
		return false
	}
	were, unread := (&found{dir: f.dir, list: l}).executed()
	are, err := f.executed()
	isNew := func(kind string) bool { return !slices.Contains(were, kind) }
	return unread == nil && err == nil && !slices.ContainsFunc(are, isNew)
}

// An unsure is why it is not known whether somebody takes that version.
type unsure struct{ error }

func sure(err error) bool { return !errors.As(err, new(unsure)) }

// at returns the list at another version. Nothing else of its text changes.
func (l *list) at(version string) (*list, error) {
	if l.version == (span{}) {
		return nil, errors.New("the primary's list has no cniVersion that could be raised")
	}
	return parseList(l.file, slices.Concat(l.text[:l.version.from], []byte(strconv.Quote(version)), l.text[l.version.to:]))
}

// against is what stands against version 1.1.0: the runtime, or each of the programs that are
// executed by the list. It asks these.
func (i *Installer) against(f *found) (errs []error) {
	if err := i.loader.runtimeRefuses11(i.config.Proc); err != nil {
		errs = append(errs, err)
		if sure(err) {
			return errs
		}
	}
	kinds, err := f.executed()
	if err != nil {
		return append(errs, err)
	}
	for _, kind := range kinds {
		if kind != filepath.Base(kind) {
			errs = append(errs, fmt.Errorf("the plugin %q is none of %s, and not asked", kind, i.config.BinDir))
			continue
		}
		switch err := i.programs.speaks(filepath.Join(i.config.BinDir, kind), statusVersion); {
		case err == nil:
		case sure(err):
			errs = append(errs, fmt.Errorf("the plugin %s does not take %s: %w", kind, statusVersion, err))
		default:
			errs = append(errs, fmt.Errorf("whether the plugin %s takes %s is not known: %w", kind, statusVersion, err))
		}
	}
	return errs
}

// executed are the types of the primary's plugins, and of those that they execute in
// their turn, which are handed the list's version, too.
func (f *found) executed() ([]string, error) {
	var texts [][]byte
	for _, p := range f.list.plugins {
		if !isMesh(p) {
			texts = append(texts, p.text)
		}
	}
	dir := filepath.Join(f.dir, f.list.name)
	entries, _ := os.ReadDir(dir) // if there is none, the runtime loads nothing from it
	for _, entry := range entries {
		if f.list.inlined || filepath.Ext(entry.Name()) != ".conf" || entry.Name() == dropInName {
			continue
		}
		text, err := read(filepath.Join(dir, entry.Name()))
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	var kinds []string
	for _, text := range texts {
		more, err := executedBy(text)
		if err != nil {
			return nil, err
		}
		kinds = append(kinds, more...)
	}
	slices.Sort(kinds)
	return slices.Compact(kinds), nil
}

func executedBy(text []byte) ([]string, error) {
	type named struct {
		Type string `json:"type"`
	}
	var conf struct {
		named
		IPAM     named  `json:"ipam"`
		Delegate *named `json:"delegate"`
	}
	if err := json.Unmarshal(text, &conf); err != nil {
		return nil, fmt.Errorf("what the plugin %q executes cannot be told: %w", conf.Type, err)
	}
	kinds := []string{conf.Type, conf.IPAM.Type}
	if conf.Type == "flannel" { // it says the rest to others
		kinds = append(kinds, "bridge", "host-local")
	}
	if conf.Delegate != nil {
		kinds = append(kinds, conf.Delegate.Type)
	}
	return slices.DeleteFunc(kinds, func(kind string) bool { return kind == "" }), nil
}
