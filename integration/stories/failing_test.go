package stories

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// A recorder is the testing.T of a story that is meant to fail.
type recorder struct {
	testing.TB
	log    strings.Builder
	failed bool
}

func (r *recorder) Run(_ string, story func(testscript.T)) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		story(r)
	}()
	<-done
}

func (r *recorder) Parallel()                         {}
func (r *recorder) Verbose() bool                     { return false }
func (r *recorder) Failed() bool                      { return r.failed }
func (r *recorder) Log(args ...any)                   { fmt.Fprintln(&r.log, args...) }
func (r *recorder) Logf(format string, args ...any)   { fmt.Fprintf(&r.log, format+"\n", args...) }
func (r *recorder) Errorf(format string, args ...any) { r.failed = true; r.Logf(format, args...) }
func (r *recorder) FailNow()                          { r.failed = true; runtime.Goexit() }
func (r *recorder) Fatal(args ...any)                 { r.Log(args...); r.FailNow() }

// A story that fails says which line of it did and why, shows what the daemons have
// logged, and leaves nothing behind.
func TestFailingStories(t *testing.T) {
	const begin = "node\nagent start\nproxy start\npod web istio.io/dataplane-mode=ambient\nadd web\n"
	for name, tt := range map[string]struct {
		story string
		says  []string
	}{
		"another-state": {begin + "status\nstdout 'web +NotCaptured'", []string{
			"story.txtar:7: no match for `web +NotCaptured`", "shop       web  Captured  OK",
			"agent.log:", `msg="pod started" pod=shop/web`, "nodeproxy.log:", `msg="workload is up" uid=uid-of-web`, "cni.log:", "the agent agreed",
		}},
		"success":      {begin + "! connect web", []string{"story.txtar:6: connect succeeds, and should not", "through the proxy"}},
		"under-way":    {begin + "proxy pause\npod db istio.io/dataplane-mode=ambient\nadd db &\nadd none", []string{"story.txtar:9: add fails", "there is no pod none"}},
		"dead-agent":   {"node 'sweepIntervall: 1s'\nagent start", []string{"the agent has ended: exit status 1", "sweepIntervall"}},
		"arguments":    {begin + "! send web", []string{"story.txtar:6: send: wrong arguments"}},
		"beginning":    {"agent start", []string{"a story begins with node"}},
		"not-repeated": {"node\neventually a flush web", []string{"there is no command flush"}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "story.txtar")
			if err := os.WriteFile(file, []byte(tt.story+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			r := &recorder{TB: t}
			testscript.RunT(r, testscript.Params{Files: []string{file}, Setup: setup, Cmds: scripted()})
			if !r.failed {
				t.Error("it succeeds")
			}
			for _, says := range tt.says {
				if !strings.Contains(r.log.String(), says) {
					t.Errorf("it does not say %q:\n%s", says, &r.log)
				}
			}
			if left := leftBehind(t); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// leftBehind lists the namespaces that are mounted, and the programs of ours that run.
func leftBehind(t *testing.T) []string {
	t.Helper()
	left, err := filepath.Glob("/run/netns/*")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	return append(left, netlab.Running(t, dir)...)
}
