package netlab_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// helperEnv tells the test binary to be an ordinary isolated program, and which.
const helperEnv = "NETLAB_TEST_HELPER"

// helper is that program. It does not return.
func helper() {
	if err := netlab.Isolate(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(99)
	}
	switch os.Getenv(helperEnv) {
	case "exit 7":
		os.Exit(7)
	case "catch":
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		fmt.Println("ready")
		<-signals
		os.Exit(5)
	default: // with a child that holds standard output open as long as it lives
		cmd := exec.Command("sleep", "1000")
		cmd.Stdout = os.Stdout
		if err := cmd.Start(); err != nil {
			os.Exit(98)
		}
		fmt.Println("ready")
		select {}
	}
}

// startHelper starts the program, and waits until it is ready.
func startHelper(t *testing.T, what string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"="+what)
	cmd.Stdout, cmd.Stderr = write, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := write.Close(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // has usually ended
		_ = read.Close()
	})
	if err := read.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	out := bufio.NewReader(read)
	if line, err := out.ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("the program said %q, %v", line, err)
	}
	return cmd, out
}

func TestIsolateGivesTheExitCode(t *testing.T) {
	netlab.Kernel(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperEnv+"=exit 7")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 || len(out) != 0 {
		t.Errorf("got %v and %q, want exit code 7", err, out)
	}
}

func TestIsolatePassesSignalsOn(t *testing.T) {
	netlab.Kernel(t)
	cmd, _ := startHelper(t, "catch")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 5 {
		t.Errorf("the isolated program did not see the signal: %v", err)
	}
}

func TestKilledProgramLeavesNoProcess(t *testing.T) {
	netlab.Kernel(t)
	for _, sig := range []syscall.Signal{unix.SIGKILL, unix.SIGINT} {
		cmd, out := startHelper(t, "hang")
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		err := cmd.Wait()
		// The end of standard output: nobody who inherited it lives.
		if rest, readErr := io.ReadAll(out); readErr != nil {
			t.Errorf("after %v something lives on: %v (%q)", sig, readErr, strings.TrimSpace(string(rest)))
		}
		if err == nil {
			t.Errorf("after %v the exit code was 0", sig)
		}
	}
}
