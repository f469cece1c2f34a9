// Command bench measures the budgets, met or missed. See package bench.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/bench"
	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// Exit codes.
const (
	exitMissed     = 1
	exitUnmeasured = 2
)

func main() {
	sizes := bench.Full()
	rows := flag.String("rows", ".", "measure only the rows that match this `regexp`, of: "+strings.Join(bench.RowNames(), ", "))
	file := flag.String("json", "", "write the figures to this `file` as well")
	check := flag.Bool("check", false, "exit with 1 if a budget is missed")
	list := flag.Bool("list", false, "print the names of the rows that are chosen, and end")
	flag.DurationVar(&sizes.Settle, "settle", sizes.Settle, "wait this `time` after the last pod before memory is read")
	flag.Parse()
	chosen, err := regexp.Compile(*rows)
	if err == nil && flag.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if err == nil && *list {
		fmt.Println(strings.Join(bench.Options{Rows: chosen}.Chosen(), "\n"))
		return
	}
	if err == nil && os.Geteuid() != 0 {
		err = errors.New("it has to run as root, to make network, mount and PID namespaces of its own (nothing else is touched)")
	}
	if err != nil {
		fatal(err)
	}
	// From here on it runs in namespaces of its own, or not at all.
	if err := netlab.Isolate(); err != nil {
		fatal(err)
	}
	report, err := measure(bench.Options{Rows: chosen, Sizes: sizes})
	if err == nil {
		err = write(report, *file)
	}
	switch {
	case err != nil:
		fatal(err)
	case len(report.Failures) > 0:
		os.Exit(exitUnmeasured)
	case *check && report.Missed() > 0:
		os.Exit(exitMissed)
	}
}

func measure(o bench.Options) (*figures.Report, error) {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o.Bin = filepath.Dir(self)
	began := time.Now()
	o.Progress = func(row string) {
		fmt.Fprintf(os.Stderr, "%4.0f s  %s\n", time.Since(began).Seconds(), row)
	}
	return bench.Run(ctx, o)
}

func write(report *figures.Report, file string) error {
	if err := report.Write(os.Stdout); err != nil || file == "" {
		return err
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(report.WriteJSON(f), f.Close())
}

func fatal(err error) {
	fmt.Fprintf(os.Stderr, "bench: %v\n", err)
	os.Exit(exitUnmeasured)
}
