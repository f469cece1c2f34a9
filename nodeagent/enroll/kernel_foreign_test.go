package enroll

import (
	"errors"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// What others put before our rules is seen without a look at everything.
func TestKernelNamesWhatStandsBeforeOurs(t *testing.T) {
	netlab.Kernel(t)
	pod, k := openPod(t)
	if err := k.Apply(t.Context(), full()); err != nil {
		t.Fatal(err)
	}
	foreign := func() string {
		t.Helper()
		drift, err := k.Check(t.Context(), full(), Changes)
		if err != nil || drift != "" {
			t.Fatalf("%q, %v", drift, err)
		}
		found, err := k.Foreign(t.Context(), Changes)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(found, "\n")
	}
	if got := foreign(); got != "" {
		t.Errorf("in a pod of ours alone: %s", got)
	}
	netlab.MustRun(t, pod, "iptables", "-t", "nat", "-A", "OUTPUT", "-j", "ACCEPT")
	if got := foreign(); got != "" {
		t.Errorf("what stands behind ours: %s", got)
	}
	for _, test := range []struct{ do, undo, want string }{
		{"nft 'add table ip evil; add chain ip evil out { type nat hook output priority -150; }'", "nft delete table ip evil", "chain ip evil/out"},
		{"ip rule add priority 100 fwmark 0x111/0xfff lookup 200", "ip rule del priority 100", "stands before ours"},
	} {
		netlab.MustRun(t, pod, "sh", "-c", test.do)
		netlab.Eventually(t, func() error {
			if got := foreign(); !strings.Contains(got, test.want) {
				return errors.New("after " + test.do + " there is named: " + got)
			}
			return nil
		})
		netlab.MustRun(t, pod, "sh", "-c", test.undo)
		netlab.Eventually(t, func() error {
			if got := foreign(); got != "" {
				return errors.New("after " + test.undo + " there is named: " + got)
			}
			return nil
		})
	}
}

// The kernel does not count what happens in the tables of iptables-legacy: a look at everything
// sees it, and until the next one it goes on being named.
func TestKernelNamesTheLegacyTables(t *testing.T) {
	netlab.Kernel(t)
	pod, k := openPod(t)
	if err := k.Apply(t.Context(), full()); err != nil {
		t.Fatal(err)
	}
	wantForeign := func(depth Depth, want string) {
		t.Helper()
		drift, err := k.Check(t.Context(), full(), depth)
		if err != nil || drift != "" {
			t.Fatalf("%q, %v", drift, err)
		}
		found, err := k.Foreign(t.Context(), depth)
		if got := strings.Join(found, "\n"); err != nil || got != want {
			t.Errorf("depth %v: %q, %v; want %q", depth, got, err, want)
		}
	}
	wantForeign(Everything, "")
	netlab.MustRun(t, pod, "iptables-legacy", "-t", "raw", "-A", "OUTPUT", "-j", "NOTRACK")
	netlab.MustRun(t, pod, "iptables-legacy", "-t", "nat", "-A", "OUTPUT", "-j", "ACCEPT") // stands behind ours
	wantForeign(Everything, "iptables-legacy table ip raw: 1 entries")
	wantForeign(Changes, "iptables-legacy table ip raw: 1 entries")
	netlab.MustRun(t, pod, "iptables-legacy", "-t", "raw", "-F")
	wantForeign(Everything, "")
}
