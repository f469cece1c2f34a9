package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// What the plugin is called, and the list that is derived for it.
const (
	PluginName = "fairlead-cni"
	ListName   = "02-fairlead.conflist"
)

// Config is what an Installer needs. The directories are those of the container
// runtime, as this process sees them.
type Config struct {
	Plugin  string // the plugin's binary that is installed
	BinDir  string // where the runtime finds plugins
	ConfDir string // where the runtime finds network configurations

	// AgentSocket and AllowWithoutAgent stand in our entry of the list; the socket's
	// path is the host's.
	AgentSocket       string
	AllowWithoutAgent []string

	// Ready is closed when the list may be put there: from then on the plugin is
	// executed for every pod. The binary does not wait for it.
	Ready  <-chan struct{}
	Poll   time.Duration // how often to look without a notification
	Logger *slog.Logger
}

// An Installer keeps the plugin installed on a node.
type Installer struct {
	config Config
	entry  []byte // ours, of the list
	hints  *hints

	working sync.Mutex // held while files are looked at or changed
	removed bool       // on purpose

	mu    sync.Mutex
	state State
}

// State is what the last look found.
type State struct {
	// Primary is the name of the file that our list is derived from, if there is one.
	Primary string
	// Problem says why the runtime does not execute our plugin for every pod, or may
	// soon cease to; nil: it does.
	Problem error
}

var errNotYet = errors.New("the plugin is not installed yet: the agent is not ready")

// New returns the installer that c describes; nothing is written yet.
func New(c Config) (*Installer, error) {
	for name, path := range map[string]string{
		"plugin": c.Plugin, "binary directory": c.BinDir, "configuration directory": c.ConfDir, "agent's socket": c.AgentSocket,
	} {
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("cannot install the plugin: the path of the %s, %q, is not absolute", name, path)
		}
	}
	switch info, err := os.Stat(c.Plugin); {
	case err != nil:
		return nil, fmt.Errorf("cannot install the plugin: there is no binary to install: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("cannot install the plugin: %s is not a file", c.Plugin)
	case slices.Contains(c.AllowWithoutAgent, ""):
		return nil, errors.New("cannot install the plugin: one of the namespaces that start without an agent has no name")
	case c.Poll <= 0 || c.Ready == nil || c.Logger == nil:
		return nil, errors.New("cannot install the plugin: Poll, Ready and Logger are required")
	}
	entry, err := entryOf(c.AgentSocket, c.AllowWithoutAgent)
	if err != nil {
		return nil, fmt.Errorf("cannot install the plugin: %w", err)
	}
	return &Installer{
		config: c, entry: entry, hints: newHints(c.Logger, c.BinDir, c.ConfDir),
		state: State{Problem: errNotYet},
	}, nil
}

// Run installs the plugin and keeps it installed until ctx is done; it leaves it there.
func (i *Installer) Run(ctx context.Context) error {
	defer i.hints.close()
	poll := time.NewTicker(i.config.Poll)
	defer poll.Stop()
	i.clean()
	for ready := i.config.Ready; ; {
		i.hints.renew()
		i.look()
		select {
		case <-ctx.Done():
			return nil
		case <-ready:
			ready = nil
		case <-poll.C:
		case <-i.hints.woken:
			i.hints.settle(ctx)
		}
	}
}

// State returns what the last look found.
func (i *Installer) State() State {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.state
}

// Remove takes our list away, and Run does not put it there again. The binary stays: a
// runtime may execute what the list named at a pod's ADD (CRI-O does), and a pod whose
// DEL finds no binary cannot be deleted.
func (i *Installer) Remove(context.Context) error {
	i.working.Lock()
	defer i.working.Unlock()
	i.removed = true
	err := i.remove()
	if err != nil {
		err = fmt.Errorf("cannot remove %s: %w; pods may not be able to start until it is removed", i.list(), err)
	}
	i.set(State{Problem: errors.Join(errors.New("the plugin was removed from the runtime's configuration on purpose"), err)})
	return err
}

func (i *Installer) remove() error {
	if err := os.Remove(i.list()); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return syncDir(i.config.ConfDir)
}

// look compares what is there with what should be, and puts it right. The list comes
// last: one that names a binary that is not there fails every pod.
func (i *Installer) look() {
	i.working.Lock()
	defer i.working.Unlock()
	if i.removed {
		return
	}
	var state State
	if state.Problem = i.installBinary(); state.Problem == nil {
		state.Primary, state.Problem = i.installList()
	}
	i.set(state)
}

// set takes note of a state, and logs what is new in it.
func (i *Installer) set(state State) {
	i.mu.Lock()
	before := i.state
	i.state = state
	i.mu.Unlock()
	switch {
	case text(before.Problem) == text(state.Problem):
	case state.Problem == nil:
		i.config.Logger.Info("the plugin is installed", "list", i.list(), "primary", state.Primary)
	default:
		i.config.Logger.Warn("the plugin is not installed as it should be", "problem", state.Problem)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func (i *Installer) installBinary() error {
	path := filepath.Join(i.config.BinDir, PluginName)
	wrote, err := installFile(i.config.Plugin, i.config.BinDir, PluginName)
	if err != nil {
		return fmt.Errorf("cannot put the plugin's binary at %s: %w", path, remedy(err, i.config.BinDir, "cniBinDir"))
	}
	if wrote {
		i.config.Logger.Info("plugin binary written", "path", path)
	}
	return nil
}

// installList derives our list, and writes it if it is not what is there.
func (i *Installer) installList() (primaryName string, err error) {
	found, err := survey(i.config.ConfDir)
	if err != nil {
		return found.primary, remedy(err, i.config.ConfDir, "cniConfDir")
	}
	content, err := found.derive(i.entry)
	if err != nil {
		return found.primary, err
	}
	select {
	case <-i.config.Ready:
	default:
		return found.primary, errNotYet
	}
	if !holds(i.list(), content) {
		if err := replace(i.config.ConfDir, ListName, listMode, bytes.NewReader(content)); err != nil {
			return found.primary, fmt.Errorf("cannot write %s: %w", i.list(), remedy(err, i.config.ConfDir, "cniConfDir"))
		}
		i.config.Logger.Info("network configuration written", "path", i.list(), "primary", found.primary)
	}
	if found.before != "" {
		return found.primary, fmt.Errorf("%s sorts before %s, and the runtime uses the first: rename it so that it sorts after",
			filepath.Join(i.config.ConfDir, found.before), ListName)
	}
	return found.primary, nil
}

func (i *Installer) list() string { return filepath.Join(i.config.ConfDir, ListName) }

// clean removes what an agent that was killed has left. What cannot be removed is said
// when its place is needed.
func (i *Installer) clean() {
	i.working.Lock()
	defer i.working.Unlock()
	_ = os.Remove(filepath.Join(i.config.BinDir, tempName(PluginName)))
	_ = os.Remove(filepath.Join(i.config.ConfDir, tempName(ListName)))
}

// remedy adds what to do about errors of a directory.
func remedy(err error, dir, field string) error {
	if _, statErr := os.Stat(dir); errors.Is(statErr, fs.ErrNotExist) {
		return fmt.Errorf("there is no directory %s: give the runtime's as install.%s, and mount it there", dir, field)
	}
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
		return fmt.Errorf("%w: mount %s so that the agent may write there, and see that no security module (SELinux, AppArmor) forbids it", err, dir)
	}
	return err
}
