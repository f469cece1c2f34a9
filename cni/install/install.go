package install

import (
	"bytes"
	"cmp"
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

	Mode Mode // how the runtime is made to execute it

	// RuntimeConfigs are usual files of the runtime's own configuration, and directories of
	// them, by which it is checked what the runtime uses. What is not there or cannot be
	// read is passed over. A runtime that was told to read others is checked by those instead.
	// If this is empty nothing is checked, not even by those.
	RuntimeConfigs []string
	// Proc is where the runtime's process is seen, which says what it was told to read, and
	// whether it knows mode dropin.
	Proc string

	// AgentSocket and AllowWithoutAgent stand in our entry of the list; the socket's
	// path is the host's.
	AgentSocket       string
	AllowWithoutAgent []string
	// Status is what becomes of STATUS; left empty, it is StatusAuto. OrphanAfter is how
	// long after a boot it keeps a node from being ready on which no agent has started; 0 is
	// what the plugin has.
	Status      Status
	OrphanAfter time.Duration

	// Hold is called before the runtime's configuration is changed: containerd makes
	// everybody wait behind a change that waits for an ADD. It returns when the change
	// disturbs nobody, or when its context ends; until resume is called, new ADDs are not
	// kept waiting. nil: nobody waits. It is not called while the runtime does not execute
	// our plugin.
	Hold func(context.Context) (resume func())

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

	working  sync.Mutex // held while files are looked at or changed
	leaving  bool       // ours is removed on purpose, and not put there again
	unnamed  bool       // and nothing of the runtime's names our plugin any more
	fight    fight
	loader   loader
	judged   verdict // the last
	programs programs

	mu    sync.Mutex
	state State
}

// State is what the last look found.
type State struct {
	// Primary is the name of the primary's file, if there is one.
	Primary string
	// File is the one by which the runtime executes our plugin.
	File string
	// Runtime is the runtime whose configuration was found, and where; empty if none was.
	Runtime string
	// Problem says why the runtime does not execute our plugin for every pod, or may
	// soon cease to; nil: it does.
	Problem error
	// NoStatus says why STATUS, asked for always, is not to be had; the plugin may be executed
	// all the same.
	NoStatus error
	// Undone is how often others have undone what was written into the runtime's
	// configuration.
	Undone int
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
	case c.Mode != Owned && c.Mode != Chained && c.Mode != DropIn:
		return nil, fmt.Errorf("cannot install the plugin: the mode %q is neither %s, %s nor %s", c.Mode, Owned, Chained, DropIn)
	case c.Status == StatusAlways && c.Mode != Owned:
		return nil, fmt.Errorf("cannot install the plugin: STATUS always needs the mode %s: with %s the list is somebody else's, and so is its version", Owned, c.Mode)
	case c.Status != "" && c.Status != StatusAuto && c.Status != StatusAlways && c.Status != StatusNever:
		return nil, fmt.Errorf("cannot install the plugin: what becomes of STATUS, %q, is neither %s, %s nor %s", c.Status, StatusAuto, StatusAlways, StatusNever)
	case c.OrphanAfter < 0:
		return nil, fmt.Errorf("cannot install the plugin: the time after which a node is an orphan, %s, is less than nothing", c.OrphanAfter)
	case c.Poll <= 0 || c.Ready == nil || c.Logger == nil:
		return nil, errors.New("cannot install the plugin: Poll, Ready and Logger are required")
	}
	entry, err := entryOf(c)
	if err != nil {
		return nil, fmt.Errorf("cannot install the plugin: %w", err)
	}
	return &Installer{
		config: c, entry: entry, hints: newHints(c.Logger), programs: programs{},
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
		i.hints.renew(i.watched())
		i.look(ctx)
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

// Present says whether the runtime has our plugin already, as an earlier agent has left it
// there, in whatever mode. It is to be asked before Run.
func (i *Installer) Present() bool {
	names, _ := configs(i.config.ConfDir) // if it cannot be read, nothing is present
	dropIns, _ := filepath.Glob(filepath.Join(i.config.ConfDir, "*", dropInName))
	return exists(i.list()) || slices.ContainsFunc(dropIns, isOurDropIn) || slices.ContainsFunc(names, func(name string) bool {
		text, err := read(filepath.Join(i.config.ConfDir, name))
		return err == nil && bytes.Contains(text, []byte(`"`+PluginName+`"`))
	})
}

// watched are the directories in which something may change.
func (i *Installer) watched() []string {
	dirs := []string{i.config.BinDir, i.config.ConfDir}
	if dir := filepath.Dir(i.State().File); i.State().File != "" && dir != i.config.ConfDir && exists(dir) {
		dirs = append(dirs, dir)
	}
	return dirs
}

// look compares what is there with what should be, and puts it right. The runtime's
// configuration comes last: one that names a binary that is not there fails every pod.
func (i *Installer) look(ctx context.Context) {
	i.working.Lock()
	defer i.working.Unlock()
	if i.leaving {
		return
	}
	v := i.judge()
	state := State{Runtime: v.runtime}
	if state.Problem = i.installBinary(); state.Problem == nil {
		state.Problem = v.harmful
	}
	var unseen error
	if i.config.Mode == DropIn {
		unseen = i.loader.passesOver(i.config.Proc)
		v.differs = errors.Join(v.differs, unseen)
	}
	if state.Problem == nil {
		// While the runtime does not see what is put there, what another mode has left is
		// all that has our plugin executed.
		state.Problem = i.configure(ctx, &state, unseen != nil)
	}
	state.Undone = i.fight.undone
	if v.differs != nil {
		state.Problem = errors.Join(v.differs, state.Problem)
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
		i.config.Logger.Info("the plugin is installed", "file", state.File, "primary", state.Primary, "runtime", cmp.Or(state.Runtime, "unknown"))
	default:
		i.config.Logger.Warn("the plugin is not installed as it should be", "problem", state.Problem)
	}
	if state.NoStatus != nil && text(before.NoStatus) != text(state.NoStatus) {
		i.config.Logger.Warn("STATUS may not keep pods from a node without its agent", "problem", state.NoStatus)
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

// configure has the runtime execute our plugin, and nothing else of ours, unless what
// another mode has left is to stay.
func (i *Installer) configure(ctx context.Context, state *State, keep bool) error {
	p, err := i.plan()
	if state.Primary, state.NoStatus = p.primary, p.noStatus; err != nil {
		return err
	}
	state.File = p.path
	select {
	case <-i.config.Ready:
	default:
		return errNotYet
	}
	if !p.holds() {
		i.fight.missed(p, time.Now())
		if !i.fight.may(time.Now()) {
			return i.fought(p)
		}
		if p.present && p.before == "" {
			defer i.hold(ctx)()
			p, err = i.plan() // time has passed
			if state.NoStatus = p.noStatus; err != nil {
				return err
			}
		}
		if err := i.put(p); err != nil {
			return fmt.Errorf("cannot write %s: %w", p.path, remedy(err, i.config.ConfDir, "cniConfDir"))
		}
	}
	i.fight.stands(p, time.Now())
	if !keep {
		if err := i.tidy(p); err != nil {
			return fmt.Errorf("cannot take away what another mode has left: %w", remedy(err, i.config.ConfDir, "cniConfDir"))
		}
	}
	if p.before != "" {
		return fmt.Errorf("%s sorts before %s, and the runtime uses the first: rename it so that it sorts after",
			filepath.Join(i.config.ConfDir, p.before), p.first)
	}
	return i.fought(p)
}

// put writes what has been planned, if it is not there.
func (i *Installer) put(p plan) error {
	if p.holds() {
		return nil
	}
	dir, name := filepath.Split(p.path)
	i.fight.wrote = time.Now()
	var err error
	switch i.config.Mode {
	case Owned:
		err = replace(dir, name, p.mode, bytes.NewReader(p.content))
	case Chained:
		err = edit(dir, name, p.content, p.made)
	case DropIn:
		err = i.reloading(func() error {
			if err := os.Mkdir(dir, dropInDirMode); err != nil && !errors.Is(err, fs.ErrExist) {
				return err
			}
			return replace(dir, name, p.mode, bytes.NewReader(p.content))
		})
	}
	if err == nil {
		i.config.Logger.Info("network configuration written", "path", p.path, "primary", p.primary)
	}
	return err
}

// tidy takes away what another mode has left, which would have the plugin executed
// twice.
func (i *Installer) tidy(p plan) error {
	err := i.sweep(p.path)
	if i.config.Mode == DropIn {
		err = errors.Join(err, i.unchain())
	}
	return err
}

// maxHold bounds how long a change waits for ADDs.
const maxHold = 10 * time.Second

func (i *Installer) hold(ctx context.Context) (resume func()) {
	if i.config.Hold == nil {
		return func() {}
	}
	ctx, cancel := context.WithTimeout(ctx, maxHold)
	defer cancel()
	return i.config.Hold(ctx)
}

func (i *Installer) list() string { return filepath.Join(i.config.ConfDir, ListName) }

// clean removes what an agent that was killed has left. What cannot be removed is said
// when its place is needed.
func (i *Installer) clean() {
	i.working.Lock()
	defer i.working.Unlock()
	_ = i.removeTemps()
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
