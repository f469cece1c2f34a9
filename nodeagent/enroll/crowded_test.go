package enroll

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// crowd has ip carry out a command for each number up to many.
func crowd(t *testing.T, pod *netlab.NS, command string, many int) {
	t.Helper()
	var commands strings.Builder
	for i := range many {
		fmt.Fprintf(&commands, command+"\n", i+1)
	}
	file := filepath.Join(t.TempDir(), "commands")
	if err := os.WriteFile(file, []byte(commands.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	netlab.MustRun(t, pod, "ip", "-batch", file)
}

// A pod with more ip rules than are looked at does not thereby keep its traffic from the
// proxy.
func TestKernelRedirectsWhereRoutesCannotBeSeen(t *testing.T) {
	netlab.Kernel(t)
	pod, k := openPod(t)
	if err := k.Apply(t.Context(), full()); err != nil {
		t.Fatal(err)
	}
	whole := netlab.NftList(t, pod)
	crowd(t, pod, "rule add pref %d from 192.0.2.1 lookup 200", 4500)
	netlab.MustRun(t, pod, "nft", "flush", "ruleset")
	drift, err := k.Check(t.Context(), full(), Everything)
	if drift != "everything in table inet fairlead missing" || err == nil || !strings.Contains(err.Error(), "too many to look at") {
		t.Errorf("%q, %v", drift, err)
	}
	if err := k.Apply(t.Context(), full()); err == nil || !strings.Contains(err.Error(), "too many to look at") {
		t.Errorf("Apply: %v", err)
	}
	if got := netlab.NftList(t, pod); got != whole {
		t.Errorf("after Apply:\n%s", got)
	}
}

// Rules that look like ours are all taken away, and not all named.
func TestKernelNamesAFewOfManyRules(t *testing.T) {
	netlab.Kernel(t)
	pod, k := openPod(t)
	if err := k.Apply(t.Context(), full()); err != nil {
		t.Fatal(err)
	}
	whole := kernelText(t, pod)
	crowd(t, pod, "rule add pref %d fwmark 0x111 lookup 100", 1000)
	drift, err := k.Check(t.Context(), full(), Everything)
	if err != nil || strings.Count(drift, "should not be there") != mostDrift || !strings.HasSuffix(drift, "\nand 980 more of the kind") {
		t.Errorf("%q, %v", drift, err)
	}
	if err := k.Apply(t.Context(), full()); err != nil {
		t.Fatal(err)
	}
	if now := kernelText(t, pod); now != whole {
		t.Errorf("not healed:\n%s", now)
	}
}
