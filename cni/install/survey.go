package install

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
)

// istioList is the list that istio-cni derives for itself.
const istioList = "02-istio-cni.conflist"

// maxConfig is far more than any network configuration has.
const maxConfig = 1 << 20

// A found is what stands in the runtime's directory of network configurations.
type found struct {
	dir     string
	names   []string // of configurations, but for our list's, in the order that the runtime has
	primary string   // the name of the file that others made first
	list    *list    // the primary's
}

// survey looks for the primary, in the runtime's own order.
func survey(dir string) (*found, error) {
	f := &found{dir: dir}
	var err error
	if f.names, err = configs(dir); err != nil {
		return f, fmt.Errorf("cannot look for network configurations: %w", err)
	}
	for _, name := range f.names {
		if name == istioList {
			continue
		}
		f.primary = name
		l, err := f.load(name)
		if err != nil {
			return f, err
		}
		if !l.meshOnly() {
			f.list = l
			return f, nil
		}
	}
	f.primary = ""
	return f, fmt.Errorf("there is no primary network configuration in %s, waiting for it: install the node's CNI plugin (Calico, Cilium, kindnet, ...), "+
		"or give the directory that the runtime uses as install.cniConfDir (in the chart cniConfDir, or global.platform)", dir)
}

// configs are the names of configurations, but for our list's, in the order of names as
// the runtime has it.
func configs(dir string) ([]string, error) {
	var names []string
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if name := entry.Name(); !entry.IsDir() && isConfig(name) && name != ListName {
			names = append(names, name)
		}
	}
	return names, err
}

func (f *found) load(name string) (*list, error) {
	text, err := read(filepath.Join(f.dir, name))
	if err != nil {
		return nil, fmt.Errorf("cannot read the primary network configuration: %w", err)
	}
	l, err := parseList(name, text)
	if err != nil {
		return nil, fmt.Errorf("the primary network configuration %s is broken, waiting for its owner to write it again: %w", filepath.Join(f.dir, name), err)
	}
	return l, nil
}

// before is the name of a file that the runtime takes instead of this one.
func (f *found) before(name string) string {
	if len(f.names) > 0 && f.names[0] < name {
		return f.names[0]
	}
	return ""
}

// isConfig says whether the runtime takes a file of this name for a configuration.
func isConfig(name string) bool {
	return slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(name))
}

func read(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // reading a pipe would wait for its writer
		return nil, fmt.Errorf("%s is not a file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(file, maxConfig+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	if len(text) > maxConfig {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxConfig)
	}
	return text, nil
}
