package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
)

// clusterLimit bounds the time of the cluster's rows together, the cluster's start in it. What
// the cluster consists of is built before.
const clusterLimit = 12 * time.Minute

// cluster has those of the cluster's rows measured that are chosen.
func (b *bencher) cluster(ctx context.Context) {
	chosen := slices.DeleteFunc(b.Chosen(), func(name string) bool { return !slices.Contains(figures.ClusterRows, name) })
	if len(chosen) == 0 {
		return
	}
	b.tell("a cluster, for " + strings.Join(chosen, ", "))
	ctx, cancel := context.WithTimeout(ctx, clusterLimit)
	defer cancel()
	measured, err := clusterFigures(ctx, filepath.Join(b.Bin, "clusterbench"), chosen)
	b.report.Measures = append(b.report.Measures, measured.Measures...)
	b.report.Failures = append(b.report.Failures, measured.Failures...)
	for _, name := range chosen {
		if err != nil && !measured.Has(name) {
			b.report.Add(name, nil, err)
		}
	}
}

// clusterFigures runs the program. What it prints to stderr is for people. If it ends
// early, what it has measured until then is good.
func clusterFigures(ctx context.Context, program string, rows []string) (figures.Figures, error) {
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "-rows", strings.Join(rows, ","))
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	// It has a cluster to end.
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = time.Minute
	err := cmd.Run()
	var measured figures.Figures
	switch garbage := json.Unmarshal(out.Bytes(), &measured); {
	case errors.Is(err, os.ErrNotExist):
		err = fmt.Errorf("%w: build it with make bench-cluster", err)
	case ctx.Err() != nil:
		err = fmt.Errorf("no time was left: %w", ctx.Err())
	case err != nil:
		err = fmt.Errorf("%s: %w; it has said why", filepath.Base(program), err)
	case garbage != nil:
		err = fmt.Errorf("cannot read what %s has measured: %w", filepath.Base(program), garbage)
	}
	return measured, err
}
