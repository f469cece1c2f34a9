package route_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// A pod that may, makes as many rules and routes as it likes: the look ends, what else
// there is to see is seen, and the socket is good for more afterwards.
func TestTooManyToLookAt(t *testing.T) {
	netlab.Kernel(t)
	n, r := pod(t)
	for name, tt := range map[string]struct{ add, del, want string }{
		"rules":  {"rule add pref %[1]d from 192.0.2.1 lookup 200", "rule del pref %[1]d", "cannot check IPv4 policy routing: cannot list rules: there are too many"},
		"routes": {"route add table 100 local 10.%[2]d.%[3]d.1 dev lo", "route del table 100 local 10.%[2]d.%[3]d.1 dev lo", "cannot check IPv4 policy routing: cannot list table 100: there are too many"},
	} {
		t.Run(name, func(t *testing.T) {
			apply(t, r, both)
			batch(t, n, tt.add)
			ip(t, n, "-6 rule del pref 32764")
			report, err := r.Check(t.Context(), both)
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) {
				t.Errorf("%v, want %s", err, tt.want)
			}
			if got := strings.Join(report.Drift, "\n"); got != "IPv6: rule 32764: fwmark 0x111/0xfff lookup 100 is missing" {
				t.Errorf("the other family: %q", got)
			}
			if err := r.Apply(t.Context(), both); err == nil || !strings.Contains(err.Error(), "there are too many") {
				t.Errorf("Apply: %v", err)
			}
			batch(t, n, tt.del)
			apply(t, r, both)
			wantState(t, n, ours4+ours6)
		})
	}
}

// batch has ip carry out a command for each number up to more than is looked at.
func batch(t *testing.T, n *netlab.NS, command string) {
	t.Helper()
	var commands strings.Builder
	for i := range 4500 {
		fmt.Fprintf(&commands, command+"\n", i+1, i>>8, i&255)
	}
	file := filepath.Join(t.TempDir(), "commands")
	if err := os.WriteFile(file, []byte(commands.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	ip(t, n, "-batch "+file)
}
