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
	"slices"
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
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
	Bin   string         // where the binaries are; clusterbench's too, for its rows
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
	report *figures.Report
}

// A row measures one thing, or several that come out of one effort.
type row struct {
	name string
	run  func(*bencher, context.Context) ([]figures.Measure, error)
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

// limit bounds the time of all rows but the cluster's.
const limit = 5 * time.Minute

// Run measures. It has to run in private namespaces: see netlab.Isolate.
func Run(ctx context.Context, o Options) (*figures.Report, error) {
	if len(o.Chosen()) == 0 {
		return nil, fmt.Errorf("no row matches %q; there are: %s", o.Rows, strings.Join(RowNames(), ", "))
	}
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
	b.own(ctx)
	_ = os.RemoveAll(dir) // a tmpfs that goes with this process
	b.cluster(ctx)
	b.report.LoadAfter = loadAverage()
	return b.report, nil
}

// own measures the rows that need no cluster.
func (b *bencher) own(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	defer b.closeFull()
	for _, r := range rows {
		if !b.Rows.MatchString(r.name) {
			continue
		}
		b.tell(r.name)
		var measures []figures.Measure
		err := calm(ctx, b.Sizes.Calm)
		if err == nil {
			measures, err = r.run(b, ctx)
		}
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("no time was left: %w", ctx.Err())
		}
		b.report.Add(r.name, measures, err)
	}
}

// RowNames are what Options.Rows chooses from.
func RowNames() []string {
	var names []string
	for _, r := range rows {
		names = append(names, r.name)
	}
	return append(names, figures.ClusterRows...)
}

// Chosen are the names of the rows to be measured.
func (o Options) Chosen() []string {
	return slices.DeleteFunc(RowNames(), func(name string) bool { return !o.Rows.MatchString(name) })
}

func (b *bencher) tell(what string) {
	if b.Progress != nil {
		b.Progress(what)
	}
}

func newReport() *figures.Report {
	r := &figures.Report{Began: time.Now().UTC(), CPUs: runtime.NumCPU(), Load: loadAverage()}
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
func repeat(ctx context.Context, warm, n int, work func() (time.Duration, error)) (figures.Sample, error) {
	var s figures.Sample
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
