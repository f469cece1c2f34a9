package netlab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// outsideEnv carries the name of the network namespace that Isolate left.
const outsideEnv = "FAIRLEAD_NETLAB_OUTSIDE"

// netnsDir is where namespaces are bind mounted, where the ip command looks too.
const netnsDir = "/run/netns"

// Isolate executes the calling program again, in network, mount and PID namespaces
// of its own, and returns there: with its own /proc, an empty /run, TMPDIR in it,
// and lo up. In the first process it does not return, unless with an error that
// says why the namespaces cannot be had: it passes signals on, and exits as the
// second one does. Whatever the second one made is gone when either of them ends.
//
// It has to come first in a program: what ran before it runs twice.
func Isolate() error {
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return fmt.Errorf("cannot tell the own network namespace: %w", err)
	}
	outside, second := os.LookupEnv(outsideEnv)
	if second && outside != here && os.Getpid() == 1 {
		if err := furnish(); err != nil {
			fmt.Fprintf(os.Stderr, "netlab: %v\n", err)
			os.Exit(1)
		}
		return nil
	}
	code, err := runAgain(here)
	if err != nil {
		return err
	}
	os.Exit(code)
	return nil
}

// runAgain executes the program in new namespaces and returns its exit code.
func runAgain(here string) (int, error) {
	if os.Geteuid() != 0 {
		return 0, errors.New("private namespaces need root")
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), outsideEnv+"="+here)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		// The thread that starts it lives as long as this process: nothing here ends
		// a goroutine that is locked to its thread.
		Pdeathsig: syscall.SIGKILL,
		// A terminal's interrupt then comes once, from here, not twice.
		Setpgid: true,
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer signal.Stop(signals)
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("cannot create private namespaces: %w (CAP_SYS_ADMIN is needed)", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			_ = cmd.Process.Signal(s) // fails only when it has just ended
		case err := <-ended:
			return exitCode(cmd.ProcessState, err)
		}
	}
}

// exitCode is a process's exit code as a shell would give it.
func exitCode(state *os.ProcessState, err error) (int, error) {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return 0, fmt.Errorf("cannot wait for the isolated process: %w", err)
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return state.ExitCode(), nil
}

// furnish makes the new namespaces fit for use.
func furnish() error {
	// Programs that this one starts may isolate themselves again.
	if err := os.Unsetenv(outsideEnv); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("cannot mount /proc: %w", err)
	}
	if err := furnishRun(); err != nil {
		return err
	}
	rtnl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("cannot open rtnetlink: %w", err)
	}
	defer rtnl.Close()
	return setUp(rtnl, "lo")
}

// furnishRun gives the program an empty /run, and puts its temporary files there.
func furnishRun() error {
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("cannot mount /run: %w", err)
	}
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	if err := os.Mkdir("/run/tmp", 0o1777); err != nil {
		return err
	}
	if err := os.Setenv("TMPDIR", "/run/tmp"); err != nil {
		return err
	}
	run, err := os.Stat("/run")
	if err != nil {
		return err
	}
	varRun, err := os.Stat("/var/run")
	if errors.Is(err, os.ErrNotExist) || err == nil && os.SameFile(run, varRun) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := unix.Mount("/run", "/var/run", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot mount /var/run: %w", err)
	}
	return nil
}
