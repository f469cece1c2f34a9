//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func TestMain(m *testing.M) {
	if os.Getenv(starterEnv) != "" {
		beStarter()
		return
	}
	netlab.Main(m, 14)
}

// dir is where the tests keep their cluster, one after the other. It is the same one
// in each run, so that a run clears what a killed one left.
func dir(t *testing.T) string {
	t.Helper()
	playing, err := cluster.DefaultDir()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(filepath.Dir(playing), "e2e")
}

// patience is how long anything may take on a busy machine.
const patience = 2 * time.Minute

// start starts a cluster that the test closes.
func start(t *testing.T, nodes int) *cluster.Cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // it may have to be built
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Config{Nodes: nodes, Dir: dir(t), Source: "..", Out: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // for a test that fails before it closes it
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// build builds what a start would have to build first.
func build(t *testing.T) {
	t.Helper()
	if _, err := cluster.Build(t.Context(), "..", t.Output()); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until got returns want, and fails with what it returned last.
func eventually(t *testing.T, what, want string, got func() (string, error)) {
	t.Helper()
	var text string
	err := netlab.Await(t.Context(), patience, 200*time.Millisecond, func(context.Context) (err error) {
		if text, err = got(); err == nil && text != want {
			err = errors.New("it differs")
		}
		return err
	})
	if err != nil {
		t.Fatalf("%s: not as it should be (-want +got), error %v:\n%s", what, err, cmp.Diff(want, text))
	}
}

// kubectl runs kubectl, which has to succeed.
func kubectl(t *testing.T, c *cluster.Cluster, args ...string) string {
	t.Helper()
	out, err := c.Kubectl(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func apply(t *testing.T, c *cluster.Cluster, manifest string) {
	t.Helper()
	cmd, err := c.KubectlCommand(t.Context(), "apply", "-f", "-")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl apply: %v\n%s", err, out)
	}
}

// get asks a server in the cluster, from outside of all nodes.
func get(t *testing.T, c *cluster.Cluster, url string) (string, error) {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DialContext: c.Dial, DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// machineBefore is the machine's state without what a killed run has left.
func machineBefore(t *testing.T) string {
	t.Helper()
	if err := cluster.Down(t.Context(), dir(t)); err != nil {
		t.Fatal(err)
	}
	return machineState(t)
}

// unchanged fails if the machine is not as it was.
func unchanged(t *testing.T, before string) {
	t.Helper()
	eventually(t, "the machine after the cluster", before, func() (string, error) { return machineState(t), nil })
}

// A second cluster in the same place is refused, and does the first one no harm.
func TestOneClusterInAPlace(t *testing.T) {
	netlab.Kernel(t)
	before := machineBefore(t)
	c := start(t, 1)
	_, err := cluster.Start(t.Context(), cluster.Config{Dir: dir(t), Source: ".."})
	if want := "a cluster runs in " + dir(t) + " already"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("the second start: %v, want %q", err, want)
	}
	if out := kubectl(t, c, "get", "nodes", "-o", "name"); out != "node/n1\n" {
		t.Errorf("the first cluster has now %q", out)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	unchanged(t, before)
	if err := c.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

// Whatever was there when a start was interrupted, nothing is left.
func TestInterruptedStart(t *testing.T) {
	netlab.Kernel(t)
	build(t)
	before := machineBefore(t)
	for _, at := range []string{"the API server answers", "n1 has booted, and has its images"} {
		ctx, cancel := context.WithCancelCause(t.Context())
		interrupted := errors.New("interrupted")
		read, write := io.Pipe()
		go func() {
			for lines := bufio.NewScanner(read); lines.Scan(); {
				if strings.HasSuffix(lines.Text(), at) {
					cancel(interrupted)
				}
			}
		}()
		c, err := cluster.Start(ctx, cluster.Config{Dir: dir(t), Source: "..", Out: write})
		if err == nil { // it was too late
			err = c.Close()
		} else if !errors.Is(err, interrupted) && !strings.Contains(err.Error(), interrupted.Error()) {
			t.Errorf("interrupted when %s: %v", at, err)
		}
		if err := write.Close(); err != nil {
			t.Error(err)
		}
		t.Logf("interrupted when %s: %v", at, err)
		unchanged(t, before)
	}
}

// starterEnv names the directory in which a process that TestStarterKilled starts is
// to start a cluster.
const starterEnv = "FAIRLEAD_E2E_START"

func beStarter() {
	_, err := cluster.Start(context.Background(), cluster.Config{Dir: os.Getenv(starterEnv), Source: "..", Out: os.Stdout})
	if err != nil {
		panic(err)
	}
	select {}
}

// A starter that is killed takes its cluster with it, and a later start finds nothing
// in its way.
func TestStarterKilled(t *testing.T) {
	netlab.Kernel(t)
	build(t)
	before := machineBefore(t)
	for _, at := range []string{"the API server answers", "1 node ready"} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), starterEnv+"="+dir(t))
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		for lines := bufio.NewScanner(out); lines.Scan() && !strings.HasSuffix(lines.Text(), at); {
			t.Log(lines.Text())
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the starter ended by itself: %v", err)
		}
		// Its children are ours now: we are the first process here.
		eventually(t, "the machine after the starter was killed", before, func() (string, error) {
			_, _ = syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
			return machineState(t), nil
		})
	}
	if err := start(t, 1).Close(); err != nil {
		t.Error(err)
	}
	unchanged(t, before)
}
