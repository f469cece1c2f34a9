package install

import (
	"errors"
	"fmt"
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
	for pid, name := range map[string]string{"1": "systemd", "2": "containerd-shim", "3": "containerd", "4": "crio"} {
		dir, ns := filepath.Join(proc, pid), "pid:[4026531836]"
		if pid == "4" { // somebody's in a pod
			ns = "pid:[4026532999]"
		}
		if err := errors.Join(os.MkdirAll(filepath.Join(dir, "ns"), 0o755), os.Symlink(ns, filepath.Join(dir, "ns", "pid")),
			os.Symlink(filepath.Join(bin, PluginName), filepath.Join(dir, "exe"))); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "comm"), name+"\n")
	}
	var l loader
	if err := errors.Join(l.passesOver(proc), l.runtimeRefuses11(proc)); err != nil || len(l.running) != 1 || l.running[0].name != "containerd" || !strings.HasPrefix(l.running[0].version, "v1.") {
		t.Fatalf("found %+v: %v", l, err)
	}
	l.running[0].version = "v1.2.3" // what is known is not looked at again
	want := "containerd has libcni v1.2.3, and before 1.3 it passes over what mode dropin writes, without a word: set install.mode to owned or chained"
	if err := l.passesOver(proc); text(err) != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
	l.running = append([]process{{exe: l.running[0].exe, name: "crio", version: "v1.3.0"}}, l.running...)
	if err := l.passesOver(proc); text(err) != want {
		t.Errorf("beside another: %v\nwant %s", err, want)
	}
	l.running = l.running[1:]
	p := newPlace(t).in(DropIn)
	p.config.Proc, p.loader = proc, l
	p.primary("10-net.conflist", bridgeList)
	close(p.ready)
	p.look(t.Context())
	p.becomes(strings.Replace(dropInAll, "<nil>", want, 1))
	p = newPlace(t) // from mode owned: the list that works stays until the runtime is another
	p.config.Proc, p.loader = proc, l
	p.primary("10-net.conflist", bridgeList)
	close(p.ready)
	p.look(t.Context())
	p.in(DropIn).look(t.Context())
	p.becomes(strings.Replace(binaryThere+listThere+bridgeThere+dropInThere+noProblem, "<nil>", want, 1))
	p.loader.running[0].version = "v1.3.0"
	p.look(t.Context())
	p.becomes(dropInAll)
	if err := os.RemoveAll(filepath.Join(proc, "3")); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.passesOver(proc), l.runtimeRefuses11(proc)); err != nil || l.running != nil {
		t.Errorf("when it has ended: %+v, %v", l, err)
	}
}

// Which runtimes get a list of version 1.1.0: all that run have to be able to read it.
func TestWhichRuntimesTake11(t *testing.T) {
	for versions, want := range map[string]string{
		"":              "which libcni the container runtime has cannot be told",
		"v1.2.0":        "",
		"v1.3.1 v1.2.3": "",
		"v2.0.0":        "",
		"v1.1.2":        "r0 has libcni v1.1.2, which before 1.2 fails every ADD of such a list",
		"v1.3.0 v1.1.2": "r1 has libcni v1.1.2",
		"v1.3.0 v0.8.1": "r1 has libcni v0.8.1",
		"(devel)":       `r0 has libcni of an unknown version, "(devel)"`,
	} {
		var l loader
		for n, version := range strings.Fields(versions) {
			l.last = append(l.last, process{name: fmt.Sprintf("r%d", n), version: version})
		}
		if got := text(l.runtimeRefuses11(t.TempDir())); !strings.HasPrefix(got, want) || want == "" && got != "" {
			t.Errorf("%q: got %q, want %q", versions, got, want)
		}
	}
}

func TestVersions(t *testing.T) {
	for version, want := range map[string]string{
		"v1.3.0": "yes", "v1.3.0-rc.1": "yes", "v1.10.2": "yes", "v2.0.0": "yes", "1.3": "yes",
		"v1.2.3": "no", "v1.1.2": "no", "0.8.1": "no", "(devel)": "unknown", "": "unknown",
	} {
		enough, known := atLeast(version, 1, 3)
		got := map[[2]bool]string{{true, true}: "yes", {false, true}: "no", {false, false}: "unknown"}[[2]bool{enough, known}]
		if got != want {
			t.Errorf("%q: %s, want %s", version, got, want)
		}
	}
}
