package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func TestMain(m *testing.M) { netlab.Main(m, 8) }

// tiny is a run that says nothing about the figures, and goes by every row.
func tiny() Sizes {
	return Sizes{
		Warm: 1, Reps: 2, Parallel: 3, Rounds: 1, Pods: 3, More: 5, Restarts: 1,
		Settle: 100 * time.Millisecond, Window: 1200 * time.Millisecond, Traffic: 50 * time.Millisecond,
	}
}

// buildBinaries builds what "make bench" runs.
func buildBinaries(t *testing.T) string {
	t.Helper()
	const dir = "/dev/shm" // /run may be too small; this mount is as private
	if err := errors.Join(
		unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=0755"),
		netlab.Build("../..", dir, "./nodeagent/cmd/fairlead", "./cni/cmd/fairlead-cni", "./integration/cmd/nodeproxy"),
		netlab.Build("../cniplugins", dir+"/cni", "tool"),
	); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Every row is measured, and judged if it has a budget. What the figures are depends on
// the machine, and is no test's business.
func TestEveryRowIsMeasured(t *testing.T) {
	netlab.Kernel(t)
	bin := buildBinaries(t)
	actAsCluster(t, bin, measuresAll)
	report, err := Run(t.Context(), Options{Bin: bin, Rows: regexp.MustCompile("."), Sizes: tiny()})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range report.Failures {
		t.Errorf("%s: %s", f.Row, f.Error)
	}
	var measured []string
	for _, m := range report.Measures {
		if !slices.Contains(measured, m.Row) {
			measured = append(measured, m.Row)
		}
		if m.What == "" || m.Unit == "" || m.Value < 0 || (m.Budget == nil) != (m.Met == nil) {
			t.Errorf("incomplete: %+v", m)
		}
		for _, o := range m.Others {
			if o.Name == "" || o.Value <= 0 || o.Ratio <= 0 {
				t.Errorf("%s: incomplete: %+v", m.What, o)
			}
		}
	}
	if !slices.Equal(measured, RowNames()) {
		t.Errorf("measured %q, want %q", measured, RowNames())
	}
	// The budgets of the table, as far as there is something to be measured.
	budgets := 0
	for _, m := range report.Measures {
		if m.Budget != nil {
			budgets++
		}
	}
	if want := 14; budgets != want {
		t.Errorf("%d figures have a budget, want %d", budgets, want)
	}
	checkWritten(t, report)
}

func checkWritten(t *testing.T, report *figures.Report) {
	t.Helper()
	var text, machine bytes.Buffer
	if err := errors.Join(report.Write(&text), report.WriteJSON(&machine)); err != nil {
		t.Fatal(err)
	}
	for _, m := range report.Measures {
		if !strings.Contains(text.String(), m.What) {
			t.Errorf("the table has no %q:\n%s", m.What, text.String())
		}
	}
	var again figures.Report
	if err := json.Unmarshal(machine.Bytes(), &again); err != nil {
		t.Fatal(err)
	}
	if len(again.Measures) != len(report.Measures) || again.CPUs != report.CPUs || again.Kernel == "" {
		t.Errorf("the JSON has lost something:\n%s", machine.String())
	}
}

func TestRunRefuses(t *testing.T) {
	o := Options{Bin: t.TempDir(), Rows: regexp.MustCompile("^plugin$"), Sizes: tiny()}
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "make build demo-parts") {
		t.Errorf("without binaries: %v", err)
	}
	o.Rows = regexp.MustCompile("no such row")
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "add-parallel") || !strings.Contains(err.Error(), "cluster-memory") {
		t.Errorf("without a row: %v, want the rows that there are", err)
	}
}

// brokenBinaries are all that is run, and none does its work.
func brokenBinaries(t *testing.T) string {
	t.Helper()
	bin := t.TempDir()
	if err := os.MkdirAll(bin+"/cni", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fairlead", "fairlead-cni", "nodeproxy", "cni/bridge", "cni/host-local"} {
		if err := os.WriteFile(bin+"/"+name, []byte("#!/bin/sh\necho broken >&2\nexit 7\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// A row that fails stands in the report, and the others are measured.
func TestARowThatFails(t *testing.T) {
	netlab.Kernel(t)
	bin := brokenBinaries(t)
	report, err := Run(t.Context(), Options{Bin: bin, Rows: regexp.MustCompile("^(plugin|verify|add)$"), Sizes: tiny()})
	if err != nil {
		t.Fatal(err)
	}
	var failed []string
	for _, f := range report.Failures {
		failed = append(failed, f.Row)
		if !strings.Contains(f.Error, "exit status 7") {
			t.Errorf("%s: %s, want the cause", f.Row, f.Error)
		}
	}
	if !slices.Equal(failed, []string{"plugin", "add"}) || len(report.Measures) != 2 || report.Measures[0].Row != "verify" {
		t.Errorf("failed %q, measured %+v", failed, report.Measures)
	}
}

func TestNoTimeLeft(t *testing.T) {
	netlab.Kernel(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	b := bencher{Options: Options{Sizes: tiny()}, dir: t.TempDir()}
	for name, row := range map[string]func(context.Context) ([]figures.Measure, error){"verify": b.verify, "apply": b.apply} {
		if _, err := row(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRepeatLeavesTheWarmUpOut(t *testing.T) {
	took := time.Duration(0)
	s, err := repeat(t.Context(), 3, 2, func() (time.Duration, error) {
		took++
		return took, nil
	})
	if err != nil || !slices.Equal(s, figures.Sample{4, 5}) {
		t.Errorf("got %v, %v", s, err)
	}
	broken := errors.New("broken")
	if _, err := repeat(t.Context(), 0, 2, func() (time.Duration, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}
