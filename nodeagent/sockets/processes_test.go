package sockets

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// fakeProc is a /proc of a test's own making: lines of a path, and either -> and what
// it is a link to, or what is in the file.
func fakeProc(t *testing.T, lines string) string {
	t.Helper()
	proc := t.TempDir()
	for line := range strings.Lines(lines) {
		name, content, _ := strings.Cut(strings.TrimSpace(line), " ")
		if name == "" {
			continue
		}
		path := filepath.Join(proc, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			if target, link := strings.CutPrefix(content, "-> "); link {
				err = os.Symlink(target, path)
			} else {
				err = os.WriteFile(path, []byte(content), 0o644)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return proc
}

// What /proc may look like, by one that is not the kernel's: processes that end while
// they are looked at, or that we may not look into, cannot be had to order.
func TestOddProc(t *testing.T) {
	netlab.Kernel(t)
	pod, host := netlab.NewNS(t, "pod"), netlab.NewNS(t, "host")
	at, err := nsfsAt(0, pod.Path)
	if err != nil {
		t.Fatal(err)
	}
	lines := func(text string) string {
		return strings.NewReplacer("POD", "-> "+pod.Path, "HOST", "-> "+host.Path).Replace(text)
	}
	const holds, lives = "\n7/fd/3 -> socket:[41]\n", "\n7/ns/net POD\n7/task/7/ns/net POD\n"
	for name, c := range map[string]struct{ proc, want string }{
		"a squatter":                  {lives + holds + "7/comm app", "port 15001/tcp: app (pid 7)"},
		"no name":                     {lives + holds, "port 15001/tcp:  (pid 7)"},
		"lives elsewhere":             {"7/ns/net HOST\n7/task/7/ns/net HOST" + holds, ""},
		"has a thread elsewhere":      {lives + "7/task/8/ns/net HOST" + holds, ""},
		"has a thread in the pod":     {"7/ns/net HOST\n7/task/7/ns/net HOST\n7/task/8/ns/net POD" + holds, ""},
		"is in the pod for a moment":  {"7/ns/net POD\n7/task/7/ns/net HOST" + holds, ""},
		"a thread has ended":          {lives + "7/task/8/comm x" + holds, "port 15001/tcp:  (pid 7)"},
		"all threads have ended":      {"7/ns/net POD\n7/task/7/comm x" + holds, ""},
		"its threads are hidden":      {"7/ns/net POD" + holds, ""},
		"its namespace is hidden":     {"7/comm app" + holds, ""},
		"its files are hidden":        {lives, ""},
		"a thread's cannot be told":   {lives + "7/task/8/ns/net -> /proc/self/ns/net/more" + holds, ""},
		"other files":                 {lives + "7/fd/0 -> /dev/null\n7/fd/1 -> pipe:[41]\n7/fd/2 -> socket:[42]\n7/fd/3 -> socket:[41\n7/fd/4 -> [41]", ""},
		"a file that is no link":      {lives + "7/fd/0 x" + holds, "port 15001/tcp:  (pid 7)"},
		"is no process":               {"self/ns/net POD\nself/fd/3 -> socket:[41]\nself/task/7/ns/net POD", ""},
		"the elder of two":            {strings.ReplaceAll(lives+holds, "7/", "10/") + lives + holds, "port 15001/tcp:  (pid 7)"},
		"different sockets, one port": {lives + "7/fd/0 -> socket:[41]\n7/fd/1 -> socket:[43]", "port 15001/tcp:  (pid 7)"},
		"different ports":             {lives + "7/fd/0 -> socket:[41]\n7/fd/1 -> socket:[44]", "port 15001/tcp:  (pid 7) port 15053/udp:  (pid 7)"},
		"different processes": {lives + holds + "8/ns/net POD\n8/task/8/ns/net POD\n8/fd/1 -> socket:[44]",
			"port 15001/tcp:  (pid 7) port 15053/udp:  (pid 8)"},
	} {
		tcp, udp := holding{ruleset.TCP, 15001}, holding{ruleset.UDP, 15053}
		s := search{at: at, left: maxFiles, held: map[uint64]holding{41: tcp, 43: tcp, 44: udp}}
		err := s.run(t.Context(), NewProcesses(fakeProc(t, lines(c.proc))))
		if got := strings.Trim(fmt.Sprint(s.found), "[]"); got != c.want || err != nil {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}

// A pod with a great many open files is looked at for so long.
func TestTooManyFiles(t *testing.T) {
	netlab.Kernel(t)
	pod := netlab.NewNS(t, "pod")
	at, err := nsfsAt(0, pod.Path)
	if err != nil {
		t.Fatal(err)
	}
	var proc strings.Builder
	for pid := 1; pid <= 5; pid++ {
		fmt.Fprintf(&proc, "%d/ns/net -> %s\n%[1]d/task/1/ns/net -> %[2]s\n", pid, pod.Path)
		for fd := range 10 {
			fmt.Fprintf(&proc, "%d/fd/%d -> socket:[%[1]d]\n", pid, fd)
		}
	}
	processes := NewProcesses(fakeProc(t, proc.String()))
	for left, want := range map[int]string{50: "[port 15001/tcp:  (pid 5)]", 41: "[port 15001/tcp:  (pid 5)]", 40: "[]", 1: "[]"} {
		s := search{at: at, left: left, held: map[uint64]holding{5: {ruleset.TCP, 15001}}}
		if err := s.run(t.Context(), processes); err != nil || fmt.Sprint(s.found) != want {
			t.Errorf("%d files: %v, %v; want %s", left, s.found, err, want)
		}
	}
}

// Who has come since the last walk is seen with the next, a second later at most.
func TestProcessesAreWalkedOnceASecond(t *testing.T) {
	netlab.Kernel(t)
	pod := netlab.NewNS(t, "pod")
	at, err := nsfsAt(0, pod.Path)
	if err != nil {
		t.Fatal(err)
	}
	proc := fakeProc(t, "7/ns/net -> "+pod.Path)
	processes := NewProcesses(proc)
	want := func(want string) {
		t.Helper()
		if pids, err := processes.in(t.Context(), at); err != nil || fmt.Sprint(pids) != want {
			t.Errorf("%v, %v; want %s", pids, err, want)
		}
	}
	want("[7]")
	if err := os.Rename(filepath.Join(proc, "7"), filepath.Join(proc, "8")); err != nil {
		t.Fatal(err)
	}
	processes.walked = time.Now().Add(time.Hour) // however slow the machine
	want("[7]")
	processes.walked = time.Now().Add(-freshness)
	want("[8]")
}
