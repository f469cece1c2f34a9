package install

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// victimEnv names the directory in which this program is to be killed while it writes
// a list.
const victimEnv = "FAIRLEAD_INSTALL_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimEnv); dir != "" {
		panic(replace(dir, ListName, listMode, io.MultiReader(strings.NewReader("half a list"), os.Stdin)))
	}
	if os.Getenv(blindEnv) == "" {
		netlab.Main(m, 5)
	}
	m.Run() // and no namespaces; the process exits with what it returns
}

// An agent that is killed between the temporary file and the rename leaves the list as
// it was; the next one takes away what it left, and writes again.
func TestKilledWhileWriting(t *testing.T) {
	p := newPlace(t)
	p.primary("10-net.conflist", bridgeList)
	close(p.ready)
	p.look(t.Context())
	p.becomes(installed)
	victim := exec.Command("/proc/self/exe")
	victim.Env = append(os.Environ(), victimEnv+"="+p.conf)
	if _, err := victim.StdinPipe(); err != nil { // from which nothing comes
		t.Fatal(err)
	}
	if err := victim.Start(); err != nil {
		t.Fatal(err)
	}
	temp := filepath.Join(p.conf, tempName(ListName))
	netlab.Eventually(t, func() error {
		content, err := os.ReadFile(temp)
		if err == nil && string(content) != "half a list" {
			err = fmt.Errorf("the temporary file holds %q", content)
		}
		return err
	})
	if err := victim.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = victim.Wait() // it was killed
	left := "-rw------- .02-fairlead.conflist.tmp half a list\n"
	p.becomes(strings.Replace(installed, listThere, left+listThere, 1))
	p.run()
	p.becomes(installed)
}

// mount mounts a tmpfs over a directory until the test ends.
func mount(t *testing.T, dir, options string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // the namespace ends with the test
}

// On a full disk the old files stay as they are, whole, and when there is room the new
// ones come.
func TestFullDisk(t *testing.T) {
	netlab.Kernel(t)
	p := newPlace(t)
	mount(t, p.bin, "size=64k")
	mount(t, p.conf, "size=64k")
	p.primary("10-net.conflist", bridgeList)
	close(p.ready)
	p.look(t.Context())
	p.becomes(installed)
	fill(t, p.bin)
	fill(t, p.conf)
	old := p.config.Plugin
	p.config.Plugin += "-2"
	write(t, p.config.Plugin, strings.Repeat("the plugin", 1000))
	p.look(t.Context())
	bin, conf := contents(t, p.bin), contents(t, p.conf)
	if want := "cannot put the plugin's binary at " + p.bin + "/fairlead-cni: write " + p.bin + "/.fairlead-cni.tmp: no space left on device"; text(p.State().Problem) != want {
		t.Errorf("got %v, want %s", p.State().Problem, want)
	}
	if want := "fairlead-cni full"; bin != want {
		t.Errorf("of binaries there are %s, want %s", bin, want)
	}

	p.config.Plugin = old
	p.config.ConfDir = p.conf
	p.entry = bytes.Replace(p.entry, []byte("kube-system"), bytes.Repeat([]byte("x"), 8000), 1)
	p.look(t.Context())
	if want := "cannot write " + p.conf + "/02-fairlead.conflist: write " + p.conf + "/.02-fairlead.conflist.tmp: no space left on device"; text(p.State().Problem) != want {
		t.Errorf("got %v, want %s", p.State().Problem, want)
	}
	if now := contents(t, p.conf); now != conf || now != "02-fairlead.conflist 10-net.conflist full" {
		t.Errorf("of lists there are %s", now)
	}
	if content, err := os.ReadFile(p.list()); err != nil || strings.Contains(string(content), "xxx") {
		t.Errorf("the list is now %s (%v)", content, err)
	}
	if err := os.Remove(filepath.Join(p.conf, "full")); err != nil {
		t.Fatal(err)
	}
	p.look(t.Context())
	if content, err := os.ReadFile(p.list()); err != nil || !strings.Contains(string(content), "xxx") || p.State().Problem != nil {
		t.Errorf("with room again the list is %s (%v), the problem %v", content, err, p.State().Problem)
	}
}

// fill leaves no room in a directory's file system.
func fill(t *testing.T, dir string) {
	t.Helper()
	file, err := os.Create(filepath.Join(dir, "full"))
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

func contents(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return strings.Join(names, " ")
}

// A directory that is mounted read-only is named, with what to do.
func TestReadOnly(t *testing.T) {
	netlab.Kernel(t)
	p := newPlace(t)
	p.primary("10-net.conflist", bridgeList)
	close(p.ready)
	p.look(t.Context())
	p.becomes(installed)
	if err := errors.Join(
		unix.Mount(p.conf, p.conf, "", unix.MS_BIND, ""),
		unix.Mount("", p.conf, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""),
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(p.conf, unix.MNT_DETACH) })
	p.look(t.Context())
	p.becomes(installed) // nothing had to be written
	p.entry = bytes.Replace(p.entry, []byte("kube-system"), []byte("other"), 1)
	p.look(t.Context())
	want := "cannot write " + p.conf + "/02-fairlead.conflist: open " + p.conf + "/.02-fairlead.conflist.tmp: read-only file system: mount " + p.conf +
		" so that the agent may write there, and see that no security module (SELinux, AppArmor) forbids it"
	if got := text(p.State().Problem); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if content, err := os.ReadFile(p.list()); err != nil || !strings.Contains(string(content), "kube-system") {
		t.Errorf("the list is %s (%v)", content, err)
	}
	if err := p.Remove(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot take fairlead-cni out of the runtime's configuration: remove "+p.list()+": read-only file system") {
		t.Errorf("removing it: %v", err)
	}
}

// In the other modes a full disk leaves the primary, and the drop-in, as they are.
func TestFullDiskInOtherModes(t *testing.T) {
	for mode, file := range map[Mode]string{Chained: "10-net.conflist", DropIn: "net/fairlead.conf"} {
		t.Run(string(mode), func(t *testing.T) {
			netlab.Kernel(t)
			p := newPlace(t).in(mode)
			mount(t, p.conf, "size=64k")
			p.primary("10-net.conflist", bridgeList)
			close(p.ready)
			p.look(t.Context())
			if p.State().Problem != nil {
				t.Fatal(p.State().Problem)
			}
			fill(t, p.conf)
			before := tree(t, p.conf)
			p.entry = bytes.Replace(p.entry, []byte("kube-system"), bytes.Repeat([]byte("x"), 8000), 1)
			p.look(t.Context())
			if got, want := text(p.State().Problem), "cannot write "+p.conf+"/"+file+": "; !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "no space left on device") {
				t.Errorf("got %s, want %s", got, want)
			}
			if now := tree(t, p.conf); now != before {
				t.Error("something has changed")
			}
			if err := os.Remove(filepath.Join(p.conf, "full")); err != nil {
				t.Fatal(err)
			}
			p.look(t.Context())
			if content, err := os.ReadFile(filepath.Join(p.conf, file)); err != nil || !strings.Contains(string(content), "xxx") || p.State().Problem != nil {
				t.Errorf("with room again it is %s (%v), the problem %v", content, err, p.State().Problem)
			}
		})
	}
}
