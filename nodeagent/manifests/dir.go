package manifests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
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

	// Run's own.
	reader    reader
	watcher   *watcher
	labels    map[string]intent.Namespace // by name: the last manifest that each had
	assembled bool                        // current is what the reader's files say

	mu      sync.Mutex
	current content
	synced  bool
}

// content is what the directory says.
type content struct {
	pods       map[key]intent.Pod
	namespaces map[string]intent.Namespace
	files      map[string]string // that have them: by what it is
	unread     []string          // files without a good version: what is absent may be in them
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
	return &Dir{
		config:  c,
		reader:  reader{path: c.Path, now: time.Now},
		watcher: newWatcher(c.Path, c.Poll, c.Logger),
		labels:  map[string]intent.Namespace{},
	}, nil
}

// Run reads the directory until ctx is done.
func (d *Dir) Run(ctx context.Context) error {
	poll := time.NewTicker(d.config.Poll)
	defer poll.Stop()
	defer d.watcher.close()
	for h, more := (hint{poll: true}), true; more; h, more = d.watcher.wait(ctx, poll.C) {
		if h.poll {
			d.watcher.renew()
		}
		d.read(h)
	}
	return nil
}

// Synced reports whether the directory has been read.
func (d *Dir) Synced() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.synced
}

// Lookup returns a pod and its namespace by name, and whether both are known. A
// namespace without a manifest has no labels, if that can be known.
func (d *Dir) Lookup(namespace, name string) (intent.Pod, intent.Namespace, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	pod, ok := d.current.pods[key{namespace, name}]
	ns, known := d.current.namespaces[namespace]
	if !known {
		ns = intent.Namespace{Name: namespace}
	}
	return pod, ns, ok && (known || len(d.current.unread) == 0)
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
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return pods
}

// Unread says why what Lookup does not know of a pod may be there even so: which files,
// the first few of them, have no good version. No reason: it is not there.
func (d *Dir) Unread(_, _ string) (reason status.Reason, why string) {
	const most = 3
	d.mu.Lock()
	defer d.mu.Unlock()
	names := d.current.unread
	if len(names) == 0 {
		return "", ""
	}
	text := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(", %d more", more)
	}
	return status.ManifestBroken, "what the pod's namespace asks for is not known while " + text + " cannot be read"
}

// Problems returns what is wrong with the directory now, a line each.
func (d *Dir) Problems() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.current.problems)
}

// read brings current up to date and says so if it is different.
func (d *Dir) read(h hint) {
	known := d.reader.files
	err := d.reader.scan(h)
	var next content
	switch {
	case err != nil:
		next = d.kept(err)
	case d.assembled && maps.Equal(known, d.reader.files): // as most polls find it
		return
	default:
		next = d.assemble()
	}
	d.assembled = err == nil
	d.mu.Lock()
	synced := d.synced || err == nil
	changed := synced != d.synced || !reflect.DeepEqual(d.current, next)
	fresh, over := missing(d.current.problems, next.problems), missing(next.problems, d.current.problems)
	d.current, d.synced = next, synced
	d.mu.Unlock()
	for _, problem := range fresh {
		d.config.Logger.Warn("the manifests have a problem", "problem", problem)
	}
	for _, problem := range over {
		d.config.Logger.Info("a problem of the manifests is over", "problem", problem)
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

// missing is those of all that are not in some.
func missing(some, all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(p string) bool { return slices.Contains(some, p) })
}

// assemble makes one content of all files.
func (d *Dir) assemble() content {
	c := content{pods: map[key]intent.Pod{}, namespaces: map[string]intent.Namespace{}, files: map[string]string{}}
	for _, name := range slices.Sorted(maps.Keys(d.reader.files)) {
		f := d.reader.files[name]
		if f.good == nil {
			c.unread = append(c.unread, name)
		}
		if problem := f.problem(name); problem != "" {
			c.problems = append(c.problems, problem)
		}
		if f.good != nil {
			c.merge(name, f.good)
		}
	}
	maps.Copy(d.labels, c.namespaces)
	c.problems = append(c.problems, c.orphans(d.labels)...)
	c.namespaces = maps.Clone(d.labels)
	return c
}

// merge adds one file's documents; what is there already is refused.
func (c *content) merge(name string, docs *documents) {
	for _, pod := range docs.pods {
		if c.take("pod "+pod.Namespace+"/"+pod.Name, name) {
			c.pods[key{pod.Namespace, pod.Name}] = pod
		}
	}
	for _, ns := range docs.namespaces {
		if c.take("namespace "+ns.Name, name) {
			c.namespaces[ns.Name] = ns
		}
	}
}

// take reports whether what a file holds is the first of its name.
func (c *content) take(what, file string) bool {
	switch first, taken := c.files[what]; {
	case !taken:
		c.files[what] = file
		return true
	case first == file:
		c.problems = append(c.problems, fmt.Sprintf("%s: %s is in this file twice; the first is used", file, what))
	default:
		c.problems = append(c.problems, fmt.Sprintf("%s: %s is in %s already; that one is used", file, what, first))
	}
	return false
}

// orphans names the pods' namespaces that had a manifest and have none now.
func (c *content) orphans(labels map[string]intent.Namespace) []string {
	names := map[string]bool{}
	for k := range c.pods {
		_, had := labels[k.namespace]
		if _, has := c.namespaces[k.namespace]; had && !has {
			names[k.namespace] = true
		}
	}
	var problems []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		problems = append(problems, fmt.Sprintf("namespace %s has no manifest any more; its last labels stay in force; "+
			"write one without the label to release its pods", name))
	}
	return problems
}
