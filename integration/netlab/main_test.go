package netlab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAccount(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report")
	t.Setenv("FAIRLEAD_TEST_REPORT", path)
	for _, c := range []struct {
		ran, want int
		noSkip    string
		fails     bool
	}{
		{3, 3, "1", false},
		{2, 3, "1", true},
		{4, 3, "1", true},
		{0, 3, "", false},
	} {
		t.Setenv("FAIRLEAD_NO_SKIP", c.noSkip)
		var out strings.Builder
		if err := account(&out, "example.org/pkg", c.ran, c.want); (err != nil) != c.fails {
			t.Errorf("%d of %d ran, FAIRLEAD_NO_SKIP=%q: %v", c.ran, c.want, c.noSkip, err)
		}
		if want := fmt.Sprintf("kernel tests: %d of %d ran\n", c.ran, c.want); out.String() != want {
			t.Errorf("printed %q, want %q", out.String(), want)
		}
	}
	got, err := os.ReadFile(path)
	want := "example.org/pkg 3 3\nexample.org/pkg 2 3\nexample.org/pkg 4 3\nexample.org/pkg 0 3\n"
	if err != nil || string(got) != want {
		t.Errorf("the report is %q, %v; want %q", got, err, want)
	}
	t.Setenv("FAIRLEAD_TEST_REPORT", filepath.Join(path, "not", "a", "directory"))
	if err := account(io.Discard, "example.org/pkg", 3, 3); err == nil {
		t.Error("a report that could not be written was taken for written")
	}
}

// ended is how a stand-in test ended.
type ended string

// standIn is a testing.TB that notes how Kernel ended it.
type standIn struct{ testing.TB }

func (standIn) Name() string          { return "StandIn" }
func (standIn) Helper()               {}
func (standIn) Skipf(string, ...any)  { panic(ended("skipped")) }
func (standIn) Fatalf(string, ...any) { panic(ended("failed")) }
func (standIn) Fatal(...any)          { panic(ended("failed")) }

func kernelEnds() (how ended) {
	defer func() {
		if recovered := recover(); recovered != nil {
			how = recovered.(ended)
		}
	}()
	Kernel(standIn{})
	return "went on"
}

func TestKernel(t *testing.T) {
	unavailable, entered, ran := kernelTests.unavailable, kernelTests.entered, kernelTests.ran
	defer func() { kernelTests.unavailable, kernelTests.entered, kernelTests.ran = unavailable, entered, ran }()
	for _, c := range []struct {
		entered     bool
		unavailable error
		noSkip      string
		want        ended
	}{
		{true, nil, "", "went on"},
		{true, nil, "1", "went on"},
		{true, errors.New("no root"), "", "skipped"},
		{true, errors.New("no root"), "1", "failed"},
		{false, nil, "", "failed"},
	} {
		t.Setenv("FAIRLEAD_NO_SKIP", c.noSkip)
		kernelTests.entered, kernelTests.unavailable, kernelTests.ran = c.entered, c.unavailable, map[string]bool{}
		if got := kernelEnds(); got != c.want {
			t.Errorf("%+v: the test %s", c, got)
		}
		if counted := kernelTests.ran["StandIn"]; counted != (c.want == "went on") {
			t.Errorf("%+v: counted: %t", c, counted)
		}
	}
}

// asMain asks as Main does, for the function that called it.
func asMain() string { return callerPackage() }

func TestCallerPackage(t *testing.T) {
	if got := asMain(); !strings.HasPrefix(got, "github.com/fairlead-mesh/fairlead/integration/netlab.") {
		t.Errorf("got %s", got)
	}
}
