package ruleset

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// Whatever a Config has is compared.
func TestEqual(t *testing.T) {
	same := func() Config {
		return Config{VirtualInterfaces: []string{"tap0"}, ProbeIPv4: DefaultProbeIPv4, ProbeIPv6: DefaultProbeIPv6, Form: FormFull}
	}
	if !same().Equal(same()) {
		t.Error("a configuration is not equal to itself")
	}
	for field := range reflect.TypeFor[Config]().Fields() {
		other := same()
		value := reflect.ValueOf(&other).Elem().FieldByIndex(field.Index)
		if value.IsZero() {
			value.SetBool(true)
		} else {
			value.SetZero()
		}
		if same().Equal(other) {
			t.Errorf("%s is not compared", field.Name)
		}
	}
}

func TestBuildRefuses(t *testing.T) {
	good := Config{IPv4: true, IPv6: true, Form: FormFull}
	tests := []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"no form", func(c *Config) { c.Form = 0 }, "there is no form 0"},
		{"unknown form", func(c *Config) { c.Form = 9 }, "there is no form 9"},
		{"no family", func(c *Config) { c.IPv4, c.IPv6 = false, false }, "neither IPv4 nor IPv6 is on"},
		{"IPv6 for IPv4", func(c *Config) { c.ProbeIPv4 = DefaultProbeIPv6 }, "is not an IPv4 address"},
		{"IPv4 for IPv6", func(c *Config) { c.ProbeIPv6 = DefaultProbeIPv4 }, "probe address 169.254.7.127 is not a plain IPv6"},
		{"mapped", func(c *Config) { c.ProbeIPv6 = netip.MustParseAddr("::ffff:1.2.3.4") }, "is not a plain IPv6 address"},
		{"zone", func(c *Config) { c.ProbeIPv6 = netip.MustParseAddr("fe80::1%eth0") }, "probe address fe80::1%eth0"},
		{"any address", func(c *Config) { c.ProbeIPv4 = netip.IPv4Unspecified() }, "0.0.0.0 cannot be the source"},
		{"loopback", func(c *Config) { c.ProbeIPv6 = netip.IPv6Loopback() }, "::1 cannot be the source"},
		{"interface", func(c *Config) { c.VirtualInterfaces = []string{"ok0", "no good"} }, `"no good" holds the character ' '`},
		{"too many interfaces", func(c *Config) {
			for i := range 65 {
				c.VirtualInterfaces = append(c.VirtualInterfaces, fmt.Sprintf("tap%d", i))
			}
		}, "65 virtual interfaces are more than 64"},
		{"everything wrong is named, in one line", func(c *Config) {
			c.IPv4, c.IPv6, c.VirtualInterfaces = false, false, []string{"", "a/b"}
		}, "neither IPv4 nor IPv6 is on; an interface name is empty; interface name \"a/b\""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := good
			tt.change(&c)
			rs, err := Build(c)
			if err == nil {
				t.Fatalf("built %s", rs)
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.HasPrefix(err.Error(), "cannot build redirection rules: ") {
				t.Errorf("error %q does not say %q", err, tt.want)
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error has several lines: %q", err)
			}
		})
	}
}

func TestCheckInterface(t *testing.T) {
	for _, name := range []string{"eth0", "k6t-eth0", "a", "123456789012345", "veth@if3", "a+b", "$x;{}#", "_.-"} {
		if err := CheckInterface(name); err != nil {
			t.Errorf("%q refused: %v", name, err)
		}
	}
	for name, want := range map[string]string{
		"":                 "is empty",
		"1234567890123456": "longer than 15",
		".":                "not allowed by the kernel",
		"..":               "not allowed by the kernel",
		"lo":               "nothing enters the pod there",
		"tap+":             "wildcard",
		"tap*":             "wildcard",
		"*":                "wildcard",
		"a b":              `' '`,
		"a\tb":             `'\t'`,
		"a\nb":             `'\n'`,
		"a/b":              `'/'`,
		"eth0:1":           `':'`,
		`a"b`:              `'"'`,
		`a\b`:              `'\\'`,
		"é":                "visible ASCII",
		"a\x00":            `'\x00'`,
	} {
		if err := CheckInterface(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error that says %q", name, err, want)
		}
	}
}

func TestRepeatedInterfaceIsOneRule(t *testing.T) {
	c := Config{IPv4: true, Form: FormFull, VirtualInterfaces: []string{"b0", "a0", "b0"}}
	text := mustBuild(t, c).String()
	if n := strings.Count(text, `iifname "b0" meta l4proto tcp redirect`); n != 1 {
		t.Errorf("%d redirects for b0:\n%s", n, text)
	}
	if strings.Index(text, `"b0"`) > strings.Index(text, `"a0"`) {
		t.Errorf("interfaces are not in the order given:\n%s", text)
	}
}

func TestOwnProbeAddresses(t *testing.T) {
	c := Config{IPv4: true, IPv6: true, Form: FormFull,
		ProbeIPv4: netip.MustParseAddr("192.0.2.7"), ProbeIPv6: netip.MustParseAddr("2001:db8::7")}
	text := mustBuild(t, c).String()
	for _, unwanted := range []netip.Addr{DefaultProbeIPv4, DefaultProbeIPv6} {
		if strings.Contains(text, unwanted.String()) {
			t.Errorf("%s is still there:\n%s", unwanted, text)
		}
	}
	for _, wanted := range []string{"ip saddr 192.0.2.7 ", "ip daddr 192.0.2.7 ", "ip6 saddr 2001:db8::7 ", "ip6 daddr 2001:db8::7 "} {
		if strings.Count(text, wanted) != 2 { // nat and guard
			t.Errorf("%q is not there twice:\n%s", wanted, text)
		}
	}
}

// Interface names come from an annotation, that is from whoever may edit the pod.
func FuzzBuild(f *testing.F) {
	for _, name := range []string{"eth0", "a\n\t}\n}", `x" accept comment "`, "tap*", "é", "a;b", "..", "lo"} {
		f.Add(name, name+"1", true, true, uint8(FormFull))
	}
	f.Fuzz(func(t *testing.T, first, second string, dns, ingress bool, form uint8) {
		names := []string{first, second}
		rs, err := Build(Config{CaptureDNS: dns, Ingress: ingress, IPv4: true, IPv6: true, Form: Form(form), VirtualInterfaces: names})
		if err != nil {
			return
		}
		c := Config{CaptureDNS: dns, Ingress: ingress, IPv4: true, IPv6: true, Form: Form(form)}
		c.VirtualInterfaces = []string{"plain0", "plain1"}
		if first == second {
			c.VirtualInterfaces = c.VirtualInterfaces[:1]
		}
		// The text is that of harmless names, with the names exchanged: no line more, no quote more.
		var exchange []string
		for i, plain := range c.VirtualInterfaces {
			exchange = append(exchange, fmt.Sprintf("iifname %q", plain), `iifname "`+names[i]+`"`)
		}
		want := strings.NewReplacer(exchange...).Replace(mustBuild(t, c).String())
		if got := rs.String(); got != want {
			t.Errorf("names %q make other rules:\n%s", names, got)
		}
	})
}

func TestFormText(t *testing.T) {
	for _, form := range []Form{0, FormMarks, FormSYN, FormFull} {
		text, err := form.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		var back Form
		if err := back.UnmarshalText(text); err != nil || back != form {
			t.Errorf("%s is read back as %s, %v", text, back, err)
		}
	}
	form := FormSYN
	if err := form.UnmarshalText([]byte("most")); err == nil || form != FormSYN {
		t.Errorf("an unknown form is read as %s, %v", form, err)
	}
}
