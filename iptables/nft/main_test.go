package nft

import (
	"context"
	"fmt"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

func TestMain(m *testing.M) { netlab.Main(m, 27) }

var forms = []ruleset.Form{ruleset.FormMarks, ruleset.FormSYN, ruleset.FormFull}

// matrix has every configuration that differs in its rules, under the name of its golden file.
func matrix() map[string]ruleset.Config {
	interfaces := [][]string{nil, {"k6t-eth0"}, {"k6t-eth0", "tap0"}}
	families := map[string][2]bool{"v4": {true, false}, "v6": {false, true}, "dual": {true, true}}
	configs := make(map[string]ruleset.Config)
	for _, dns := range []bool{false, true} {
		for _, ingress := range []bool{false, true} {
			for _, names := range interfaces {
				for name, family := range families {
					configs[fmt.Sprintf("dns=%t,ingress=%t,interfaces=%d,%s", dns, ingress, len(names), name)] = ruleset.Config{
						CaptureDNS: dns, Ingress: ingress, VirtualInterfaces: names, IPv4: family[0], IPv6: family[1]}
				}
			}
		}
	}
	return configs
}

func build(t testing.TB, c ruleset.Config, form ruleset.Form) ruleset.Ruleset {
	t.Helper()
	c.Form = form
	rs, err := ruleset.Build(c)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// ordinary is the rules of an ordinary pod with everything on.
func ordinary(t testing.TB) ruleset.Ruleset {
	t.Helper()
	return build(t, ruleset.Config{CaptureDNS: true, IPv4: true, IPv6: true, VirtualInterfaces: []string{"tap0"}}, ruleset.FormFull)
}

func open(t testing.TB, n *netlab.NS) *Table {
	t.Helper()
	table, err := Open(n.Handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := table.Close(); err != nil {
			t.Error(err)
		}
	})
	return table
}

func apply(t testing.TB, table *Table, want ruleset.Ruleset) {
	t.Helper()
	if err := table.Apply(context.Background(), want); err != nil {
		t.Fatal(err)
	}
}

func check(t testing.TB, table *Table, want ruleset.Ruleset) ruleset.Diff {
	t.Helper()
	diff, err := table.Check(context.Background(), want)
	if err != nil {
		t.Fatal(err)
	}
	return diff
}

func generation(t testing.TB, table *Table) uint32 {
	t.Helper()
	n, err := table.Generation()
	if err != nil {
		t.Fatal(err)
	}
	return n
}
