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
	root    string   // of the process that reads them; empty: as ours
	confDir string
	binDirs []string
	lists   int64  // how many it loads; 0 is all there are
	network string // the name of the one that it uses, whatever the order of files; empty: the first
}

// criPlugins are what containerd calls its plugin that has CNI, from version 1 of its
// configuration to version 3.
var criPlugins = []string{"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"}

// A tomlFile is one of a runtime's configuration, by the path that its reader has for it.
type tomlFile struct {
	path    string
	content map[string]any // none if it cannot be read
}

func readTOML(root, path string) tomlFile {
	file := tomlFile{path: path}
	if err := inside(root, path, func(here string) error {
		text, err := read(here)
		if err != nil {
			return err
		}
		return toml.Unmarshal(text, &file.content)
	}); err != nil {
		file.content = nil
	}
	return file
}

// runtimes are those that run, by the configuration that each was told to read; and, if one of
// them may read another or none of theirs can be read, those whose usual files are there.
func (i *Installer) runtimes() []runtime {
	var all []runtime
	usual := false
	for _, p := range i.loader.running {
		all = append(all, readRuntimes(p.root, p.configs())...)
		usual = usual || p.told == nil && !strings.HasPrefix(p.name, "k3s-") // which have containerd as a process
	}
	if !usual && len(all) > 0 {
		return all
	}
	var files []tomlFile
	for _, path := range runtimeFiles(i.config.RuntimeConfigs) {
		files = append(files, readTOML("", path))
	}
	return append(all, readRuntimes("", files)...)
}

// readRuntimes reads files of one root directory; later ones go before earlier ones, as
// runtimes have it.
func readRuntimes(root string, files []tomlFile) []runtime {
	containerd := runtime{name: "containerd", root: root, confDir: "/etc/cni/net.d", binDirs: []string{"/opt/cni/bin"}, lists: 1}
	crio := runtime{name: "CRI-O", root: root, confDir: "/etc/cni/net.d", binDirs: []string{"/opt/cni/bin"}, lists: 1}
	without := false // containerd serves another than Kubernetes
	for _, file := range files {
		if network, ok := file.content["crio"].(map[string]any); ok {
			crio.files = append(crio.files, file.path)
			crio.readCRIO(table(network, "network"))
		}
		if file.content["version"] != nil || file.content["plugins"] != nil || file.content["disabled_plugins"] != nil {
			containerd.files = append(containerd.files, file.path)
			disabled := words(file.content["disabled_plugins"])
			for _, name := range criPlugins {
				without = without || slices.Contains(disabled, name)
				containerd.readContainerd(table(file.content, "plugins", name, "cni"))
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

// judge looks for the runtime that fits best: there may be others, and files of one that does
// not run. While it is started again, it is as it was.
func (i *Installer) judge() verdict {
	if len(i.config.RuntimeConfigs) == 0 {
		return verdict{}
	}
	i.loader.find(i.config.Proc)
	if len(i.loader.running) == 0 && len(i.loader.last) > 0 {
		return i.judged
	}
	var best verdict
	f, _ := survey(i.config.ConfDir) // without a primary nothing is compared with it
	for n, r := range i.runtimes() {
		v := r.judge(i.config, f.list)
		if n == 0 || v.differs == nil && best.differs != nil {
			best = v
		}
	}
	i.judged = best
	return best
}

func (r runtime) judge(c Config, primary *list) verdict {
	v := verdict{runtime: fmt.Sprintf("%s (%s)", r.name, strings.Join(r.files, ", "))}
	var errs []error
	if !r.samePath(r.confDir, c.ConfDir) {
		errs = append(errs, fmt.Errorf("%s reads network configurations from %s, and install.cniConfDir is %s: give the runtime's (in the chart cniConfDir, or global.platform)", v.runtime, r.confDir, c.ConfDir))
	}
	if !slices.ContainsFunc(r.binDirs, func(dir string) bool { return r.samePath(dir, c.BinDir) }) {
		errs = append(errs, fmt.Errorf("%s looks for plugins in %s, and install.cniBinDir is %s: give the runtime's (in the chart cniBinDir, or global.platform)", v.runtime, strings.Join(r.binDirs, ", "), c.BinDir))
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

// samePath says whether a path of the runtime's and one of ours are of one directory, or whether
// that cannot be told: the runtime fills in a variable.
func (r runtime) samePath(theirs, ours string) bool {
	if strings.Contains(theirs, "$") || filepath.Clean(theirs) == filepath.Clean(ours) {
		return true
	}
	same := false
	_ = inside(r.root, theirs, func(here string) error { // what is not there is not the same
		a, errA := os.Stat(here)
		b, errB := os.Stat(ours)
		same = errA == nil && errB == nil && os.SameFile(a, b)
		return nil
	})
	return same
}
