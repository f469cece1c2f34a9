// Command testreport adds up the kernel tests that ran:
//
//	testreport REPORT MODULE_DIR...
//
// REPORT is the file that FAIRLEAD_TEST_REPORT named during the test run, with a
// line "<import path> <ran> <wanted>" from each package whose TestMain calls
// netlab.Main. It fails if fewer or more ran than wanted. Without root kernel tests
// cannot run: that is then a warning, unless FAIRLEAD_NO_SKIP=1.
//
// Failures it survives: a package that calls netlab.Main and has not reported,
// because it did not build, crashed or was left out; one that reported twice, or
// that the modules do not have; a damaged report.
package main

import (
	"fmt"
	"io"
	"os"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: testreport REPORT MODULE_DIR...")
		os.Exit(2)
	}
	lenient := os.Geteuid() != 0 && os.Getenv("FAIRLEAD_NO_SKIP") != "1"
	if err := run(os.Stdout, os.Args[1], os.Args[2:], lenient); err != nil {
		fmt.Fprintf(os.Stderr, "testreport: %v\n", err)
		os.Exit(1)
	}
}

func run(out io.Writer, report string, modules []string, lenient bool) error {
	var callers []string
	for _, dir := range modules {
		found, err := findCallers(dir)
		if err != nil {
			return err
		}
		callers = append(callers, found...)
	}
	f, err := os.Open(report)
	if err != nil {
		return fmt.Errorf("cannot open the report: %w", err)
	}
	defer func() { _ = f.Close() }() // read only
	counts, err := parse(f)
	if err != nil {
		return fmt.Errorf("cannot read the report %s: %w", report, err)
	}
	sum, problem := compare(counts, callers)
	fmt.Fprintln(out, sum)
	if problem != nil && lenient {
		fmt.Fprintf(out, "WARNING: kernel tests were left out, they need root:\n%v\n", problem)
		return nil
	}
	if problem != nil {
		return fmt.Errorf("not the kernel tests that there should be: %w", problem)
	}
	return nil
}
