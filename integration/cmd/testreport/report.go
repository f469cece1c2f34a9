package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// A count is what one package reported.
type count struct {
	pkg         string
	ran, wanted int
}

// parse reads a report.
func parse(r io.Reader) ([]count, error) {
	var counts []count
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 {
			return nil, fmt.Errorf("line %d: %q is not <import path> <ran> <wanted>", n, lines.Text())
		}
		ran, err := strconv.ParseUint(fields[1], 10, 31)
		if err != nil {
			return nil, fmt.Errorf("line %d: %q is not a number of tests", n, fields[1])
		}
		wanted, err := strconv.ParseUint(fields[2], 10, 31)
		if err != nil {
			return nil, fmt.Errorf("line %d: %q is not a number of tests", n, fields[2])
		}
		counts = append(counts, count{fields[0], int(ran), int(wanted)})
	}
	return counts, lines.Err()
}

// compare adds the counts up and says what is wrong with them. callers are the
// packages that have to have reported.
func compare(counts []count, callers []string) (sum string, problem error) {
	var ran, wanted int
	var problems []error
	reported := map[string]bool{}
	for _, c := range counts {
		ran += c.ran
		wanted += c.wanted
		switch {
		case reported[c.pkg]:
			problems = append(problems, fmt.Errorf("%s reported twice", c.pkg))
		case !slices.Contains(callers, c.pkg):
			problems = append(problems, fmt.Errorf("%s reported, but no test file of it calls netlab.Main", c.pkg))
		case c.ran != c.wanted:
			problems = append(problems, fmt.Errorf("%s: %d ran, %d expected", c.pkg, c.ran, c.wanted))
		}
		reported[c.pkg] = true
	}
	for _, pkg := range callers {
		if !reported[pkg] {
			problems = append(problems, fmt.Errorf("%s calls netlab.Main and did not report: see its result above", pkg))
		}
	}
	return fmt.Sprintf("kernel tests: %d ran, %d expected", ran, wanted), errors.Join(problems...)
}
