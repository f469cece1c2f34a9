package netlab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// NS is a network namespace with lo up and, after Create, nothing else in it.
type NS struct {
	Handle *netns.Handle
	Name   string
	Path   string // its bind mount, fit for CNI_NETNS
}

// Create makes a namespace and mounts it at /run/netns/name. The caller closes it.
func Create(name string) (*NS, error) {
	h, err := netns.New()
	if err != nil {
		return nil, err
	}
	n := &NS{Handle: h, Name: name, Path: filepath.Join(netnsDir, name)}
	if err := n.set(); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot create namespace %s: %w", name, err), n.Close())
	}
	return n, nil
}

func (n *NS) set() error {
	file, err := os.OpenFile(n.Path, os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		n.Path = "" // somebody else's, or none: not to be removed by Close
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	if err := n.Handle.File(func(f *os.File) error {
		return unix.Mount(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), n.Path, "", unix.MS_BIND, "")
	}); err != nil {
		return fmt.Errorf("cannot mount it at %s: %w", n.Path, err)
	}
	// No duplicate address detection: an address can be used as soon as it is there.
	for _, scope := range []string{"all", "default"} {
		err := n.Sysctl("net/ipv6/conf/"+scope+"/accept_dad", "0")
		if err != nil && !errors.Is(err, os.ErrNotExist) { // as where there is no IPv6
			return err
		}
	}
	return n.withRTNL(func(rtnl *netlink.Handle) error { return setUp(rtnl, "lo") })
}

// Unmount undoes the mount at Path and leaves the plain file it was mounted on
// there, which is what the path of a namespace that is gone looks like.
func (n *NS) Unmount() error {
	if err := unix.Unmount(n.Path, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("cannot unmount %s: %w", n.Path, err)
	}
	return nil
}

// Close gives the namespace up and removes its path. It lives on while anything
// else, such as a socket, holds it.
func (n *NS) Close() error {
	err := n.Handle.Close()
	if n.Path == "" {
		return err
	}
	if gone := n.Unmount(); gone != nil && !errors.Is(gone, unix.EINVAL) { // EINVAL: not mounted any more
		err = errors.Join(err, gone)
	}
	return errors.Join(err, os.Remove(n.Path))
}

// Sysctl writes a setting of the namespace, as net/ipv6/conf/all/disable_ipv6.
func (n *NS) Sysctl(name, value string) error {
	return n.Handle.Do(func() error {
		return os.WriteFile(filepath.Join("/proc/sys", name), []byte(value), 0)
	})
}

// Run executes a program inside the namespace and returns what it printed. The
// program has the mounts of the caller.
func (n *NS) Run(name string, args ...string) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := n.Handle.Do(cmd.Start)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%s in %s: %w: %s", cmd, n.Name, err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// NewNS is Create for a test, at whose end the namespace is closed.
func NewNS(t testing.TB, name string) *NS {
	t.Helper()
	n, err := Create(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// Do runs fn on a thread inside the namespace, under the rules of netns.Handle.Do.
func (n *NS) Do(t testing.TB, fn func()) {
	t.Helper()
	if err := n.Handle.Do(func() error { fn(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// NftList returns the namespace's ruleset as the nft command prints it.
func NftList(t testing.TB, n *NS) string {
	t.Helper()
	return MustRun(t, n, "nft", "list", "ruleset")
}

// MustRun is Run for a test.
func MustRun(t testing.TB, n *NS, name string, args ...string) string {
	t.Helper()
	out, err := n.Run(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
