package netlab

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// kernelTests is what Main and Kernel of one test binary know of each other.
var kernelTests struct {
	sync.Mutex
	unavailable error // why there are no private namespaces
	entered     bool  // Main has run
	ran         map[string]bool
}

// Main runs a package's tests in private namespaces and exits. want is the number
// of tests and subtests of the package that call Kernel. How many did is printed
// and, under FAIRLEAD_NO_SKIP=1, compared; the file named by FAIRLEAD_TEST_REPORT, an
// absolute path, gets a line "<import path> <ran> <want>". If only some of the tests
// were asked for, none of this happens.
func Main(m *testing.M, want int) {
	pkg := callerPackage()
	flag.Parse()
	if worker := flag.Lookup("test.fuzzworker"); worker == nil || worker.Value.String() != "true" {
		kernelTests.unavailable = Isolate()
	}
	kernelTests.entered = true
	kernelTests.ran = map[string]bool{}
	code := m.Run()
	if !selected() {
		if err := account(os.Stdout, pkg, len(kernelTests.ran), want); err != nil {
			fmt.Fprintf(os.Stderr, "FAIL: %v\n", err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// Kernel marks a test that needs private namespaces. Where there are none it skips
// the test, or, under FAIRLEAD_NO_SKIP=1, fails it.
func Kernel(t testing.TB) {
	t.Helper()
	kernelTests.Lock()
	defer kernelTests.Unlock()
	switch {
	case !kernelTests.entered:
		t.Fatal("netlab.Kernel without netlab.Main: give the package a TestMain that calls it")
	case kernelTests.unavailable != nil && noSkip():
		t.Fatalf("kernel test cannot run, and FAIRLEAD_NO_SKIP=1: %v", kernelTests.unavailable)
	case kernelTests.unavailable != nil:
		fmt.Fprintf(os.Stderr, "SKIPPED kernel test %s: %v\n", t.Name(), kernelTests.unavailable)
		t.Skipf("kernel test: %v", kernelTests.unavailable)
	}
	kernelTests.ran[t.Name()] = true
}

func noSkip() bool { return os.Getenv("FAIRLEAD_NO_SKIP") == "1" }

// account prints and reports how many kernel tests ran, and fails if there should
// have been another number.
func account(w io.Writer, pkg string, ran, want int) error {
	if _, err := fmt.Fprintf(w, "kernel tests: %d of %d ran\n", ran, want); err != nil {
		return err
	}
	if path := os.Getenv("FAIRLEAD_TEST_REPORT"); path != "" {
		if err := report(path, fmt.Sprintf("%s %d %d\n", pkg, ran, want)); err != nil {
			return fmt.Errorf("cannot report the number of kernel tests: %w", err)
		}
	}
	if noSkip() && ran != want {
		return fmt.Errorf("%d kernel tests ran, not %d: if tests were added or removed, tell netlab.Main", ran, want)
	}
	return nil
}

// selected says whether only some of the package's tests were asked for.
func selected() bool {
	for _, name := range []string{"run", "skip", "list", "fuzz", "fuzzworker"} {
		if f := flag.Lookup("test." + name); f != nil && f.Value.String() != f.DefValue {
			return true
		}
	}
	return false
}

func report(path, line string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(line); err != nil {
		_ = f.Close() // the write's error is the one that counts
		return err
	}
	return f.Close()
}

// callerPackage returns the import path of the package whose TestMain called Main.
func callerPackage() string {
	pc, _, _, _ := runtime.Caller(2)
	name := strings.TrimSuffix(runtime.FuncForPC(pc).Name(), ".TestMain")
	return strings.TrimSuffix(name, "_test")
}
