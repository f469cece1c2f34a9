package demo

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func TestMain(m *testing.M) { netlab.Main(m, 11) }

// binaries builds what "make demo" builds, once, and returns the directory.
var binaries = sync.OnceValues(func() (string, error) {
	// Each demo has a /run of its own, where t.TempDir is. This mount is private too.
	const dir = "/dev/shm"
	return dir, errors.Join(
		unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"),
		netlab.Build("../..", dir, "./nodeagent/cmd/fairlead", "./cni/cmd/fairlead-cni", "./integration/cmd/nodeproxy", "./integration/cmd/demo"),
		netlab.Build("../cniplugins", dir+"/cni", "tool"),
	)
})

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	return exec.CommandContext(t.Context(), filepath.Join(dir, "demo"), args...)
}

// run runs the demo and returns what it printed and its exit code.
func run(t *testing.T, cmd *exec.Cmd) (string, int) {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// A told is a check as a run printed it.
type told struct {
	step   string
	passed bool
	title  string
}

var (
	stepLine  = regexp.MustCompile(`(?m)^(\d)  `)
	checkLine = regexp.MustCompile(`(?m)^   ([✓✗]) (.*?)(  .*)?$`)
)

func checks(out string) []told {
	var all []told
	steps := stepLine.FindAllStringSubmatchIndex(out, -1)
	for i, at := range steps {
		end := len(out)
		if i+1 < len(steps) {
			end = steps[i+1][0]
		}
		for _, line := range checkLine.FindAllStringSubmatch(out[at[0]:end], -1) {
			all = append(all, told{out[at[2]:at[3]], line[1] == "✓", line[2]})
		}
	}
	return all
}

func TestStoryInAPipe(t *testing.T) {
	netlab.Kernel(t)
	out, code := run(t, command(t))
	t.Log("\n" + out)
	if code != ExitPassed {
		t.Fatalf("exit code %d", code)
	}
	if strings.ContainsAny(out, "\x1b\r") || strings.Contains(out, " \n") {
		t.Error("there are control characters, or blanks at a line's end")
	}
	for _, says := range []string{
		"\n28 checks passed, 0 failed (",
		"no node proxy is connected to the agent",
		"   $ fairlead status\n   agent v0-test, up ",
		"3 Captured, 1 NotCaptured",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), strings.TrimSpace(strings.Join(strings.Fields(says), " "))) {
			t.Errorf("it does not say %q", says)
		}
	}
	all := checks(out)
	for _, check := range all {
		if !check.passed {
			t.Errorf("failed: %+v", check)
		}
	}
	for _, s := range Sabotages {
		if want := (told{fmt.Sprint(s.Step), true, s.Check}); !slices.Contains(all, want) {
			t.Errorf("sabotage %s is about %+v, but the checks are %+v", s.Name, want, all)
		}
	}
}

// Each sabotage is noticed, and by its check alone.
func TestSabotages(t *testing.T) {
	netlab.Kernel(t)
	for _, s := range Sabotages {
		t.Run(s.Name, func(t *testing.T) {
			t.Parallel()
			out, code := run(t, command(t, "--sabotage", s.Name))
			var failed []string
			all := checks(out)
			for _, check := range all {
				if !check.passed {
					failed = append(failed, check.title)
				}
			}
			if code != ExitFailed || len(all) != 28 || !slices.Equal(failed, []string{s.Check}) {
				t.Errorf("exit code %d, failed of %d: %q, want only %q\n%s", code, len(all), failed, s.Check, out)
			}
			for _, says := range []string{
				"\n27 checks passed, 1 failed (", "\nfailed: " + s.Check + "\n", "   ! sabotage: ",
				"\nlast lines of agent.log\n", "\nlast lines of nodeproxy.log\n", "\nlast lines of cni.log\n",
			} {
				if strings.Count(out, says) != 1 {
					t.Errorf("it does not say %q once\n%s", says, out)
				}
			}
		})
	}
}

// However it ends, nothing is left of it: no process and no mount, and so no
// namespace.
func TestInterruptedRunLeavesNothing(t *testing.T) {
	netlab.Kernel(t)
	for _, sig := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGKILL} {
		before := mounts(t)
		cmd := command(t)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(stdout)
		for line := ""; !strings.Contains(line, "client starts"); {
			if line, err = lines.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		// It is executed twice; and may have somebody ask the agent just now.
		if running := processes(t); len(running) < 4 {
			t.Errorf("running in the middle of the story: %q", running)
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(lines)
		if err != nil {
			t.Error(err)
		}
		_ = cmd.Wait() // its exit code is looked at
		if sig != unix.SIGKILL {
			if code := cmd.ProcessState.ExitCode(); code != ExitStopped || !strings.Contains(string(rest), "\ninterrupted; ") {
				t.Errorf("%s: exit code %d, then %q", sig, code, rest)
			}
		}
		netlab.Eventually(t, func() error {
			if left := processes(t); len(left) > 0 {
				return fmt.Errorf("%s left running: %q", sig, left)
			}
			return nil
		})
		if after := mounts(t); after != before {
			t.Errorf("%s left mounts behind:\n%s\nbefore:\n%s", sig, after, before)
		}
	}
}

func mounts(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// processes lists those whose program is one of ours.
func processes(t *testing.T) []string {
	t.Helper()
	dir, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	return netlab.Running(t, dir)
}

func TestWithoutRoot(t *testing.T) {
	netlab.Kernel(t)
	cmd := command(t)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, code := run(t, cmd); code != ExitUntold || !strings.Contains(out, "has to run as root") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestWithoutBinaries(t *testing.T) {
	netlab.Kernel(t)
	alone := filepath.Join("/dev/shm", "alone")
	cmd := command(t)
	if err := os.Mkdir(alone, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(cmd.Path, filepath.Join(alone, "demo")); err != nil {
		t.Fatal(err)
	}
	cmd.Path = filepath.Join(alone, "demo")
	if out, code := run(t, cmd); code != ExitUntold || !strings.Contains(out, alone+"/fairlead: no such file") || !strings.Contains(out, "make build demo-parts") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// The daemons say why they end, and the demo shows it.
func TestDaemonThatEnds(t *testing.T) {
	netlab.Kernel(t)
	dir, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	broken := filepath.Join("/dev/shm", "broken")
	if err := os.CopyFS(filepath.Join(broken, "cni"), os.DirFS(filepath.Join(dir, "cni"))); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"demo", "fairlead", "fairlead-cni"} {
		if err := os.Link(filepath.Join(dir, name), filepath.Join(broken, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(broken, "nodeproxy"), []byte("#!/bin/sh\necho it is all too much >&2; exit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := command(t)
	cmd.Path = filepath.Join(broken, "demo")
	out, code := run(t, cmd)
	if code != ExitUntold || !strings.Contains(out, "the nodeproxy has ended: exit status 3") || !strings.Contains(out, "last lines of nodeproxy.log\n   it is all too much\n") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

func TestCommandLine(t *testing.T) {
	netlab.Kernel(t)
	for _, help := range []string{"-h", "--help"} {
		out, code := run(t, command(t, help))
		if code != 0 {
			t.Errorf("%s: exit code %d", help, code)
		}
		for _, s := range Sabotages {
			if !strings.Contains(out, s.Name) || !strings.Contains(out, "noticed by: "+s.Check) {
				t.Errorf("%s does not tell of %s:\n%s", help, s.Name, out)
			}
		}
	}
	for _, args := range [][]string{{"--sabotage", "everything"}, {"again"}, {"--loud"}} {
		if out, code := run(t, command(t, args...)); code != ExitUntold || !strings.Contains(out, strings.TrimLeft(args[len(args)-1], "-")) {
			t.Errorf("%q: exit code %d: %s", args, code, out)
		}
	}
}
