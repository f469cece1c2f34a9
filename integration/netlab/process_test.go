package netlab_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// logged waits until a process's log is text.
func logged(t *testing.T, p *netlab.Process, text string) {
	t.Helper()
	netlab.Eventually(t, func() error {
		log, err := os.ReadFile(p.Log)
		if err == nil && string(log) != text {
			err = fmt.Errorf("the log is %q, want %q", log, text)
		}
		return err
	})
}

func TestProcess(t *testing.T) {
	dir := t.TempDir()
	p, err := netlab.Start(dir, "daemon", "/bin/sh", "-c", "trap 'echo told to end; exit 3' TERM; echo working; while :; do sleep 0.01; done")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	logged(t, p, "working\n")
	if err := errors.Join(p.Alive(), p.Pause(t.Context())); err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
	if err != nil || !strings.Contains(string(stat), ") T ") {
		t.Errorf("paused, it is %s, %v", stat, err)
	}
	if err := errors.Join(p.Resume(), p.End(t.Context(), unix.SIGTERM)); err != nil {
		t.Fatal(err)
	}
	if p.State() == nil || p.State().ExitCode() != 3 {
		t.Errorf("it ended so: %v", p.State())
	}
	if err := p.Alive(); !errors.Is(err, netlab.ErrEnded) || err.Error() != "the daemon has ended: exit status 3; its last words: working; told to end" {
		t.Errorf("it says: %v", err)
	}
	p.Kill() // has ended, and that is fine
	for name, err := range map[string]error{"end": p.End(t.Context(), unix.SIGTERM), "pause": p.Pause(t.Context()), "resume": p.Resume()} {
		if err == nil || !strings.Contains(err.Error(), "the daemon") {
			t.Errorf("%s after its end: %v", name, err)
		}
	}

	again, err := netlab.Start(dir, "daemon", "/bin/echo", "again")
	if err != nil {
		t.Fatal(err)
	}
	logged(t, again, "working\ntold to end\nagain\n")
	if _, err := netlab.Start(dir, "none", "/no/such/program"); err == nil || !strings.Contains(err.Error(), "the none") {
		t.Errorf("a program that is not there: %v", err)
	}
}

func TestProcessThatDoesNotEnd(t *testing.T) {
	p, err := netlab.Start(t.TempDir(), "deaf", "/bin/sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.01; done")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	logged(t, p, "deaf\n")
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if err := p.End(ctx, unix.SIGTERM); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the deaf does not end on terminated") {
		t.Errorf("got %v", err)
	}
}

func TestProcessInANamespace(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "node")
	p, err := n.Start(t.TempDir(), "daemon", "/bin/sleep", "1000")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	inside, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	var want string
	n.Do(t, func() { want, err = os.Readlink("/proc/thread-self/ns/net") })
	if err != nil || inside != want {
		t.Errorf("it is in %s, want %s, %v", inside, want, err)
	}
}

func TestLastWords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if got := netlab.LastWords(path, 2); len(got) != 1 || !strings.Contains(got[0], "no such file") {
		t.Errorf("without a file: %q", got)
	}
	for text, want := range map[string][]string{
		"":                  {""},
		"one\n":             {"one"},
		"one\ntwo\nthree\n": {"two", "three"},
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := netlab.LastWords(path, 2); !reflect.DeepEqual(got, want) {
			t.Errorf("of %q: %q", text, got)
		}
	}
}

func TestAwait(t *testing.T) {
	not := errors.New("not yet")
	for name, tt := range map[string]struct {
		answers []error // the last one stays
		want    error
		took    time.Duration
	}{
		"at once":           {[]error{nil}, nil, 0},
		"later":             {[]error{not, not, nil}, nil, 2 * time.Second},
		"never":             {[]error{not}, not, 5 * time.Second},
		"the process ended": {[]error{not, netlab.ErrEnded}, netlab.ErrEnded, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				asked, began := 0, time.Now()
				err := netlab.Await(t.Context(), 5*time.Second+time.Millisecond, time.Second, func(context.Context) error {
					asked++
					return tt.answers[min(asked, len(tt.answers))-1]
				})
				if err != tt.want || time.Since(began).Truncate(time.Second) != tt.took {
					t.Errorf("got %v after %s, want %v after %s", err, time.Since(began), tt.want, tt.took)
				}
			})
		})
	}
	t.Run("the end is not the reason", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			err := netlab.Await(t.Context(), 5*time.Second, 3*time.Second, func(ctx context.Context) error {
				<-time.After(3 * time.Second)
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return not
			})
			if err != not {
				t.Errorf("got %v", err)
			}
		})
	})
}
