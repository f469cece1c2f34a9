package install

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What the runtime's own configuration says is compared with where the plugin is
// installed.
func TestRuntime(t *testing.T) {
	const (
		v1      = "[plugins.cri.cni]\nconf_dir = 'CONF'\nbin_dir = 'BIN'\n"
		v2      = "version = 2\n[plugins]\n  [plugins.\"io.containerd.grpc.v1.cri\".cni]\n    conf_dir = \"CONF\"\n    bin_dir = \"BIN\"\n"
		v3      = "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\n  [plugins.'io.containerd.cri.v1.runtime'.cni]\n    conf_dir = 'CONF/'\n    bin_dirs = ['/other', 'BIN']\n"
		crio    = "[crio.network]\nnetwork_dir = \"CONF/\"\nplugin_dirs = [\n  \"BIN\", # ours\n]\n"
		one     = "containerd (DIR/a.toml)"
		oneCRIO = "CRI-O (DIR/crio.conf)"
	)
	for name, test := range map[string]struct {
		files map[string]string
		mode  Mode
		used  string
		want  string // contained in the problem
		none  bool   // of ours is to be there
	}{
		"nothing is known": {used: ""},
		"version 1":        {files: map[string]string{"a.toml": v1}, used: one},
		"version 2":        {files: map[string]string{"a.toml": v2}, used: one},
		"version 3":        {files: map[string]string{"a.toml": v3}, used: one},
		"CRI-O":            {files: map[string]string{"crio.conf": crio}, used: oneCRIO},
		"CRI-O's old way":  {files: map[string]string{"crio.conf": "[crio.network]\nnetwork_dir = 'CONF'\nplugin_dir = 'BIN'\n"}, used: oneCRIO},
		"the defaults": {files: map[string]string{"a.toml": "version = 3\n"}, used: one,
			want: "containerd (DIR/a.toml) reads network configurations from /etc/cni/net.d, and install.cniConfDir is CONF: give the runtime's (in the chart cniConfDir, or global.platform)\n" +
				"containerd (DIR/a.toml) looks for plugins in /opt/cni/bin, and install.cniBinDir is BIN: give the runtime's (in the chart cniBinDir, or global.platform)"},
		"another directory": {files: map[string]string{"a.toml": strings.ReplaceAll(v3, "CONF", "/else")}, used: one,
			want: "reads network configurations from /else/, and install.cniConfDir is CONF"},
		"CRI-O's other":   {files: map[string]string{"crio.conf": strings.ReplaceAll(crio, "BIN", "/else")}, used: oneCRIO, want: "looks for plugins in /else, and"},
		"CRI-O's network": {files: map[string]string{"crio.conf": crio + "cni_default_network = 'net'\n"}, used: oneCRIO},
		"CRI-O's other network": {files: map[string]string{"crio.conf": crio + "cni_default_network = 'crio'\n"}, used: oneCRIO,
			want: `CRI-O (DIR/crio.conf) uses the network crio (cni_default_network), and the primary network configuration, CONF/10-net.conflist, is named "net": have both say the same`},
		"CRI-O's first network": {files: map[string]string{"a.conf": crio + "cni_default_network = 'crio'\n", "b.conf": "[crio.network]\ncni_default_network = ''\n"}, used: "CRI-O (DIR/a.conf, DIR/b.conf)"},
		"a later file":          {files: map[string]string{"a.toml": v2, "b.toml": strings.ReplaceAll(v2, "CONF", "/else")}, used: "containerd (DIR/a.toml, DIR/b.toml)", want: "from /else"},
		"a variable":            {files: map[string]string{"a.toml": strings.NewReplacer("CONF", "${SNAP_DATA}/args/cni-network", "BIN", "${SNAP_DATA}/opt").Replace(v2)}, used: one},
		"all lists":             {files: map[string]string{"a.toml": v3 + "max_conf_num = 0\n"}, used: one, want: "loads more than one network configuration (max_conf_num = 0)", none: true},
		"all lists, chained":    {files: map[string]string{"a.toml": v3 + "max_conf_num = 0\n"}, mode: Chained, used: one},
		"two lists":             {files: map[string]string{"a.toml": v3 + "max_conf_num = 2\n"}, used: one, want: "set max_conf_num to 1, or install.mode to chained", none: true},
		"one list":              {files: map[string]string{"a.toml": v3 + "max_conf_num = 1\n"}, used: one},
		"not TOML":              {files: map[string]string{"a.toml": "version = \n"}, used: ""},
		"other types":           {files: map[string]string{"a.toml": "version = 2\nplugins = 3\n", "crio.conf": "crio = 4\n"}, used: one, want: "reads network configurations from /etc/cni/net.d"},
		"another file":          {files: map[string]string{"a.txt": v2}, used: ""},
		"Docker's":              {files: map[string]string{"a.toml": "disabled_plugins = ['cri']\n", "crio.conf": crio}, used: oneCRIO},
		"two, one of them ours": {files: map[string]string{"a.toml": "version = 3\n", "crio.conf": crio}, used: oneCRIO},
		"two, none of them ours": {files: map[string]string{"a.toml": "version = 3\n", "crio.conf": "[crio]\n"}, used: one,
			want: "containerd (DIR/a.toml) reads network configurations from /etc/cni/net.d"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			if test.mode != "" {
				p.in(test.mode)
			}
			dir := t.TempDir()
			names := strings.NewReplacer("CONF", p.conf, "BIN", p.bin, "DIR", dir)
			for file, content := range test.files {
				write(t, filepath.Join(dir, file), names.Replace(content))
			}
			p.config.RuntimeConfigs = []string{"/nowhere", dir}
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
			if there := exists(p.list()); test.mode == "" && there == test.none {
				t.Errorf("our list is there: %v", there)
			}
		})
	}
}

// A path that leads to the runtime's directory by another way is the same.
func TestRuntimeByALink(t *testing.T) {
	p := newPlace(t)
	link := filepath.Join(t.TempDir(), "current")
	if err := os.Symlink(filepath.Dir(p.conf), link); err != nil {
		t.Fatal(err)
	}
	write(t, link+".toml", "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nconf_dir = '"+link+"/net.d'\nbin_dir = '"+link+"/bin'\n")
	p.config.RuntimeConfigs = []string{link + ".toml"}
	if v := p.judge(); v.differs != nil || v.runtime == "" {
		t.Errorf("%+v", v)
	}
}
