package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/renameio/v2"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

// A drained is why the node's pods are not captured: somebody has asked for it. It is
// written down, so that an agent that is restarted does not take the node back on its own.
// It ends by the verb that undoes it, by the node's next boot, and for another
// installation.
type drained struct {
	Since time.Time `json:"since"`
	// Uninstalled: nothing is to be put onto the node any more.
	Uninstalled bool `json:"uninstalled,omitempty"`
	// Installation is when the one was made that was told, by the API's clock; zero if that
	// is not known.
	Installation time.Time `json:"installation,omitzero"`

	unread error // what was said cannot be read
}

// over says whether what was said was said to another installation. Where either is not known
// what is left to compare is the node's clock with that by which this one was promised.
func (d drained) over(installation, promised time.Time) bool {
	switch {
	case d.unread != nil:
		return false
	case d.Installation.IsZero() || installation.IsZero():
		return !d.Since.After(promised)
	}
	return !d.Installation.Equal(installation)
}

// A drainFile keeps a drained.
type drainFile struct {
	path string

	mu  sync.Mutex
	now *drained // nil: the node is not drained
}

// openDrainFile reads what an earlier agent was told. A file that cannot be read drains
// the node, too: that it is there says so much.
func openDrainFile(socket string) *drainFile {
	f := &drainFile{path: agentapi.DrainedFile(socket)}
	text, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return f
	}
	f.now = &drained{}
	if err == nil {
		err = json.Unmarshal(text, f.now)
	}
	if err == nil && f.now.Since.IsZero() {
		err = errors.New("it does not say since when")
	}
	if err != nil {
		f.now = &drained{unread: fmt.Errorf("cannot read %s: %w", f.path, err)}
	}
	return f
}

// state is what the node is; nil if it is not drained.
func (f *drainFile) state() *drained {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now == nil {
		return nil
	}
	now := *f.now
	return &now
}

func (f *drainFile) uninstalled() bool {
	d := f.state()
	return d != nil && d.Uninstalled
}

// set makes the node drained, or more so, as an installation was told.
func (f *drainFile) set(uninstalled bool, installation time.Time) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	next := drained{Since: time.Now().UTC(), Uninstalled: uninstalled, Installation: installation}
	if f.now != nil {
		next.Uninstalled = next.Uninstalled || f.now.Uninstalled
		if installation.IsZero() {
			next.Installation = f.now.Installation
		}
	}
	text, err := json.Marshal(next)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(f.path), 0o700)
	}
	if err == nil {
		err = renameio.WriteFile(f.path, append(text, '\n'), 0o600, renameio.WithTempDir(filepath.Dir(f.path)), renameio.WithStaticPermissions(0o600))
	}
	if err != nil {
		return fmt.Errorf("cannot write down that the node is drained: %w", err)
	}
	f.now = &next
	return nil
}

// end makes the node an ordinary one, if what was said is over.
func (f *drainFile) end(over func(drained) bool) (ended bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.now == nil || !over(*f.now) {
		return false, nil
	}
	if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("cannot end that the node is drained: %w", err)
	}
	f.now = nil
	return true, nil
}

// Drain releases the node's pods, or ends that.
func (a *agent) Drain(ctx context.Context, on bool) error {
	switch {
	case on:
		if err := a.drained.set(false, a.installation()); err != nil {
			return err
		}
	case a.drained.uninstalled():
		return fmt.Errorf("the node was uninstalled, which cannot be undone here: remove %s and restart the agent, which then installs the plugin again", a.drained.path)
	default:
		if _, err := a.drained.end(func(drained) bool { return true }); err != nil {
			return err
		}
	}
	a.reconciler.Drain(ctx, on)
	return nil
}

// judgeDrain ends what was said to an earlier installation, once it is known when this one
// was made.
func (a *agent) judgeDrain(ctx context.Context) {
	defer close(a.judged)
	ended, err := a.drained.end(func(d drained) bool { return d.over(a.installation(), a.promised()) })
	switch {
	case err != nil:
		a.logger.Error("the node stays drained", "error", err)
	case ended:
		a.logger.Info("the node was drained for another installation, and is not any more")
		a.reconciler.Drain(ctx, false)
	}
}

// drainProblem is what status says of a drained node.
func (a *agent) drainProblem() string {
	d := a.drained.state()
	switch {
	case d == nil:
		return ""
	case d.unread != nil:
		return fmt.Sprintf("this node is taken for a drained one, and no pod is captured: %v; fairlead drain says it anew, fairlead drain --undo ends it", d.unread)
	case d.Uninstalled:
		return fmt.Sprintf("this node was uninstalled (%s): no pod is captured, and nothing of ours is put onto it; to take it back remove %s and restart the agent",
			d.Since.Format(time.RFC3339), a.drained.path)
	}
	return fmt.Sprintf("this node is drained (%s): no pod is captured, and one that asks for it does not start; fairlead drain --undo ends it, fairlead uninstall goes on", d.Since.Format(time.RFC3339))
}
