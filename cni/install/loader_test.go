package install

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// The runtime, here a program of ours, says itself which version of CNI's library it is
// made of.
func TestLoader(t *testing.T) {
	bin, proc := t.TempDir(), t.TempDir()
	if err := netlab.Build("../..", bin, "./cni/cmd/fairlead-cni"); err != nil {
		t.Fatal(err)
	}
	for pid, name := range map[string]string{"1": "systemd", "2": "containerd-shim", "3": "containerd"} {
		dir := filepath.Join(proc, pid)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Symlink(filepath.Join(bin, PluginName), filepath.Join(dir, "exe"))); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "comm"), name+"\n")
	}
	var l loader
	if err := l.passesOver(proc); err != nil || l.process != "containerd" || !strings.HasPrefix(l.version, "v1.") {
		t.Fatalf("found %+v: %v", l, err)
	}
	l.version = "v1.2.3" // what is known is not looked at again
	want := "containerd has libcni v1.2.3, and before 1.3 it passes over what mode dropin writes, without a word: set install.mode to owned or chained"
	if err := l.passesOver(proc); text(err) != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	p := newPlace(t).in(DropIn)
	p.config.Proc, p.loader = proc, l
	p.primary("10-net.conflist", bridgeList)
	close(p.ready)
	p.look(t.Context())
	p.becomes(strings.Replace(dropInAll, "<nil>", want, 1))
	if err := os.RemoveAll(filepath.Join(proc, "3")); err != nil {
		t.Fatal(err)
	}
	if err := l.passesOver(proc); err != nil || l != (loader{}) {
		t.Errorf("when it has ended: %+v, %v", l, err)
	}
}

func TestLoaderVersions(t *testing.T) {
	for version, want := range map[string]bool{
		"v1.3.0": true, "v1.3.0-rc.1": true, "v1.10.2": true, "v2.0.0": true, "(devel)": true, "": true,
		"v1.2.3": false, "v1.1.2": false, "v0.8.1": false,
	} {
		if got := atLeast13(version); got != want {
			t.Errorf("%q: %v", version, got)
		}
	}
}
