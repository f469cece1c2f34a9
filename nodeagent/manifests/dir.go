// Package manifests is a source of pods for a node without Kubernetes: a watched
// directory of Pod and Namespace manifests, all of which are this node's.
//
// Files end in .yaml, .yml or .json and hold one or more documents; they are read
// strictly, since a label that is spelt wrong would silently leave a pod in the
// clear. Notifications only wake the reader: the whole directory is read again at
// each, and every [Config.Poll] without one.
//
// # Failures it survives
//
//   - A file that does not parse, or that is empty because it is just being written:
//     its last good version stays in force, and the problem is shown until it is
//     mended. (A file cut off between two labels cannot be told from a whole one:
//     replace files by a rename.)
//   - A directory that is missing or cannot be read: what was known stays known.
//   - No inotify instance left: the directory is polled.
//   - One pod in two files: the file that sorts first has it, the other is refused
//     and named.
package manifests

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
)

// Config is what a Dir needs.
type Config struct {
	Path string
	Poll time.Duration // the safety net below notifications
	// Changed is called when what the directory says is different; it must not block.
	Changed func()
	Logger  *slog.Logger
}

// A Dir knows the pods and namespaces of a directory of manifests.
type Dir struct {
	config Config
	files  map[string]file // by name; owned by Run

	mu      sync.Mutex
	current content
	synced  bool
}

// file is one file's last good version, and what is wrong with its present one.
type file struct {
	sum     [sha256.Size]byte
	good    documents
	problem string
}

// content is what the directory says.
type content struct {
	pods       map[key]intent.Pod
	namespaces map[string]intent.Namespace
	problems   []string
}

type key struct{ namespace, name string }

// New validates the configuration.
func New(c Config) (*Dir, error) {
	if !filepath.IsAbs(c.Path) {
		return nil, fmt.Errorf("cannot read pods from %q: not an absolute path", c.Path)
	}
	info, err := os.Stat(c.Path)
	if err != nil {
		return nil, fmt.Errorf("cannot read pods from a directory: %w", err)
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("cannot read pods from %s: not a directory", c.Path)
	}
	if c.Poll <= 0 || c.Changed == nil || c.Logger == nil {
		return nil, errors.New("cannot read pods from a directory: poll interval, callback and logger are needed")
	}
	return &Dir{config: c, files: map[string]file{}}, nil
}

// Run reads the directory until ctx is done.
func (d *Dir) Run(ctx context.Context) error {
	events, stop := d.watch()
	defer stop()
	poll := time.NewTicker(d.config.Poll)
	defer poll.Stop()
	for {
		d.read()
		select {
		case <-ctx.Done():
			return nil
		case <-poll.C:
		case <-events:
		}
	}
}

// Synced reports whether the directory has been read.
func (d *Dir) Synced() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.synced
}

// Lookup returns a pod and its namespace by name. A namespace without a manifest
// has no labels.
func (d *Dir) Lookup(namespace, name string) (intent.Pod, intent.Namespace, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	pod, ok := d.current.pods[key{namespace, name}]
	ns, known := d.current.namespaces[namespace]
	if !known {
		ns = intent.Namespace{Name: namespace}
	}
	return pod, ns, ok
}

// Pods returns all pods, sorted by namespace and name.
func (d *Dir) Pods() []intent.Pod {
	d.mu.Lock()
	defer d.mu.Unlock()
	pods := make([]intent.Pod, 0, len(d.current.pods))
	for _, pod := range d.current.pods {
		pods = append(pods, pod)
	}
	slices.SortFunc(pods, func(a, b intent.Pod) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return pods
}

// Problems returns what is wrong with the directory now, a line each.
func (d *Dir) Problems() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.current.problems)
}

// watch starts notifications; without them Run still polls.
func (d *Dir) watch() (<-chan fsnotify.Event, func()) {
	w, err := fsnotify.NewWatcher()
	if err == nil {
		if err = w.Add(d.config.Path); err == nil {
			return w.Events, func() { _ = w.Close() }
		}
		_ = w.Close()
	}
	d.config.Logger.Warn("cannot watch the directory of manifests, polling it instead",
		"path", d.config.Path, "every", d.config.Poll, "error", err)
	return nil, func() {}
}

// read brings current up to date and says so if it is different.
func (d *Dir) read() {
	next, err := d.load()
	if err != nil {
		next = d.kept(err)
	}
	d.mu.Lock()
	changed := !d.synced || !reflect.DeepEqual(d.current, next)
	fresh := newProblems(d.current.problems, next.problems)
	d.current = next
	d.synced = d.synced || err == nil
	d.mu.Unlock()
	for _, problem := range fresh {
		d.config.Logger.Warn("a manifest is not used", "problem", problem)
	}
	if changed {
		d.config.Changed()
	}
}

// kept is what was known before, with the reason why nothing newer is.
func (d *Dir) kept(err error) content {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := d.current
	c.problems = []string{fmt.Sprintf("cannot read %s: %v; what was known before stays in force", d.config.Path, err)}
	return c
}

func newProblems(before, now []string) []string {
	return slices.DeleteFunc(slices.Clone(now), func(p string) bool { return slices.Contains(before, p) })
}

// load reads all files.
func (d *Dir) load() (content, error) {
	entries, err := os.ReadDir(d.config.Path)
	if err != nil {
		return content{}, errors.Unwrap(err)
	}
	files := map[string]file{}
	c := content{pods: map[key]intent.Pod{}, namespaces: map[string]intent.Namespace{}}
	for _, entry := range entries { // sorted by name
		if entry.IsDir() || !isManifest(entry.Name()) {
			continue
		}
		f, present := d.loadFile(entry.Name())
		if !present {
			continue
		}
		files[entry.Name()] = f
		if f.problem != "" {
			c.problems = append(c.problems, f.problem)
		}
		c.merge(entry.Name(), f.good)
	}
	d.files = files
	return c, nil
}

// loadFile reads one file, if it is still there. Its last good version stays when
// the present one is not good.
func (d *Dir) loadFile(name string) (file, bool) {
	old := d.files[name]
	text, err := os.ReadFile(filepath.Join(d.config.Path, name))
	if errors.Is(err, os.ErrNotExist) {
		return file{}, false
	}
	if err != nil {
		return file{sum: old.sum, good: old.good, problem: fmt.Sprintf("%s: cannot read it: %v", name, err)}, true
	}
	sum := sha256.Sum256(text)
	if sum == old.sum {
		return old, true
	}
	docs, err := parse(text)
	if err != nil {
		problem := fmt.Sprintf("%s: %v", name, err)
		if !old.good.empty() {
			problem += "; its last good version stays in force"
		}
		return file{sum: sum, good: old.good, problem: problem}, true
	}
	return file{sum: sum, good: docs}, true
}

func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// merge adds one file's documents; what another file has already is refused.
func (c *content) merge(name string, docs documents) {
	for _, pod := range docs.pods {
		k := key{pod.Namespace, pod.Name}
		if _, taken := c.pods[k]; taken {
			c.problems = append(c.problems, fmt.Sprintf("%s: pod %s/%s is in an earlier file already; that one is used", name, k.namespace, k.name))
			continue
		}
		c.pods[k] = pod
	}
	for _, ns := range docs.namespaces {
		if _, taken := c.namespaces[ns.Name]; taken {
			c.problems = append(c.problems, fmt.Sprintf("%s: namespace %s is in an earlier file already; that one is used", name, ns.Name))
			continue
		}
		c.namespaces[ns.Name] = ns
	}
}
