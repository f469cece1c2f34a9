package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"golang.org/x/tools/txtar"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// says is a plugin that speaks these versions.
func says(versions ...string) string {
	return fmt.Sprintf("#!/bin/sh\n[ \"$CNI_COMMAND\" = VERSION ] && echo '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"%s\"]}'\n", strings.Join(versions, `","`))
}

var modern = says("0.4.0", "1.0.0", "1.1.0")

// always is a place that asks for STATUS always, with a runtime that can, and these plugins.
func always(t *testing.T, plugins map[string]string) *place {
	t.Helper()
	p := newPlace(t)
	p.config.Status, p.config.Proc = StatusAlways, t.TempDir()
	p.loader.last = []process{{name: "containerd", version: "v1.3.0"}}
	for name, text := range plugins {
		p.plugin(name, text)
	}
	close(p.ready)
	return p
}

// owned is our list, or nothing.
func (p *place) owned() string {
	text, err := os.ReadFile(p.list())
	if err != nil {
		return ""
	}
	return string(text)
}

// Of each primary under testdata that has a list of ours, the raised list differs in
// nothing but its version.
func TestRaised(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no golden files", err)
	}
	raised := 0
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		p := always(t, nil)
		want := ""
		for _, f := range archive.Files {
			switch golden, isOurs := strings.CutPrefix(f.Name, "owned: "); {
			case isOurs && strings.HasPrefix(golden, ListName):
				want = string(f.Data)
			case !strings.Contains(f.Name, ": "):
				if err := os.MkdirAll(filepath.Dir(filepath.Join(p.conf, f.Name)), 0o755); err != nil {
					t.Fatal(err)
				}
				p.primary(f.Name, string(f.Data))
			}
		}
		found, err := survey(p.conf)
		if err != nil || want == "" || slices.Contains(found.list.versions, "1.1.0") {
			continue // the other golden tests are about these
		}
		if found.list.version == (span{}) {
			continue // see TestNotRaised
		}
		raised++
		was := string(found.list.version.of(found.list.text))
		up, err := found.list.at(statusVersion)
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		got, err := up.with(testEntry(t))
		if err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if diff := cmp.Diff(want, strings.ReplaceAll(string(got), `"1.1.0"`, was)); diff != "" || !bytes.Contains(got, []byte(`"1.1.0"`)) {
			t.Errorf("%s: more than the version is different (-as it is +raised):\n%s", file, diff)
		}
	}
	if raised == 0 {
		t.Error("none was raised")
	}
}

const hostLocal = `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge", "ipam": {"type": "host-local"}}]}`

// The list is raised where everybody takes it, and else is what it is in auto, with
// who stands against it named; that is no reason for the agent not to be ready.
func TestNotRaised(t *testing.T) {
	const raised = "[1.1.0]"
	for name, test := range map[string]struct {
		primary  string
		plugins  map[string]string
		with     func(*place)
		want     string // versions of our list
		noStatus string
	}{
		"all can":          {hostLocal, map[string]string{"bridge": modern, "host-local": modern}, nil, raised, ""},
		"it is there":      {strings.Replace(hostLocal, "1.0.0", "1.1.0", 1), nil, nil, raised, ""},
		"an old plugin":    {hostLocal, map[string]string{"bridge": says("0.4.0", "1.0.0"), "host-local": modern}, nil, "[1.0.0]", "the plugin bridge does not take 1.1.0: it speaks 0.4.0, 1.0.0: update BIN/bridge"},
		"an old delegate":  {hostLocal, map[string]string{"bridge": modern, "host-local": says("1.0.0")}, nil, "[1.0.0]", "the plugin host-local does not take 1.1.0"},
		"none of its name": {hostLocal, map[string]string{"bridge": modern}, nil, "[1.0.0]", "whether the plugin host-local takes 1.1.0 is not known: stat BIN/host-local: no such file"},
		"flannel":          {`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "flannel", "delegate": {"isDefaultGateway": true}}]}`, map[string]string{"flannel": modern, "host-local": modern}, nil, "[1.0.0]", "whether the plugin bridge takes 1.1.0 is not known"},
		"another delegate": {`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "x", "delegate": {"type": "y"}}]}`, map[string]string{"x": modern}, nil, "[1.0.0]", "whether the plugin y takes 1.1.0 is not known"},
		"none of a plugin": {`{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "x", "delegate": {"type": "../evil"}}]}`, map[string]string{"x": modern, "../evil": modern}, nil, "[1.0.0]", `the plugin "../evil" is none of BIN, and not asked`},
		"talks on":         {bridgeList, map[string]string{"bridge": "#!/bin/sh\nexec cat /dev/zero\n"}, nil, "[1.0.0]", "its answer is longer than 65536 bytes"},
		"fails":            {bridgeList, map[string]string{"bridge": "#!/bin/sh\nexit 3\n"}, nil, "[1.0.0]", "it does not say which versions it speaks (BIN/bridge, executed with CNI_COMMAND=VERSION): exit status 3"},
		"cannot run":       {bridgeList, map[string]string{"bridge": "#!/nowhere/ld.so\n"}, nil, "[1.0.0]", "executed with CNI_COMMAND=VERSION): fork/exec BIN/bridge: no such file"},
		"talks":            {bridgeList, map[string]string{"bridge": "#!/bin/sh\necho bridge 1.2\n"}, nil, "[1.0.0]", "its answer is not JSON"},
		"several versions": {`{"cniVersions": ["0.4.0", "1.0.0"], "name": "net", "plugins": [{"type": "bridge"}]}`, map[string]string{"bridge": modern}, nil, "[0.4.0 1.0.0]", "the primary's list has no cniVersion that could be raised"},
		"an old runtime": {bridgeList, map[string]string{"bridge": modern}, func(p *place) { p.loader.last[0].version = "v1.1.2" }, "[1.0.0]",
			"containerd has libcni v1.1.2, which before 1.2 fails every ADD of such a list: update the runtime (containerd 2)"},
		"no runtime": {bridgeList, map[string]string{"bridge": modern}, func(p *place) { p.loader.last = nil }, "[1.0.0]", "which libcni the container runtime has cannot be told"},
		"an old drop-in": {bridgeList, map[string]string{"bridge": modern, "other": says("1.0.0")}, func(p *place) {
			if err := os.Mkdir(filepath.Join(p.conf, "net"), 0o755); err != nil {
				p.t.Fatal(err)
			}
			p.primary("net/other.conf", `{"type": "other"}`)
		}, "[1.0.0]", "the plugin other does not take 1.1.0"},
	} {
		t.Run(name, func(t *testing.T) {
			p := always(t, test.plugins)
			if test.with != nil {
				test.with(p)
			}
			p.primary("10-net.conflist", test.primary)
			p.look(t.Context())
			l, err := parseList(ListName, []byte(p.owned()))
			if err != nil {
				t.Fatalf("our list: %v, the problem: %v", err, p.State().Problem)
			}
			if got := fmt.Sprint(l.versions); got != test.want {
				t.Errorf("our list has the version %s, want %s", got, test.want)
			}
			want := strings.ReplaceAll(test.noStatus, "BIN", p.bin)
			if got := text(p.State().NoStatus); !strings.Contains(got, want) || (want == "") != (got == "") {
				t.Errorf("got %q\nwant %q", got, want)
			}
			if p.State().Problem != nil {
				t.Errorf("the agent is not ready: %v", p.State().Problem)
			}
		})
	}
}

// What keeps the list from being raised is looked at again: an update raises it, and a step
// back takes it down again, without a restart of the agent.
func TestRaisedWhenItCanBe(t *testing.T) {
	p := always(t, map[string]string{"bridge": says("1.0.0")})
	p.primary("10-net.conflist", bridgeList)
	p.run()
	lists := func(version string) {
		t.Helper()
		netlab.Eventually(t, func() error {
			if text := p.owned(); !strings.Contains(text, `"cniVersion": "`+version+`"`) {
				return fmt.Errorf("our list is %s", text)
			}
			return nil
		})
	}
	lists("1.0.0")
	for _, step := range []struct{ plugin, version string }{{modern, "1.1.0"}, {says("1.0.0"), "1.0.0"}, {modern, "1.1.0"}} {
		write(t, filepath.Join(p.bin, "bridge.new"), step.plugin)
		if err := os.Chmod(filepath.Join(p.bin, "bridge.new"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(p.bin, "bridge.new"), filepath.Join(p.bin, "bridge")); err != nil {
			t.Fatal(err)
		}
		lists(step.version)
	}
	if log := p.log.String(); strings.Count(log, "STATUS may not keep pods from a node without its agent") != 2 {
		t.Errorf("logged:\n%s", log)
	}
}

// A raised list is not taken down because somebody has no answer, as while it is replaced or
// started again, but for an answer; and not kept for a program that it did not execute.
func TestStaysRaised(t *testing.T) {
	for name, test := range map[string]struct {
		with     func(*place)
		want     string
		noStatus string
	}{
		"a plugin is away": {func(p *place) { p.remove("bridge") }, "[1.1.0]", "whether the list LIST can stay at version 1.1.0, which it has, is not known: whether the plugin bridge takes 1.1.0 is not known: stat"},
		"a plugin fails":   {func(p *place) { p.plugin("bridge", "#!/bin/sh\nexit 3\n") }, "[1.1.0]", "is not known"},
		"no runtime":       {func(p *place) { p.loader.last = nil }, "[1.1.0]", "is not known: which libcni"},
		"both":             {func(p *place) { p.loader.last = nil; p.remove("host-local") }, "[1.1.0]", "is not known"},
		"an old plugin": {func(p *place) { p.loader.last = nil; p.plugin("bridge", says("1.0.0")) }, "[1.0.0]",
			"the list LIST stays at version [\"1.0.0\"]: which libcni"},
		"an old runtime": {func(p *place) { p.loader.last[0].version = "v1.1.2"; p.remove("bridge") }, "[1.0.0]", "before 1.2 fails every ADD"},
		"another plugin": {func(p *place) {
			p.primary("10-net.conflist", strings.Replace(hostLocal, "bridge", "other", 1))
		}, "[1.0.0]", "whether the plugin other takes 1.1.0 is not known: stat"},
	} {
		t.Run(name, func(t *testing.T) {
			p := always(t, map[string]string{"bridge": modern, "host-local": modern})
			p.primary("10-net.conflist", hostLocal)
			p.look(t.Context())
			if !strings.Contains(p.owned(), "1.1.0") || p.State().NoStatus != nil {
				t.Fatalf("our list is %s, the problem %v", p.owned(), p.State().NoStatus)
			}
			p.programs = programs{} // as in another agent
			test.with(p)
			p.look(t.Context())
			l, err := parseList(ListName, []byte(p.owned()))
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(l.versions); got != test.want {
				t.Errorf("our list has the version %s, want %s", got, test.want)
			}
			if got, want := text(p.State().NoStatus), strings.ReplaceAll(test.noStatus, "LIST", p.list()); !strings.Contains(got, want) {
				t.Errorf("got %q\nwant %q", got, want)
			}
		})
	}
}

// plugin writes somebody's plugin.
func (p *place) plugin(name, text string) {
	p.t.Helper()
	if err := os.WriteFile(filepath.Join(p.bin, name), []byte(text), 0o755); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) remove(plugin string) {
	p.t.Helper()
	if err := os.Remove(filepath.Join(p.bin, plugin)); err != nil {
		p.t.Fatal(err)
	}
}

// A program that has answered is not executed again while it is the same file; one that has
// not is left alone for a while.
func TestPluginsAreAskedOnce(t *testing.T) {
	dir := t.TempDir()
	count := filepath.Join(dir, "count")
	p := programs{}
	for name, rest := range map[string]string{"good": modern, "bad": "exit 1\n"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\nprintf x >>"+count+"\n"+rest), 0o755); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := p.speaks(path, statusVersion); (err != nil) != (name == "bad") {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	if asked, err := os.ReadFile(count); err != nil || string(asked) != "xx" {
		t.Errorf("asked %q (%v)", asked, err)
	}
	bad := p[filepath.Join(dir, "bad")]
	bad.at = bad.at.Add(-askAgain)
	p[filepath.Join(dir, "bad")] = bad
	if err := p.speaks(filepath.Join(dir, "bad"), statusVersion); err == nil {
		t.Error("it has answered")
	}
	if asked, err := os.ReadFile(count); err != nil || string(asked) != "xxx" {
		t.Errorf("asked again: %q (%v)", asked, err)
	}
}

// What a program that does not answer has started ends with it.
func TestAProgramIsEndedWithItsChildren(t *testing.T) {
	path, fifo := filepath.Join(t.TempDir(), "hung"), filepath.Join(t.TempDir(), "fifo")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.WriteFile(path, []byte("#!/bin/sh\nsleep 1000 >"+fifo+"\necho\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() {
		held, err := os.Open(fifo) // when it has started the other
		cancel()
		if err == nil {
			_, err = io.ReadAll(held) // until that has ended
		}
		ended <- err
	}()
	if _, err := execute(ctx, path); err == nil {
		t.Error("it has answered")
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestEntry(t *testing.T) {
	for want, c := range map[string]Config{
		`{"type":"fairlead-cni","agentSocket":"/s","allowWithoutAgent":[]}`:                        {AgentSocket: "/s"},
		`{"type":"fairlead-cni","agentSocket":"/t","allowWithoutAgent":[]}`:                        {AgentSocket: "/t", Status: StatusAlways},
		`{"type":"fairlead-cni","agentSocket":"/s","allowWithoutAgent":[],"status":"never"}`:       {AgentSocket: "/s", Status: StatusNever},
		`{"type":"fairlead-cni","agentSocket":"/s","allowWithoutAgent":[],"orphanAfter":"1h0m0s"}`: {AgentSocket: "/s", OrphanAfter: 3600e9},
	} {
		if got, err := entryOf(c); err != nil || string(got) != want {
			t.Errorf("got %s (%v), want %s", got, err, want)
		}
	}
}
