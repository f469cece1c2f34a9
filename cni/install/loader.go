package install

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// runtimeNames are the processes that load the runtime's network configurations.
var runtimeNames = []string{"containerd", "crio", "k3s-server", "k3s-agent", "cri-dockerd"}

// A loader knows which version of libcni the runtime has: every Go program says what it
// is made of. One that has been looked at is not looked at again.
type loader struct {
	exe     string // of the process, as /proc has it, and its name
	process string
	version string
}

// passesOver says why the runtime would not load a drop-in; nil if it would, or if that
// cannot be told.
func (l *loader) passesOver(proc string) error {
	if l.find(proc); l.version == "" || atLeast13(l.version) {
		return nil
	}
	return fmt.Errorf("%s has libcni %s, and before 1.3 it passes over what mode dropin writes, without a word: set install.mode to owned or chained", l.process, l.version)
}

// find looks for the runtime's process, unless the last one still runs.
func (l *loader) find(proc string) {
	if l.exe != "" && exists(l.exe) {
		return
	}
	*l = loader{}
	names, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "comm")) // the pattern is a valid one
	for _, path := range names {
		text, err := os.ReadFile(path)
		name := strings.TrimSpace(string(text))
		if err != nil || !slices.Contains(runtimeNames, name) {
			continue
		}
		exe := filepath.Join(filepath.Dir(path), "exe")
		info, err := buildinfo.ReadFile(exe)
		if err != nil {
			continue // it is no Go program, or has ended
		}
		for _, module := range info.Deps {
			if module.Path == "github.com/containernetworking/cni" {
				*l = loader{exe: exe, process: name, version: module.Version}
				return
			}
		}
	}
}

// atLeast13 says whether a version is 1.3 or later, or none that we can read.
func atLeast13(version string) bool {
	var major, minor int
	if n, _ := fmt.Sscanf(version, "v%d.%d", &major, &minor); n < 2 {
		return true
	}
	return major > 1 || major == 1 && minor >= 3
}
