package ruleset

import (
	"fmt"
	"testing"
)

var forms = []Form{FormMarks, FormSYN, FormFull}

// matrix has every configuration that differs in its rules, named, without a form.
func matrix() map[string]Config {
	interfaces := [][]string{nil, {"k6t-eth0"}, {"k6t-eth0", "tap0"}}
	configs := make(map[string]Config)
	for _, dns := range []bool{false, true} {
		for _, ingress := range []bool{false, true} {
			for _, names := range interfaces {
				for name, family := range map[string][2]bool{"v4": {true, false}, "v6": {false, true}, "dual": {true, true}} {
					c := Config{CaptureDNS: dns, Ingress: ingress, VirtualInterfaces: names, IPv4: family[0], IPv6: family[1]}
					configs[fmt.Sprintf("dns=%t,ingress=%t,interfaces=%d,%s", dns, ingress, len(names), name)] = c
				}
			}
		}
	}
	return configs
}

func (c Config) with(f Form) Config {
	c.Form = f
	return c
}

func mustBuild(t testing.TB, c Config) Ruleset {
	t.Helper()
	rs, err := Build(c)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// full is the ordinary pod: DNS captured, both families.
func full(t testing.TB) Ruleset {
	t.Helper()
	return mustBuild(t, Config{CaptureDNS: true, IPv4: true, IPv6: true, Form: FormFull})
}
