package install

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// blindEnv has this program run TestPoll where the kernel gives it no notifications.
const blindEnv = "FAIRLEAD_INSTALL_BLIND"

// Where all of the kernel's inotify instances are taken, the next poll sees what
// changed, and a directory that was exchanged too.
func TestPoll(t *testing.T) {
	if os.Getenv(blindEnv) == "" {
		netlab.Kernel(t)
		blind := exec.Command("/proc/self/exe", "-test.run=^TestPoll$", "-test.v")
		blind.Env = append(os.Environ(), blindEnv+"=yes")
		id := []syscall.SysProcIDMap{{Size: 1}}
		blind.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: id, GidMappings: id}
		if out, err := blind.CombinedOutput(); err != nil {
			t.Errorf("%v:\n%s", err, out)
		}
		return
	}
	write(t, "/proc/sys/user/max_inotify_instances", "0") // of this user namespace
	if _, err := fsnotify.NewWatcher(); !errors.Is(err, unix.EMFILE) {
		t.Fatalf("there are notifications (%v)", err)
	}
	p := newPlace(t)
	p.config.Poll = time.Millisecond
	p.primary("10-net.conflist", bridgeList)
	close(p.ready)
	p.run()
	p.becomes(installed)
	swap(p)
	p.becomes(installed)
	if log := p.log.String(); strings.Count(log, "cannot watch the runtime's directories") != 1 {
		t.Errorf("not said once:\n%s", log)
	}
}

// A directory that is exchanged is watched from the next look on.
func TestExchangedDirectory(t *testing.T) {
	p := newPlace(t)
	p.config.Poll = 50 * time.Millisecond
	p.primary("10-net.conflist", bridgeList)
	close(p.ready)
	p.run()
	p.becomes(installed)
	swap(p)
	p.becomes(installed)
}

func swap(p *place) {
	p.t.Helper()
	if err := errors.Join(os.Rename(p.conf, p.conf+".old"), os.Mkdir(p.conf, 0o755)); err != nil {
		p.t.Fatal(err)
	}
	p.primary("10-net.conflist", bridgeList)
}

// While somebody writes the primary all the time, in both ways, whoever reads our list
// finds a whole one, with the plugins of one moment.
func TestWritersAtTheSameTime(t *testing.T) {
	p := newPlace(t)
	version := func(n int) string { return strings.Replace(bridgeList, "bridge", fmt.Sprintf("bridge%d", n), 1) }
	p.primary("10-net.conflist", version(0))
	close(p.ready)
	p.run()
	list := filepath.Join(p.conf, ListName)
	netlab.Eventually(t, func() error { _, err := os.Stat(list); return err })
	const last = 300
	whileWritten(t, func() error {
		for n := range last + 1 {
			path := filepath.Join(p.conf, "10-net.conflist")
			if n%2 == 1 {
				path += ".new"
			}
			err := os.WriteFile(path, []byte(version(n)), 0o644)
			if n%2 == 1 {
				err = errors.Join(err, os.Rename(path, strings.TrimSuffix(path, ".new")))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}, func() {
		content, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		if l, err := parseList(ListName, content); err != nil || len(l.plugins) != 2 || l.plugins[1].kind != PluginName {
			t.Fatalf("not a whole list (%v): %s", err, content)
		}
	})
	p.becomes(strings.ReplaceAll(installed, `"bridge"`, fmt.Sprintf("%q", fmt.Sprintf("bridge%d", last))))
}
