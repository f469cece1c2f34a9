// Package bench measures what Fairlead promises to cost, on one node made of private
// namespaces: the real binaries, the real kernel, and in the same run what it is
// compared with. Each row is a median, or the percentile it names, of repetitions
// after a warm-up; nothing is estimated without saying so.
//
// # Failures it survives
//
//   - Other work on the machine: the load is printed, and the run is called noisy.
//   - A row that cannot be measured, or has no time left: the others are, and the
//     report says why; it counts as neither met nor missed.
//   - It is interrupted or killed: processes, mounts and namespaces hang on its own
//     PID and mount namespaces.
package bench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"
)

// Sizes say how much is done for each row.
type Sizes struct {
	Warm, Reps int           // repetitions of what takes milliseconds, the first Warm not counted
	Parallel   int           // ADDs at once
	Rounds     int           // how often they are
	Pods, More int           // pods on the full node, at first and in the end
	Restarts   int           // of the agent
	Settle     time.Duration // after the last pod, before memory is read; CPU is watched meanwhile
	Window     time.Duration // of counting sweeps
	Traffic    time.Duration // of each stream
	Calm       time.Duration // that a row waits at most for what the row before has left to the kernel
}

// Full is what the budgets are measured with.
func Full() Sizes {
	return Sizes{
		Warm: 5, Reps: 60, Parallel: 30, Rounds: 10, Pods: 250, More: 1000, Restarts: 5,
		Settle: 20 * time.Second, Window: 10 * time.Second, Traffic: time.Second, Calm: 10 * time.Second,
	}
}

// Options are what a run is told.
type Options struct {
	Bin   string         // where the binaries are
	Rows  *regexp.Regexp // those to be measured
	Sizes Sizes
	// Progress is told what is being done; it may be nil.
	Progress func(string)
}

// A bencher is one run.
type bencher struct {
	Options
	dir    string
	full   *node // shared by the rows that need many pods
	report *Report
}

// A row measures one thing, or several that come out of one effort.
type row struct {
	name string
	run  func(*bencher, context.Context) ([]Measure, error)
}

// rows stand about in the order of the budgets. ADDs come before what makes thousands of
// transactions of nftables: what those leave to the kernel is seen in every plugin's
// slowest runs, the bare one's too. Rows from idle on share a node, and each leaves it
// as the next expects it.
var rows = []row{
	{"plugin", (*bencher).plugin},
	{"add", (*bencher).addOne},
	{"add-parallel", (*bencher).addParallel},
	{"apply", (*bencher).apply},
	{"verify", (*bencher).verify},
	{"release", (*bencher).release},
	{"traffic", (*bencher).traffic},
	{"hostile", (*bencher).hostile},
	{"idle", (*bencher).idle},
	{"repair", (*bencher).repair},
	{"start", (*bencher).agentStart},
	{"sweep", (*bencher).sweep},
}

// Run measures. It has to run in private namespaces: see netlab.Isolate.
func Run(ctx context.Context, o Options) (*Report, error) {
	for _, program := range []string{"fairlead", "fairlead-cni", "nodeproxy", "cni/bridge", "cni/host-local"} {
		if _, err := os.Stat(filepath.Join(o.Bin, program)); err != nil {
			return nil, fmt.Errorf("%w: build it with make build demo-parts", err)
		}
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	b := &bencher{Options: o, dir: dir, report: newReport()}
	defer func() {
		b.closeFull()
		_ = os.RemoveAll(dir) // a tmpfs that goes with this process
	}()
	for _, r := range rows {
		if !b.Rows.MatchString(r.name) {
			continue
		}
		b.tell(r.name)
		var measures []Measure
		err := calm(ctx, b.Sizes.Calm)
		if err == nil {
			measures, err = r.run(b, ctx)
		}
		for i := range measures {
			measures[i].Row = r.name
			measures[i].judge()
		}
		b.report.Measures = append(b.report.Measures, measures...)
		if err != nil {
			if ctx.Err() != nil {
				err = fmt.Errorf("no time was left: %w", ctx.Err())
			}
			b.report.Failures = append(b.report.Failures, Failure{r.name, err.Error()})
		}
	}
	if len(b.report.Measures)+len(b.report.Failures) == 0 {
		return nil, fmt.Errorf("no row matches %q; there are: %s", b.Rows, strings.Join(RowNames(), ", "))
	}
	b.report.LoadAfter = loadAverage()
	return b.report, nil
}

// RowNames are what Options.Rows chooses from.
func RowNames() []string {
	names := make([]string, len(rows))
	for i, r := range rows {
		names[i] = r.name
	}
	return names
}

func (b *bencher) tell(what string) {
	if b.Progress != nil {
		b.Progress(what)
	}
}

func newReport() *Report {
	r := &Report{Began: time.Now().UTC(), CPUs: runtime.NumCPU(), Load: loadAverage()}
	r.Noisy = r.Load > 1
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		r.Kernel = strings.TrimSpace(string(release))
	}
	return r
}

// loadAverage is that of the last minute; -1 if the kernel does not say.
func loadAverage() float64 {
	text, err := os.ReadFile("/proc/loadavg")
	load := -1.0
	if err == nil {
		_, err = fmt.Sscan(string(text), &load)
	}
	if err != nil {
		return -1
	}
	return load
}

// repeat does work warm times for nothing and then n times, and returns how long it
// says that each took. It stops when ctx ends.
func repeat(ctx context.Context, warm, n int, work func() (time.Duration, error)) (sample, error) {
	var s sample
	for i := range warm + n {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		took, err := work()
		if err != nil {
			return nil, err
		}
		if i >= warm {
			s = append(s, took)
		}
	}
	return s, nil
}

// timed is how long work takes.
func timed(work func() error) (time.Duration, error) {
	began := time.Now()
	err := work()
	return time.Since(began), err
}

// rest lets time pass.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
