package install

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// What a command line says of the configuration, in the forms that the runtimes take; what is
// odd says nothing.
func TestToldTo(t *testing.T) {
	for _, test := range []struct{ name, cmdline, want string }{
		{"containerd", "containerd|-c|/var/lib/rancher/k3s/agent/etc/containerd/config.toml|-a|/run/k3s/containerd.sock|", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"},
		{"containerd", "/bin/containerd|--config|/a|", "/a"},
		{"containerd", "/bin/containerd|--root=/r|--config=/a|config|dump|", "/a"},
		{"containerd", "containerd|-config=/a|-c=/b|", "/b"}, // the last one counts
		{"containerd", "containerd|", ""},
		{"containerd", "containerd|-c|", ""},
		{"containerd", "containerd|-c", ""},
		{"containerd", "containerd|-c||", ""},
		{"containerd", "containerd|--config=|", ""},
		{"containerd", "containerd|-c|config.toml|", ""}, // wherever that was
		{"containerd", "containerd -c /a", ""},           // no NULs
		{"containerd", "containerd|c|/a|config=/b|---c|/d|--configure|/e|-d|/f|", ""},
		{"containerd", "", ""},
		{"containerd", "|||-c|/a|||", "/a"},
		{"containerd", "-c|/a|" + strings.Repeat("x|", 1<<18), "/a"},
		{"containerd", "-c|/a|" + strings.Repeat("x", 1<<20), ""}, // larger than any
		{"crio", "crio|-c|/a|", "/a /etc/crio/crio.conf.d/*"},
		{"crio", "crio|--config-dir=/d|", "/etc/crio/crio.conf /d/*"},
		{"crio", "crio|-d|/d|--config|/a|", "/a /d/*"},
		{"crio", "crio|--log-level|info|", ""},
		{"k3s-server", "k3s server|--config|/etc/rancher/k3s/config.yaml|", ""},
		{"cri-dockerd", "cri-dockerd|-c|/a|", ""},
	} {
		dir := t.TempDir()
		write(t, filepath.Join(dir, "cmdline"), strings.ReplaceAll(test.cmdline, "|", "\x00"))
		if got := strings.Join(toldTo(dir, test.name), " "); got != test.want {
			t.Errorf("%.80s: got %q, want %q", test.cmdline, got, test.want)
		}
	}
	if got := toldTo(t.TempDir(), "containerd"); got != nil {
		t.Errorf("of a process that has ended: %q", got)
	}
}

const (
	fits    = "[plugins.'io.containerd.cri.v1.runtime'.cni]\nconf_dir = 'CONF'\nbin_dirs = ['BIN']\n"
	differs = "[plugins.'io.containerd.cri.v1.runtime'.cni]\nconf_dir = '/k3s/net.d'\nbin_dirs = ['/k3s/bin']\n"
)

// The configuration that a runtime was told to read goes before usual files. Its paths are
// those of its root directory, here the one above the place's.
func TestRuntimesThatRun(t *testing.T) {
	const other = "reads network configurations from /k3s/net.d, and install.cniConfDir is CONF: give the runtime's (in the chart cniConfDir, or global.platform)"
	for name, test := range map[string]struct {
		running string            // names, each with what it was told to read
		files   map[string]string // below the root
		used    string
		want    string // contained in the problem
	}{
		"fits":         {"containerd:/a.toml", map[string]string{"a.toml": fits}, "containerd (/a.toml)", ""},
		"differs":      {"containerd:/a.toml", map[string]string{"a.toml": differs}, "containerd (/a.toml)", "containerd (/a.toml) " + other},
		"CRI-O":        {"crio:/a.conf,/d/*", map[string]string{"a.conf": "[crio.network]\nnetwork_dir = '/else'\nplugin_dirs = ['BIN']\n", "d/00-default": "[crio.network]\nnetwork_dir = 'CONF'\n", "d/10/x": ""}, "CRI-O (/a.conf, /d/00-default)", ""},
		"usual exists": {"containerd:/a.toml", map[string]string{"a.toml": differs, "usual.toml": fits}, "containerd (/a.toml)", "containerd (/a.toml) " + other},
		"one was told nothing": {"containerd:/a.toml containerd:", map[string]string{"a.toml": differs, "usual.toml": fits},
			"containerd (USUAL)", ""},
		"K3s's own":        {"containerd:/a.toml k3s-server:", map[string]string{"a.toml": differs, "usual.toml": fits}, "containerd (/a.toml)", other},
		"none is told":     {"containerd: crio:", map[string]string{"a.toml": differs, "usual.toml": fits}, "containerd (USUAL)", ""},
		"none runs":        {"", map[string]string{"a.toml": differs, "usual.toml": fits}, "containerd (USUAL)", ""},
		"two, one fits":    {"containerd:/a.toml containerd:/b.toml", map[string]string{"a.toml": differs, "b.toml": fits}, "containerd (/b.toml)", ""},
		"Docker's":         {"containerd:/a.toml", map[string]string{"a.toml": "disabled_plugins = ['cri']\n", "usual.toml": fits}, "containerd (USUAL)", ""},
		"it is not there":  {"containerd:/a.toml", map[string]string{"usual.toml": fits}, "containerd (USUAL)", ""},
		"it is broken":     {"containerd:/a.toml", map[string]string{"a.toml": "version = 3\nplugins = {", "usual.toml": fits}, "containerd (USUAL)", ""},
		"it is huge":       {"containerd:/a.toml", map[string]string{"a.toml": differs + "#" + strings.Repeat("x", maxConfig), "usual.toml": fits}, "containerd (USUAL)", ""},
		"it is a pipe":     {"containerd:/a.toml", map[string]string{"a.toml": "pipe", "usual.toml": fits}, "containerd (USUAL)", ""},
		"it is a device":   {"containerd:/a.toml", map[string]string{"a.toml": "-> /dev/zero", "usual.toml": fits}, "containerd (USUAL)", ""},
		"it is a dir":      {"containerd:/d", map[string]string{"d/a.toml": differs, "usual.toml": fits}, "containerd (USUAL)", ""},
		"outside the root": {"containerd:/../../../../../../etc/passwd", map[string]string{"etc/passwd": fits}, "containerd (/../../../../../../etc/passwd)", ""},
		"an absolute link": {"containerd:/link/a.toml", map[string]string{"link": "-> /real", "real/a.toml": fits}, "containerd (/link/a.toml)", ""},
		"a link to itself": {"containerd:/a.toml", map[string]string{"a.toml": "-> /a.toml", "usual.toml": fits}, "containerd (USUAL)", ""},
		"a link to ours":   {"containerd:/a.toml", map[string]string{"a.toml": strings.NewReplacer("CONF", "/current/net.d", "BIN", "/current/bin").Replace(fits), "current": "-> /place"}, "containerd (/a.toml)", ""},
		"imports": {"containerd:/etc/a.toml", map[string]string{"etc/a.toml": "imports = ['/conf.d/*.toml', 'b/*']\n" + differs, "conf.d/1.toml": differs, "conf.d/1.bak": "version = 2\n", "etc/b/2": fits},
			"containerd (/etc/a.toml, /conf.d/1.toml, /etc/b/2)", ""},
		"imports itself": {"containerd:/a.toml", map[string]string{"a.toml": "imports = ['/a.toml', 3, '[', '/none/*']\n" + fits}, "containerd (/a.toml)", ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			root := filepath.Dir(p.bin)
			put(t, filepath.Join(root, "place"), "-> .")
			usual := filepath.Join(root, "usual.toml")
			names := strings.NewReplacer("CONF", p.conf, "BIN", p.bin, "USUAL", usual)
			for file, content := range test.files {
				put(t, filepath.Join(root, file), names.Replace(content))
			}
			for _, one := range strings.Fields(test.running) {
				name, told, _ := strings.Cut(one, ":")
				running := process{exe: root, name: name, version: "v1.3.0", root: root}
				if told != "" {
					running.told = strings.Split(told, ",")
				}
				p.loader.running = append(p.loader.running, running)
			}
			p.config.Proc, p.config.RuntimeConfigs = root, []string{usual}
			p.primary("10-net.conflist", bridgeList)
			close(p.ready)
			p.look(t.Context())
			state := p.State()
			if want := names.Replace(test.used); state.Runtime != want {
				t.Errorf("the runtime is %q, want %q", state.Runtime, want)
			}
			if want := names.Replace(test.want); want == "" && state.Problem != nil || !strings.Contains(text(state.Problem), want) {
				t.Errorf("the problem is %v, want it to say %q", state.Problem, want)
			}
			p.config.RuntimeConfigs = nil
			if v := p.judge(); v != (verdict{}) {
				t.Errorf("without usual files it is judged all the same: %+v", v)
			}
		})
	}
}

// However much is named and imported, only so much is read.
func TestRuntimesThatNameALot(t *testing.T) {
	root := t.TempDir()
	var imports []string
	for n := range 2 * maxFiles {
		put(t, fmt.Sprintf("%s/d/%d", root, n), "version = 3\n")
		imports = append(imports, fmt.Sprintf("'/d/%d'", n))
	}
	put(t, filepath.Join(root, "a.toml"), "imports = ["+strings.Join(imports, ", ")+"]\n")
	for _, told := range []string{"/d/*", "/a.toml"} {
		if got := len(process{root: root, told: []string{told}}.configs()); got != maxFiles {
			t.Errorf("%s: %d files were read, want %d", told, got, maxFiles)
		}
	}
}

// put makes a file, with the directories above it: a pipe, a link, or one with a content.
func put(t *testing.T, path, content string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	switch target, link := strings.CutPrefix(content, "-> "); {
	case link:
		err = errors.Join(err, os.Symlink(target, path))
	case content == "pipe":
		err = errors.Join(err, unix.Mkfifo(path, 0o600))
	default:
		err = errors.Join(err, os.WriteFile(path, []byte(content), 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
}

// A runtime that runs, here a program of ours, is asked what it reads: K3s's, where the chart
// was not told of it. While it is started again what was found stays.
func TestRuntimeIsFound(t *testing.T) {
	p := newPlace(t)
	root, proc := filepath.Dir(p.bin), t.TempDir()
	if err := netlab.Build("../..", root, "./cni/cmd/fairlead-cni"); err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(root, "containerd"), "-> "+PluginName)
	put(t, filepath.Join(proc, "1"), "-> /proc/self")
	file := filepath.Join(root, "k3s.toml")
	start := func(args ...string) (end func()) {
		cmd := exec.Command(filepath.Join(root, "containerd"), args...)
		cmd.Env = []string{"CNI_COMMAND=ADD"} // it reads to the end of its input
		input, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		entry := filepath.Join(proc, strconv.Itoa(cmd.Process.Pid))
		put(t, entry, "-> /proc/"+filepath.Base(entry))
		netlab.Eventually(t, func() error { // it has no command line before its first step
			if text, err := os.ReadFile(filepath.Join(entry, "cmdline")); err != nil || len(text) == 0 {
				return fmt.Errorf("its command line is %q, %w", text, err)
			}
			return nil
		})
		end = func() {
			_ = input.Close()
			_ = cmd.Wait() // it was given nothing to do
			_ = os.Remove(entry)
		}
		t.Cleanup(end)
		return end
	}
	p.config.Proc, p.config.RuntimeConfigs = proc, []string{"/nowhere/config.toml"}
	close(p.ready)
	names := strings.NewReplacer("CONF", p.conf, "BIN", p.bin, "FILE", file)
	looks := func(used, problem string) {
		t.Helper()
		p.look(t.Context())
		state := p.State()
		if got, want := fmt.Sprintf("%q: %v", state.Runtime, state.Problem), names.Replace(fmt.Sprintf("%q: %s", used, problem)); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	const (
		elsewhere = "containerd (FILE) reads network configurations from /k3s/net.d, and install.cniConfDir is CONF: give the runtime's (in the chart cniConfDir, or global.platform)\n" +
			"containerd (FILE) looks for plugins in /k3s/bin, and install.cniBinDir is BIN: give the runtime's (in the chart cniBinDir, or global.platform)\n"
		waits = "there is no primary network configuration in CONF, waiting for it: install the node's CNI plugin (Calico, Cilium, kindnet, ...), " +
			"or give the directory that the runtime uses as install.cniConfDir (in the chart cniConfDir, or global.platform)"
	)
	looks("", waits)
	write(t, file, differs)
	end := start("-c", file)
	looks("containerd (FILE)", elsewhere+waits)
	end()
	looks("containerd (FILE)", elsewhere+waits)
	end = start("--config=" + file)
	looks("containerd (FILE)", elsewhere+waits)
	write(t, file, names.Replace(fits))
	p.primary("10-net.conflist", bridgeList)
	looks("containerd (FILE)", "<nil>")
	end()
	start()
	looks("", "<nil>") // it does not say
}
