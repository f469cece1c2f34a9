package supervisor_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/cluster/supervisor"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// The test's program is also the supervisor, and the command that enters a group,
// here none.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 3 && os.Args[1] == "enter":
		path, err := exec.LookPath(os.Args[3])
		if err == nil {
			err = unix.Exec(path, os.Args[3:], os.Environ())
		}
		panic(err)
	case len(os.Args) == 3 && os.Args[1] == "supervise":
		unix.CloseOnExec(3)
		err := supervisor.Run(supervisor.Config{
			Socket: os.Args[2], Lifeline: os.NewFile(3, "lifeline"), Enter: []string{"/proc/self/exe", "enter"},
		})
		if err != nil {
			panic(err)
		}
	default:
		netlab.Main(m, 7)
	}
}

// A lab is a supervisor in a PID namespace of its own.
type lab struct {
	supervisor.Client
	t        *testing.T
	cmd      *exec.Cmd
	lifeline *os.File
}

func newLab(t *testing.T) *lab {
	t.Helper()
	netlab.Kernel(t)
	inside, outside, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, lifeline: outside}
	l.Socket = filepath.Join(t.TempDir(), "socket")
	l.cmd = exec.Command("/proc/self/exe", "supervise", l.Socket)
	l.cmd.ExtraFiles = []*os.File{inside}
	l.cmd.Stdout, l.cmd.Stderr = t.Output(), t.Output()
	l.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID}
	if err := l.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := inside.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.cmd.Process.Kill(); _ = l.cmd.Wait(); _ = outside.Close() })
	l.eventually("the supervisor answers", "true", func() string {
		_, err := l.List(t.Context())
		return fmt.Sprint(err == nil)
	})
	return l
}

func (l *lab) eventually(what, want string, got func() string) {
	l.t.Helper()
	deadline := time.After(time.Minute)
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		text := got()
		if text == want {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			l.t.Fatalf("%s (-want +got):\n%s", what, cmp.Diff(want, text))
		}
	}
}

func (l *lab) start(name string, machine bool, script string) {
	l.t.Helper()
	err := l.Start(l.t.Context(), supervisor.Service{
		Name: name, Args: []string{"sh", "-c", script}, Log: filepath.Join(l.t.TempDir(), "log"), Machine: machine,
	})
	if err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) services() string {
	all, err := l.List(l.t.Context())
	if err != nil {
		return err.Error()
	}
	var text strings.Builder
	for _, s := range all {
		fmt.Fprintf(&text, "%s running=%v ended=%d %s\n", s.Name, s.Running, s.Ended, s.Last)
	}
	return text.String()
}

// hasEnded waits for the supervisor, and then looks whether a file is free of locks
// that services hold as long as they live.
func (l *lab) hasEnded(lock string) {
	l.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- l.cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil && l.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != unix.SIGKILL {
			l.t.Fatal(err)
		}
	case <-time.After(time.Minute):
		l.t.Fatal("the supervisor does not end")
	}
	file, err := os.Open(lock)
	if err != nil {
		l.t.Fatal(err)
	}
	defer file.Close()
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		l.t.Errorf("a service lives still: %v", err)
	}
}

// locked starts a service, and in it a daemon, that hold a lock, and returns the
// lock's file.
func (l *lab) locked() string {
	l.t.Helper()
	file := filepath.Join(l.t.TempDir(), "lock")
	l.start("holder", true, fmt.Sprintf("exec 9>%s; flock -x 9; setsid sleep 1000 & echo >&9; trap '' TERM INT HUP; wait", file))
	l.eventually("the service holds the lock", "\n", func() string {
		content, _ := os.ReadFile(file) // not there yet
		return string(content)
	})
	return file
}

func TestServices(t *testing.T) {
	l := newLab(t)
	once := filepath.Join(t.TempDir(), "once")
	// Its child is left to the supervisor, which would show it as a zombie for ever.
	l.start("fails-once", false, fmt.Sprintf("[ -e %[1]s ] || { touch %[1]s; sleep 0 & exit 3; }; exec sleep 1000", once))
	l.start("stays", false, "exec sleep 1000")
	l.start("machine", true, "exit 4")
	l.eventually("the services", `fails-once running=true ended=1 exit status 3
stays running=true ended=0 
machine running=false ended=1 exit status 4
`, l.services)
	if err := l.Stop(t.Context(), "stays", unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := l.Stop(t.Context(), "stays", unix.SIGTERM); err != nil {
		t.Errorf("stopped again: %v", err)
	}
	err := l.Start(t.Context(), supervisor.Service{Name: "fails-once", Args: []string{"true"}, Log: os.DevNull})
	if want := "fails-once runs already"; err == nil || err.Error() != want {
		t.Errorf("started again: %v, want %s", err, want)
	}
	if got, want := l.services(), `fails-once running=true ended=1 exit status 3
stays running=false ended=0 stopped
machine running=false ended=1 exit status 4
`; got != want {
		t.Errorf("the services are\n%swant\n%s", got, want)
	}
	pid, err := l.Pid(t.Context())
	if err != nil || pid != l.cmd.Process.Pid {
		t.Errorf("the supervisor is %d (%v), want %d", pid, err, l.cmd.Process.Pid)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	if len(strings.Fields(string(children))) > 1 {
		t.Errorf("children are %s, want one", children)
	}
}

// Stopped in the second that it stays away, it is not started again.
func TestStoppedBeforeItIsStartedAgain(t *testing.T) {
	l := newLab(t)
	l.start("ends", false, "exit 3")
	l.eventually("the service", "ends running=false ended=1 exit status 3\n", l.services)
	if err := l.Stop(t.Context(), "ends", unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	// A later one that is started again shows that the time has come.
	l.start("later", false, "exit 3")
	l.eventually("the later service", "ends running=false ended=1 exit status 3\nlater running=false ended=2 exit status 3\n", l.services)
}

func TestAServiceThatCannotStart(t *testing.T) {
	l := newLab(t)
	err := l.Start(t.Context(), supervisor.Service{Name: "x", Args: []string{"true"}, Log: "/nowhere/log"})
	if want := "cannot start x: open /nowhere/log: no such file or directory"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestTheLifelineBreaks(t *testing.T) {
	l := newLab(t)
	lock := l.locked()
	if err := l.lifeline.Close(); err != nil {
		t.Fatal(err)
	}
	l.hasEnded(lock)
}

func TestKeptAndEnded(t *testing.T) {
	l := newLab(t)
	lock := l.locked()
	if err := l.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := l.lifeline.Close(); err != nil {
		t.Fatal(err)
	}
	for range 10 { // it has had the time to see that the lifeline is broken
		if got, want := l.services(), "holder running=true ended=0 \n"; got != want {
			t.Fatalf("kept, it has %q, want %q", got, want)
		}
	}
	if err := l.End(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.hasEnded(lock)
}

func TestKilledWhenItDoesNotAnswer(t *testing.T) {
	l := newLab(t)
	lock := l.locked()
	if err := l.cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := l.End(ctx); err == nil {
		t.Error("a stopped process has answered")
	}
	if err := l.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.hasEnded(lock)
}

func TestPeersThatTalkNonsense(t *testing.T) {
	l := newLab(t)
	for _, text := range []string{"", "nonsense", `{"Op":"no such"}`, `{"Op":`} {
		conn, err := net.Dial("unix", l.Socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if got := l.services(); got != "" {
		t.Errorf("it has %q, want nothing", got)
	}
}
