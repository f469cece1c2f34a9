package install

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// A fight is over a file: others undo what we write as often as we write it. So many
// times within a window make one; from then on there is one try in each window, and it
// is over when one has stood for a window.
const (
	fightTimes  = 3
	fightWindow = 10 * time.Second
)

type fight struct {
	path    string // of what was put there last, if it has not been missed yet
	content []byte
	mode    fs.FileMode
	wrote   time.Time   // when we wrote last
	lost    []time.Time // when it was not there any more, of late
	undone  int         // how often that was, in all
	on      bool
}

// stands takes note of what is there as it should be.
func (f *fight) stands(p plan, now time.Time) {
	f.path, f.content, f.mode = p.path, p.content, p.mode
	if f.on && len(f.lost) > 0 && now.Sub(f.lost[len(f.lost)-1]) >= fightWindow && now.Sub(f.wrote) >= fightWindow {
		f.on = false
	}
}

// missed takes note of what is not as it should be. What still is as we left it is not
// lost: then the primary asks for something else.
func (f *fight) missed(p plan, now time.Time) {
	if f.path == p.path && !holds(f.path, f.content, f.mode) {
		f.undone++
		f.lost = slices.DeleteFunc(append(f.lost, now), func(t time.Time) bool { return now.Sub(t) >= fightWindow })
		f.on = f.on || len(f.lost) >= fightTimes
	}
	f.path = ""
}

// may says whether it is time to write again.
func (f *fight) may(now time.Time) bool { return !f.on || now.Sub(f.wrote) >= fightWindow }

// fought names a fight that goes on, and what ends it.
func (i *Installer) fought(p plan) error {
	if !i.fight.on {
		return nil
	}
	owner, remedy := i.rival(p)
	return fmt.Errorf("%s undoes what is written to %s, again and again (trying once in %v from now on): %s", owner, p.path, fightWindow, remedy)
}

// rival guesses who undoes what we write, by what there is to see.
func (i *Installer) rival(p plan) (owner, remedy string) {
	f, err := survey(i.config.ConfDir)
	first := "unknown"
	if err == nil && len(f.list.plugins) > 0 {
		first = f.list.plugins[0].kind
	}
	switch {
	case exists(p.path+".cilium_bak") || first == "cilium-cni":
		return "Cilium", "set cni.exclusive to false in its Helm values (cni-exclusive in the ConfigMap cilium-config)"
	case exists(filepath.Join(i.config.ConfDir, istioList)):
		return "istio-cni", "uninstall it"
	case p.made != nil:
		return fmt.Sprintf("the owner of %s (%s)", filepath.Base(p.path), first), "set install.mode to owned, which leaves that file to its owner"
	}
	if text, err := os.ReadFile(p.path); err == nil && bytes.Contains(text, []byte(PluginName)) && !bytes.Contains(text, i.entry) {
		return "another Fairlead agent", "let one alone run on a node"
	}
	return fmt.Sprintf("another program (the owner of %s, %s, perhaps)", p.primary, first),
		fmt.Sprintf("have it leave %s alone", filepath.Base(p.path))
}
