// Command demo shows on the real kernel, in private namespaces, how a pod is captured
// and released, and checks every step of it. See package demo.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/demo"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func main() {
	name := flag.String("sabotage", "", "break one `thing`, which exactly one check has to notice")
	flag.Usage = usage
	flag.Parse()
	sabotage, err := demo.FindSabotage(*name)
	if err == nil && flag.NArg() > 0 {
		err = fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	if err == nil && os.Geteuid() != 0 {
		err = fmt.Errorf("it has to run as root, to make network, mount and PID namespaces of its own (nothing else is touched)")
	}
	if err != nil {
		fatal(err)
	}
	// From here on it runs in namespaces of its own, or not at all.
	if err := netlab.Isolate(); err != nil {
		fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	code := demo.Run(ctx, os.Stdout, filepath.Dir(self), sabotage)
	stop()
	os.Exit(code)
}

func fatal(err error) {
	fmt.Fprintf(os.Stderr, "demo: %v\n", err)
	os.Exit(demo.ExitUntold)
}

func usage() {
	out := flag.CommandLine.Output()
	fmt.Fprint(out, `demo captures pods for real, on a node made of private namespaces, step by step,
and checks each step with real connections. It needs root, Linux, and the binaries
that stand beside it; it touches nothing of this machine.

usage: demo [--sabotage THING]

With --sabotage it breaks one thing in one step. Then exactly the check named here
has to fail; the exit code is 1 if that is so, 2 if not.

`)
	for _, s := range demo.Sabotages {
		fmt.Fprintf(out, "  %d  %-20s %s\n     %-20s noticed by: %s\n", s.Step, s.Name, s.How, "", s.Check)
	}
	fmt.Fprint(out, `
Exit codes: 0 all checks passed; 1 a check failed; 2 the demo could not be run.
Colours are for terminals only, and may be switched off as no-color.org says.
`)
}
