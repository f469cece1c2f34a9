package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

const bridgeList = `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}]}`

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// A place is a node's directories, and an installer for them.
type place struct {
	*Installer
	t         *testing.T
	bin, conf string
	ready     chan struct{}
	log       *netlab.Log
}

func newPlace(t *testing.T) *place {
	t.Helper()
	dir := t.TempDir()
	p := &place{t: t, bin: filepath.Join(dir, "bin"), conf: filepath.Join(dir, "net.d"), ready: make(chan struct{}), log: &netlab.Log{}}
	for _, dir := range []string{p.bin, p.conf} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	plugin := filepath.Join(dir, "plugin")
	write(t, plugin, "the plugin")
	var err error
	if p.Installer, err = New(Config{
		Plugin: plugin, BinDir: p.bin, ConfDir: p.conf, Mode: Owned, AgentSocket: "/run/fairlead/agent.sock", AllowWithoutAgent: []string{"kube-system"},
		Ready: p.ready, Poll: time.Hour, Logger: slog.New(slog.NewTextHandler(p.log, nil)),
	}); err != nil {
		t.Fatal(err)
	}
	return p
}

// run runs the installer until the end of the test, or until stop is called.
func (p *place) run() (stop func()) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	var stopped atomic.Bool
	stop = func() {
		cancel()
		if !stopped.Swap(true) {
			if err := <-done; err != nil {
				p.t.Error(err)
			}
		}
	}
	p.t.Cleanup(stop)
	return stop
}

func (p *place) primary(name, content string) {
	p.t.Helper()
	write(p.t, filepath.Join(p.conf, name), content)
}

// tree shows the node's directories, and the installer's state.
func (p *place) tree() string {
	var out strings.Builder
	for _, dir := range []string{p.bin, p.conf} {
		if err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || path == dir {
				return err
			}
			name, _ := filepath.Rel(dir, path) // it is below it
			info, err := entry.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil // since it was listed
			}
			content, _ := os.ReadFile(path) // of a directory there is none
			fmt.Fprintln(&out, strings.TrimSpace(fmt.Sprintf("%s %s %s", info.Mode(), name, strings.Join(strings.Fields(string(content)), " "))))
			return err
		}); err != nil {
			fmt.Fprintln(&out, err)
		}
	}
	state := p.State()
	fmt.Fprintf(&out, "primary %q, problem %v\n", state.Primary, state.Problem)
	return strings.ReplaceAll(out.String(), filepath.Dir(p.bin), "")
}

func (p *place) becomes(want string) {
	p.t.Helper()
	netlab.Eventually(p.t, func() error {
		if diff := cmp.Diff(want, p.tree()); diff != "" {
			return errors.New("(-want +got):\n" + diff)
		}
		return nil
	})
}

const (
	binaryThere = "-rwxr-xr-x fairlead-cni the plugin\n"
	ourEntry    = `{"type":"fairlead-cni","agentSocket":"/run/fairlead/agent.sock","allowWithoutAgent":["kube-system"]}`
	listThere   = `-rw------- 02-fairlead.conflist {"cniVersion": "1.0.0", "name": "net", "plugins": [ {"type": "bridge"}, ` + ourEntry + " ]}\n"
	bridgeThere = "-rw-r--r-- 10-net.conflist " + bridgeList + "\n"
	installed   = binaryThere + listThere + bridgeThere + "primary \"10-net.conflist\", problem <nil>\n"
)

// The binary comes at once, the list when the agent is ready; both stay.
func TestInstall(t *testing.T) {
	defer goleak.VerifyNone(t)
	p := newPlace(t)
	p.primary("10-net.conflist", bridgeList)
	stop := p.run()
	p.becomes(binaryThere + bridgeThere + "primary \"10-net.conflist\", problem the plugin is not installed yet: the agent is not ready\n")
	close(p.ready)
	p.becomes(installed)
	stop()
	p.becomes(installed)
	if log := p.log.String(); strings.Count(log, "\n") != 3 || strings.Contains(log, "kube-system") {
		t.Errorf("the log is not three lines without contents:\n%s", log)
	}
}

// What is removed or changed comes back, by notification alone.
func TestRepair(t *testing.T) {
	for name, harm := range map[string]func(binary, list string) error{
		"binary removed":   func(binary, _ string) error { return os.Remove(binary) },
		"binary changed":   func(binary, _ string) error { return os.WriteFile(binary, []byte("the plugiN"), 0o755) },
		"binary cut":       func(binary, _ string) error { return os.Truncate(binary, 3) },
		"binary's mode":    func(binary, _ string) error { return os.Chmod(binary, 0o644) },
		"binary is a link": func(binary, _ string) error { return errors.Join(os.Remove(binary), os.Symlink("/bin/true", binary)) },
		"list removed":     func(_, list string) error { return os.Remove(list) },
		"list changed":     func(_, list string) error { return os.WriteFile(list, []byte("{}"), 0o600) },
		"list cut":         func(_, list string) error { return os.Truncate(list, 30) },
		"list's mode":      func(_, list string) error { return os.Chmod(list, 0o644) },
		"list renamed":     func(_, list string) error { return os.Rename(list, filepath.Join(filepath.Dir(list), "../list.bak")) },
		"list is a link":   func(_, list string) error { return errors.Join(os.Remove(list), os.Symlink("10-net.conflist", list)) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			p.primary("10-net.conflist", bridgeList)
			close(p.ready)
			p.run()
			p.becomes(installed)
			if err := harm(filepath.Join(p.bin, PluginName), filepath.Join(p.conf, ListName)); err != nil {
				t.Fatal(err)
			}
			p.becomes(installed)
		})
	}
}

// Nothing is written when all is as it should be.
func TestNothingToDo(t *testing.T) {
	p := newPlace(t)
	p.primary("10-net.conflist", bridgeList)
	close(p.ready)
	p.look(t.Context())
	p.becomes(installed)
	before := p.inodes()
	p.look(t.Context())
	if diff := cmp.Diff(before, p.inodes()); diff != "" {
		t.Errorf("files were written again (-before +after):\n%s", diff)
	}
}

// inodes shows which files there are, and when each changed last.
func (p *place) inodes() (all []string) {
	p.t.Helper()
	for _, dir := range []string{p.bin, p.conf} {
		if err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			var stat unix.Stat_t
			if err = errors.Join(err, unix.Stat(path, &stat)); err == nil {
				all = append(all, fmt.Sprintf("%s inode %d, changed %v", path, stat.Ino, stat.Ctim))
			}
			return err
		}); err != nil {
			p.t.Fatal(err)
		}
	}
	return all
}

// The primary changes in each of the ways that owners have.
func TestPrimaryChanges(t *testing.T) {
	p := newPlace(t)
	close(p.ready)
	p.run()
	p.becomes(binaryThere + "primary \"\", problem there is no primary network configuration in /net.d, waiting for it: install the node's CNI plugin " +
		"(Calico, Cilium, kindnet, ...), or give the directory that the runtime uses as install.cniConfDir (in the chart cniConfDir, or global.platform)\n")
	primary := filepath.Join(p.conf, "10-net.conflist")

	t.Log("written in place")
	p.primary("10-net.conflist", bridgeList)
	p.becomes(installed)

	other := strings.Replace(bridgeList, "bridge", "ptp", 1)
	all := strings.ReplaceAll(installed, `"bridge"`, `"ptp"`)
	t.Log("renamed over")
	p.primary("new", other)
	if err := os.Rename(filepath.Join(p.conf, "new"), primary); err != nil {
		t.Fatal(err)
	}
	p.becomes(all)

	t.Log("truncated: ours stays")
	if err := os.Truncate(primary, 20); err != nil {
		t.Fatal(err)
	}
	ours := strings.Replace(listThere, "bridge", "ptp", 1)
	p.becomes(binaryThere + ours + "-rw-r--r-- 10-net.conflist " + other[:20] + "\nprimary \"10-net.conflist\", problem the primary network configuration " +
		"/net.d/10-net.conflist is broken, waiting for its owner to write it again: not a JSON object: unexpected end of JSON input\n")

	t.Log("renamed out of the way: ours stays")
	if err := os.Rename(primary, primary+".bak"); err != nil {
		t.Fatal(err)
	}
	netlab.Eventually(t, func() error {
		if tree := p.tree(); !strings.Contains(tree, ours) || !strings.Contains(tree, "there is no primary") {
			return errors.New(tree)
		}
		return nil
	})
	if err := os.Remove(primary + ".bak"); err != nil {
		t.Fatal(err)
	}

	t.Log("another one, as one plugin")
	p.primary("07-one.conf", `{"cniVersion": "0.4.0", "name": "one", "type": "ptp"}`)
	p.becomes(binaryThere + `-rw------- 02-fairlead.conflist { "cniVersion": "0.4.0", "name": "one", "plugins": [ {"cniVersion": "0.4.0", "name": "one", "type": "ptp"}, ` +
		ourEntry + " ] }\n-rw-r--r-- 07-one.conf {\"cniVersion\": \"0.4.0\", \"name\": \"one\", \"type\": \"ptp\"}\nprimary \"07-one.conf\", problem <nil>\n")
}

// A file that sorts before ours is the one that the runtime uses.
func TestBefore(t *testing.T) {
	p := newPlace(t)
	p.primary("01-net.conflist", bridgeList)
	close(p.ready)
	p.look(t.Context())
	p.becomes(binaryThere + strings.Replace(bridgeThere, "10-net", "01-net", 1) + listThere +
		"primary \"01-net.conflist\", problem /net.d/01-net.conflist sorts before 02-fairlead.conflist, and the runtime uses the first: rename it so that it sorts after\n")
}

func TestRemove(t *testing.T) {
	p := newPlace(t)
	p.primary("10-net.conflist", bridgeList)
	close(p.ready)
	p.run()
	p.becomes(installed)
	for range 2 { // removing nothing succeeds
		if err := p.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	p.primary("10-net.conflist", bridgeList+" ")
	p.look(t.Context())
	p.becomes(binaryThere + bridgeThere + "primary \"\", problem the plugin was removed from the runtime's configuration on purpose\n")
}

func TestNew(t *testing.T) {
	good := newPlace(t).config
	for want, spoil := range map[string]func(*Config){
		`the path of the plugin, "plugin", is not absolute`:     func(c *Config) { c.Plugin = "plugin" },
		`the path of the binary directory, "", is not absolute`: func(c *Config) { c.BinDir = "" },
		`configuration directory, "net.d", is not absolute`:     func(c *Config) { c.ConfDir = "net.d" },
		`the path of the agent's socket, "a", is not absolute`:  func(c *Config) { c.AgentSocket = "a" },
		"there is no binary to install: stat /nowhere":          func(c *Config) { c.Plugin = "/nowhere" },
		"/ is not a file": func(c *Config) { c.Plugin = "/" },
		"one of the namespaces that start without an agent has no na": func(c *Config) { c.AllowWithoutAgent = []string{"a", ""} },
		`the mode "own" is neither owned, chained nor dropin`:         func(c *Config) { c.Mode = "own" },
		"Poll, Ready and Logger are required":                         func(c *Config) { c.Ready = nil },
	} {
		c := good
		spoil(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to say %q", err, want)
		}
	}
}

func TestMissingDirectories(t *testing.T) {
	p := newPlace(t)
	close(p.ready)
	if err := errors.Join(os.Remove(p.bin), os.Remove(p.conf)); err != nil {
		t.Fatal(err)
	}
	p.look(t.Context())
	says := func(want string) {
		t.Helper()
		if got := text(p.State().Problem); !strings.Contains(got, want) {
			t.Errorf("the problem is %q, want it to say %q", got, want)
		}
	}
	says("there is no directory " + p.bin + ": give the runtime's as install.cniBinDir, and mount it there")
	if err := os.Mkdir(p.bin, 0o755); err != nil {
		t.Fatal(err)
	}
	p.look(t.Context())
	says("there is no directory " + p.conf + ": give the runtime's as install.cniConfDir, and mount it there")
}

// A configuration that is a pipe would have its reader wait for ever.
func TestPipe(t *testing.T) {
	p := newPlace(t)
	if err := unix.Mkfifo(filepath.Join(p.conf, "10-a.conf"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.look(t.Context())
	if got := text(p.State().Problem); !strings.HasSuffix(got, "/10-a.conf is not a file") {
		t.Errorf("got %s", got)
	}
}
