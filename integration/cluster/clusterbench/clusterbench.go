// Package clusterbench measures what Fairlead costs on a Kubernetes cluster made of
// namespaces: the rows of "make bench" that need one. It has two nodes. On one the agent
// and the reference proxy are installed, with the charts; on the other nothing is. What
// is compared happens on both in turn, so that both have the same machine.
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
	"sync"
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

// A row measures one thing, or several that come out of one effort.
type row struct {
	name    string
	install bool // it needs an agent that is installed
	run     func(*bencher, context.Context) ([]figures.Measure, error)
}

var rows = []row{
	{"cluster-start", true, (*bencher).starts},
	{"cluster-deployment", true, (*bencher).deployments},
	{"cluster-memory", false, (*bencher).memory},
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
	b.cluster, err = cluster.Start(ctx, cluster.Config{Nodes: 2, Dir: o.Dir, Source: filepath.Join(o.Root, "integration/cluster"), Out: o.Out})
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
	install := sync.OnceValue(func() error { return b.install(ctx) })
	for _, r := range rows {
		if !slices.Contains(b.Rows, r.name) {
			continue
		}
		var measures []figures.Measure
		var err error
		if r.install {
			err = install()
		}
		if err == nil {
			b.say("%s", r.name)
			measures, err = r.run(b, ctx)
		}
		if err != nil && ctx.Err() != nil {
			err = fmt.Errorf("no time was left: %w", err)
		}
		f.Add(r.name, measures, err)
	}
}

// ours is the node that has an agent, and bare the one that has none.
func (b *bencher) ours() *cluster.Node { return b.cluster.Nodes[0] }
func (b *bencher) bare() *cluster.Node { return b.cluster.Nodes[1] }

func (b *bencher) say(format string, args ...any) {
	fmt.Fprintf(b.Out, "%5.0f s  %s\n", time.Since(b.began).Seconds(), fmt.Sprintf(format, args...))
}
