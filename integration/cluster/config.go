package cluster

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/cluster/machine"
)

// A Config says what cluster is to be started.
type Config struct {
	Nodes int // from 1 to 9; 0 is 1

	// Dir is where the cluster is kept while it runs; by default DefaultDir.
	Dir string

	// Source is the directory of this package's sources, from which programs are built;
	// by default the working directory, which is right for this module's tests.
	Source string

	// Out is told what happens, for people; nil: nobody is.
	Out io.Writer
}

const maxNodes = 9

// DefaultDir is where the one cluster for playing is kept.
func DefaultDir() (string, error) {
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("cannot tell where to keep the cluster: %w", err)
		}
		state = filepath.Join(home, ".local/state")
	}
	return filepath.Join(state, "fairlead/cluster"), nil
}

// cacheDir is where programs are kept that take long to build.
func cacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("cannot tell where to keep the built programs: %w", err)
	}
	return filepath.Join(dir, "fairlead/cluster"), nil
}

// complete fills in the defaults.
func (c *Config) complete() error {
	if c.Nodes == 0 {
		c.Nodes = 1
	}
	if c.Nodes < 0 || c.Nodes > maxNodes {
		return fmt.Errorf("cannot start %d nodes: between 1 and %d are possible", c.Nodes, maxNodes)
	}
	if c.Dir == "" {
		dir, err := DefaultDir()
		if err != nil {
			return err
		}
		c.Dir = dir
	}
	if c.Source == "" {
		c.Source = "."
	}
	if c.Out == nil {
		c.Out = io.Discard
	}
	for _, dir := range []*string{&c.Dir, &c.Source} {
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return err
		}
		*dir = abs
	}
	return nil
}

// needed are the commands that a cluster uses, with the Debian package of each.
var needed = []struct{ command, debian, why string }{
	{"runc", "runc", "containerd runs containers with it"},
	{"nft", "nftables", "kube-proxy writes its rules with it"},
	{"iptables", "iptables", "the portmap plugin writes its rules with it"},
	{"conntrack", "conntrack", "kube-proxy cleans up connections with it"},
	{"nsenter", "util-linux", "commands are run in nodes with it"},
	{"unshare", "util-linux", "nodes get their control group namespace with it"},
	{"mount", "mount", "the kubelet mounts volumes with it"},
}

// check looks for what would make a start fail later, and less clearly.
func (c *Config) check() error {
	if err := checkRoot(); err != nil {
		return err
	}
	for _, n := range needed {
		if _, err := exec.LookPath(n.command); err != nil {
			return fmt.Errorf("cannot start a cluster without %s (%s); remedy: apt-get install %s", n.command, n.why, n.debian)
		}
	}
	if err := c.checkSockets(); err != nil {
		return err
	}
	cache, err := cacheDir()
	if err != nil {
		return err
	}
	for _, dir := range []string{c.Dir, cache} {
		if err := seenInside(dir); err != nil {
			return err
		}
	}
	return nil
}

func checkRoot() error {
	if os.Geteuid() != 0 {
		return errors.New("cannot make a cluster's namespaces: not root; remedy: run it as root, or with sudo")
	}
	return nil
}

func (c *Config) checkSockets() error {
	if socket := filepath.Join(c.Dir, nodesDir, "n1", socketName); len(socket) >= len(unix.RawSockaddrUnix{}.Path) {
		return fmt.Errorf("cannot keep a cluster in %s: its sockets' names get too long; remedy: choose a shorter directory", c.Dir)
	}
	return nil
}

// seenInside says whether a directory is the same one inside a node.
func seenInside(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot keep anything in %s: %w", dir, err)
	}
	path, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return err
	}
	const remedy = "; remedy: set XDG_STATE_HOME and XDG_CACHE_HOME to directories elsewhere"
	for _, own := range machine.OwnDirs {
		if strings.HasPrefix(path+"/", own+"/") {
			return fmt.Errorf("cannot keep anything in %s: nodes have a %s of their own"+remedy, path, own)
		}
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(path, &fs); err != nil {
		return err
	}
	if fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return fmt.Errorf("cannot keep anything in %s: it is on an overlay file system, which containers' file systems cannot stand on"+remedy, path)
	}
	return nil
}

// groupName is the name of the control group of the cluster in a directory.
func groupName(dir string) string {
	return fmt.Sprintf("fairlead-%s-%.4x", filepath.Base(dir), sha256.Sum256([]byte(dir)))
}
