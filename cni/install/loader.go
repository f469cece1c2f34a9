package install

import (
	"debug/buildinfo"
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// runtimeNames are the processes that load the runtime's network configurations.
var runtimeNames = []string{"containerd", "crio", "k3s-server", "k3s-agent", "cri-dockerd"}

// A loader knows the runtime's processes: which version of libcni each has, for every Go
// program says what it is made of, and what it was told to read. One that has been looked at is
// not looked at again.
type loader struct {
	running []process
	last    []process // those that ran when any did
}

// A process may be the runtime's.
type process struct {
	exe     string // as /proc has it
	name    string
	version string   // of libcni
	root    string   // its root directory
	told    []string // what it was told to read; see toldTo
}

// passesOver says why the runtime would not load a drop-in; nil if it would, or if that
// cannot be told.
func (l *loader) passesOver(proc string) error {
	l.find(proc)
	for _, p := range l.running {
		if enough, known := atLeast(p.version, 1, 3); known && !enough {
			return fmt.Errorf("%s has libcni %s, and before 1.3 it passes over what mode dropin writes, without a word: set install.mode to owned or chained", p.name, p.version)
		}
	}
	return nil
}

// runtimeRefuses11 says why the runtime may not take a list of version 1.1.0: libcni before 1.2
// fails every ADD of one. While a runtime is started again, it is the one that ran before.
func (l *loader) runtimeRefuses11(proc string) error {
	l.find(proc)
	if len(l.last) == 0 {
		return unsure{errors.New("which libcni the container runtime has cannot be told: no process is seen that says it (the agent needs the node's process IDs, hostPID)")}
	}
	for _, p := range l.last {
		switch enough, known := atLeast(p.version, 1, 2); {
		case !known:
			return fmt.Errorf("%s has libcni of an unknown version, %q", p.name, p.version)
		case !enough:
			return fmt.Errorf("%s has libcni %s, which before 1.2 fails every ADD of such a list: update the runtime (containerd 2)", p.name, p.version)
		}
	}
	return nil
}

// Runtimes yields the processes that may be the node's container runtime, by their
// directories, and their names. What runs in a pod, as one in Docker does, is none of the
// node's: it has process IDs of its own.
func Runtimes(proc string) iter.Seq2[string, string] {
	return func(yield func(dir, name string) bool) {
		nodes, _ := os.Readlink(filepath.Join(proc, "1", "ns", "pid"))
		paths, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "comm")) // the pattern is a valid one
		for _, path := range paths {
			text, err := os.ReadFile(path)
			dir, name := filepath.Dir(path), strings.TrimSpace(string(text))
			if err != nil || !slices.Contains(runtimeNames, name) {
				continue
			}
			if its, err := os.Readlink(filepath.Join(dir, "ns", "pid")); err != nil || its != nodes {
				continue
			}
			if !yield(dir, name) {
				return
			}
		}
	}
}

// find looks for the runtime's processes, unless the last ones still run.
func (l *loader) find(proc string) {
	if len(l.running) > 0 && !slices.ContainsFunc(l.running, func(p process) bool { return !exists(p.exe) }) {
		return
	}
	l.running = nil
	for dir, name := range Runtimes(proc) {
		exe := filepath.Join(dir, "exe")
		info, err := buildinfo.ReadFile(exe)
		if err != nil {
			continue // it is no Go program, or has ended
		}
		for _, module := range info.Deps {
			if module.Path == "github.com/containernetworking/cni" {
				if module.Replace != nil {
					module = module.Replace
				}
				l.running = append(l.running, process{exe, name, module.Version, filepath.Join(dir, "root"), toldTo(dir, name)})
			}
		}
	}
	if len(l.running) > 0 {
		l.last = l.running
	}
}

// atLeast compares a version, if it is one that we can read.
func atLeast(version string, wantMajor, wantMinor int) (enough, known bool) {
	var major, minor int
	if n, _ := fmt.Sscanf(strings.TrimPrefix(version, "v"), "%d.%d", &major, &minor); n < 2 {
		return false, false
	}
	return major > wantMajor || major == wantMajor && minor >= wantMinor, true
}
