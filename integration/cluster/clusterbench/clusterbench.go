// Package clusterbench measures what Fairlead costs on a Kubernetes cluster made of
// namespaces: the rows of "make bench" that need one. The agent and the reference proxy
// are installed with the charts; what they are compared with is measured on the same
// cluster before that.
//
// # Failures it survives
//
//   - A row that cannot be measured: the others are, and the report says why.
//   - A cluster that does not start, an installation that does not get ready: said for
//     each row that needs it.
//   - It is interrupted or killed: nothing is left of the cluster, see package cluster.
package clusterbench

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
	"github.com/fairlead-mesh/fairlead/integration/cluster"
)

// Sizes say how much is done for each row.
type Sizes struct {
	Warm, Starts int           // pods, one at a time, the first Warm not counted
	Deployments  int           // one after the other
	Replicas     int           // of each
	Near, All    int           // pods of the one crowded node, and in the API
	Settle       time.Duration // after the last pod, before memory is read
}

// Full is what the budgets are measured with.
func Full() Sizes {
	return Sizes{Warm: 3, Starts: 20, Deployments: 3, Replicas: 30, Near: 250, All: 5000, Settle: time.Minute}
}

// Options are what a run is told.
type Options struct {
	Rows []string // of figures.ClusterRows
	Root string   // of the repository, where everything is built
	Dir  string   // where the cluster is kept
	Sizes
	Out io.Writer // is told what is being done, for people
}

func (o Options) bin(name string) string { return filepath.Join(o.Root, "bin", name) }

// A bencher is one run.
type bencher struct {
	Options
	began   time.Time
	cluster *cluster.Cluster
	api     *api
	dir     string // for what is only needed meanwhile
}

// A row is measured in two steps: what it is compared with, before anything of ours is
// installed, and then the rest.
type row struct {
	name          string
	without       func(context.Context) error
	with          func(context.Context) ([]figures.Measure, error)
	notInstalling bool // with needs no installation
}

func (b *bencher) rows() []row {
	starts, deployments := startRow{bencher: b}, deploymentRow{bencher: b}
	return []row{
		{name: "cluster-start", without: starts.without, with: starts.with},
		{name: "cluster-deployment", without: deployments.without, with: deployments.with},
		{name: "cluster-memory", without: func(context.Context) error { return nil }, with: b.memory, notInstalling: true},
	}
}

// Run measures.
func Run(ctx context.Context, o Options) (f figures.Figures, err error) {
	for _, name := range o.Rows {
		if !slices.Contains(figures.ClusterRows, name) {
			return f, fmt.Errorf("there is no row %q; there are: %s", name, strings.Join(figures.ClusterRows, ", "))
		}
	}
	dir, err := os.MkdirTemp("", "clusterbench")
	if err != nil {
		return f, err
	}
	defer func() { _ = os.RemoveAll(dir) }() // else the machine's own business
	b := &bencher{Options: o, began: time.Now(), dir: dir}
	b.cluster, err = cluster.Start(ctx, cluster.Config{Dir: o.Dir, Source: filepath.Join(o.Root, "integration/cluster"), Out: o.Out})
	if err != nil {
		return f, err
	}
	defer func() {
		if closed := b.cluster.Close(); err == nil {
			err = closed
		}
	}()
	b.api, err = openAPI(ctx, b.cluster)
	if err != nil {
		return f, err
	}
	defer b.api.close()
	b.measure(ctx, &f)
	return f, nil
}

func (b *bencher) measure(ctx context.Context, f *figures.Figures) {
	rows := slices.DeleteFunc(b.rows(), func(r row) bool { return !slices.Contains(b.Rows, r.name) })
	failed := map[string]bool{}
	for _, r := range rows {
		b.say("%s, without us", r.name)
		if err := r.without(ctx); err != nil {
			f.Add(r.name, nil, fmt.Errorf("without us: %w", err))
			failed[r.name] = true
		}
	}
	var installed error
	if slices.ContainsFunc(rows, func(r row) bool { return !r.notInstalling }) {
		b.say("installing")
		installed = b.install(ctx)
	}
	for _, r := range rows {
		switch {
		case failed[r.name]:
		case installed != nil && !r.notInstalling:
			f.Add(r.name, nil, installed)
		default:
			b.say("%s", r.name)
			measures, err := r.with(ctx)
			f.Add(r.name, measures, err)
		}
	}
}

func (b *bencher) say(format string, args ...any) {
	fmt.Fprintf(b.Out, "%5.0f s  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}
