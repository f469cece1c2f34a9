package install

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// A runtime is what a container runtime's own configuration says of CNI.
type runtime struct {
	name    string
	files   []string // that say it
	confDir string
	binDirs []string
	lists   int64  // how many it loads; 0 is all there are
	network string // the name of the one that it uses, whatever the order of files; empty: the first
}

// criPlugins are what containerd calls its plugin that has CNI, from version 1 of its
// configuration to version 3.
var criPlugins = []string{"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"}

// readRuntimes reads what there is of the files, and of those in directories; later
// ones go before earlier ones, as runtimes have it.
func readRuntimes(paths []string) []runtime {
	containerd := runtime{name: "containerd", confDir: "/etc/cni/net.d", binDirs: []string{"/opt/cni/bin"}, lists: 1}
	crio := runtime{name: "CRI-O", confDir: "/etc/cni/net.d", binDirs: []string{"/opt/cni/bin"}, lists: 1}
	without := false // containerd serves another than Kubernetes
	for _, path := range runtimeFiles(paths) {
		text, err := read(path)
		var file map[string]any
		if err != nil || toml.Unmarshal(text, &file) != nil {
			continue
		}
		if network, ok := file["crio"].(map[string]any); ok {
			crio.files = append(crio.files, path)
			crio.readCRIO(table(network, "network"))
		}
		if file["version"] != nil || file["plugins"] != nil || file["disabled_plugins"] != nil {
			containerd.files = append(containerd.files, path)
			disabled := words(file["disabled_plugins"])
			for _, name := range criPlugins {
				without = without || slices.Contains(disabled, name)
				containerd.readContainerd(table(file, "plugins", name, "cni"))
			}
		}
	}
	var all []runtime
	if len(containerd.files) > 0 && !without {
		all = append(all, containerd)
	}
	if len(crio.files) > 0 {
		all = append(all, crio)
	}
	return all
}

func (r *runtime) readContainerd(cni map[string]any) {
	r.confDir = cmp.Or(word(cni["conf_dir"]), r.confDir)
	if dir := word(cni["bin_dir"]); dir != "" {
		r.binDirs = []string{dir}
	}
	if dirs := words(cni["bin_dirs"]); dirs != nil {
		r.binDirs = dirs
	}
	if n, ok := cni["max_conf_num"].(int64); ok {
		r.lists = n
	}
}

func (r *runtime) readCRIO(network map[string]any) {
	r.confDir = cmp.Or(word(network["network_dir"]), r.confDir)
	if name, ok := network["cni_default_network"].(string); ok {
		r.network = name
	}
	if dirs := words(network["plugin_dirs"]); dirs != nil {
		r.binDirs = dirs
	}
	if dir := word(network["plugin_dir"]); dir != "" {
		r.binDirs = append(r.binDirs, dir)
	}
}

// runtimeFiles are the paths, and for directories the configurations in them.
func runtimeFiles(paths []string) []string {
	var files []string
	for _, path := range paths {
		entries, err := os.ReadDir(path)
		if err != nil { // it is a file, or nothing
			files = append(files, path)
			continue
		}
		for _, entry := range entries {
			if ext := filepath.Ext(entry.Name()); ext == ".toml" || ext == ".conf" {
				files = append(files, filepath.Join(path, entry.Name()))
			}
		}
	}
	return files
}

func table(in map[string]any, names ...string) map[string]any {
	for _, name := range names {
		in, _ = in[name].(map[string]any) // of none there is nothing to read
	}
	return in
}

func word(value any) string {
	s, _ := value.(string) // of another type it says nothing that we know
	return s
}

func words(value any) []string {
	list, ok := value.([]any)
	if !ok {
		return nil
	}
	all := []string{}
	for _, one := range list {
		all = append(all, word(one))
	}
	return all
}

// A verdict is how a runtime's configuration fits ours. What does not fit is named, for
// what a file says may not be what runs; what would be harmful is not installed.
type verdict struct {
	runtime string // and its files; empty if none is known
	differs error
	harmful error
}

// judge looks for the runtime that fits best: there may be files of one that does not
// run.
func (i *Installer) judge() verdict {
	var best verdict
	f, _ := survey(i.config.ConfDir) // without a primary nothing is compared with it
	for n, r := range readRuntimes(i.config.RuntimeConfigs) {
		v := r.judge(i.config, f.list)
		if n == 0 || v.differs == nil && best.differs != nil {
			best = v
		}
	}
	return best
}

func (r runtime) judge(c Config, primary *list) verdict {
	v := verdict{runtime: fmt.Sprintf("%s (%s)", r.name, strings.Join(r.files, ", "))}
	var errs []error
	if !samePath(r.confDir, c.ConfDir) {
		errs = append(errs, fmt.Errorf("%s reads network configurations from %s, and install.cniConfDir is %s: give the runtime's", v.runtime, r.confDir, c.ConfDir))
	}
	if !slices.ContainsFunc(r.binDirs, func(dir string) bool { return samePath(dir, c.BinDir) }) {
		errs = append(errs, fmt.Errorf("%s looks for plugins in %s, and install.cniBinDir is %s: give the runtime's", v.runtime, strings.Join(r.binDirs, ", "), c.BinDir))
	}
	if r.network != "" && primary != nil && primary.name != r.network {
		errs = append(errs, fmt.Errorf("%s uses the network %s (cni_default_network), and the primary network configuration, %s, is named %q: have both say the same",
			v.runtime, r.network, filepath.Join(c.ConfDir, primary.file), primary.name))
	}
	v.differs = errors.Join(errs...)
	if r.lists != 1 && c.Mode == Owned {
		v.harmful = fmt.Errorf("%s loads more than one network configuration (max_conf_num = %d), and with one of our own beside the primary each pod would get two networks: "+
			"set max_conf_num to 1, or install.mode to chained", v.runtime, r.lists)
	}
	return v
}

// samePath says whether two paths are of one directory, or whether that cannot be
// told: the runtime fills in a variable.
func samePath(theirs, ours string) bool {
	if strings.Contains(theirs, "$") || filepath.Clean(theirs) == filepath.Clean(ours) {
		return true
	}
	a, errA := os.Stat(theirs)
	b, errB := os.Stat(ours)
	return errA == nil && errB == nil && os.SameFile(a, b)
}
