package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"net/netip"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-mesh/fairlead/nodeagent/config"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
)

const head = "apiVersion: agent.fairlead.io/v1alpha1\nkind: AgentConfig\n"

var sameAddr = cmpopts.EquateComparable(netip.Addr{})

func TestEmptyFileIsTheDefault(t *testing.T) {
	got, err := config.Parse([]byte(head))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(config.Default(), got, sameAddr); diff != "" {
		t.Errorf("(-default +got):\n%s", diff)
	}
}

func TestDefaultRoundTrips(t *testing.T) {
	text, err := yaml.Marshal(config.Default())
	if err != nil {
		t.Fatal(err)
	}
	got, err := config.Parse(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if diff := cmp.Diff(config.Default(), got, sameAddr); diff != "" {
		t.Errorf("(-default +got):\n%s", diff)
	}
}

// The default in the file and the default that the decision's own package has are
// one thing.
func TestDefaultPolicyIsTheMeshes(t *testing.T) {
	p, err := config.Default().Policy()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range intent.DefaultSelectors() {
		got := p.Selectors[i]
		if got.Pod.String() != want.Pod.String() || got.Namespace.String() != want.Namespace.String() {
			t.Errorf("selector %d: %s in %s, want %s in %s", i, got.Pod, got.Namespace, want.Pod, want.Namespace)
		}
	}
	if len(p.Selectors) != len(intent.DefaultSelectors()) || !p.CaptureDNS || p.ExcludeNamespaces[0] != "kube-system" {
		t.Errorf("default policy %+v", p)
	}
}

func TestValues(t *testing.T) {
	got, err := config.Parse([]byte(head + `
runDir: /run/other
logLevel: debug
dnsCapture: false
excludeNamespaces: []
enablementSelectors:
- namespaceSelector: {matchLabels: {mesh: "on"}}
waits: {proxy: 250ms}
`))
	if err != nil {
		t.Fatal(err)
	}
	if got.File("lock") != "/run/other/lock" || got.LogLevel.String() != "DEBUG" || got.DNSCapture || len(got.ExcludeNamespaces) != 0 {
		t.Errorf("got %+v", got)
	}
	if got.Waits.Proxy.Duration != 250*time.Millisecond || got.Waits.Pod.Duration != 5*time.Second {
		t.Errorf("waits %+v: the one that is named changes, the others keep their default", got.Waits)
	}
	p, err := got.Policy()
	if err != nil {
		t.Fatal(err)
	}
	d := p.Decide(intent.Pod{}, intent.Namespace{Labels: map[string]string{"mesh": "on"}})
	if !d.Capture || len(p.Selectors) != 1 {
		t.Errorf("own selector: %+v", d)
	}
}

func TestRefusals(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"not YAML":         {"\t{", "not YAML"},
		"another kind":     {"apiVersion: v1\nkind: ConfigMap\n", `"v1" "ConfigMap"`},
		"another version":  {"apiVersion: agent.fairlead.io/v2\nkind: AgentConfig\n", "agent.fairlead.io/v1alpha1"},
		"empty":            {"", "AgentConfig"},
		"unknown field":    {head + "dnsCaptrue: true\n", "dnsCaptrue"},
		"unknown inside":   {head + "waits: {prxy: 1s}\n", "prxy"},
		"field twice":      {head + "runDir: /a\nrunDir: /b\n", "runDir"},
		"relative path":    {head + "runDir: run\n", "runDir"},
		"wrong type":       {head + "dnsCapture: 3\n", "dnsCapture"},
		"log level":        {head + "logLevel: loud\n", "loud"},
		"duration":         {head + "ackTimeout: 5\n", "ackTimeout"},
		"pod wait":         {head + "waits: {pod: 9s}\n", "waits.pod: 9s is not at least 0s and less than 9s; the plugin gives an ADD up after 10s"},
		"proxy wait":       {head + "waits: {proxy: 2m}\n", "waits.proxy: 2m0s"},
		"ack wait":         {head + "waits: {ack: 0s}\n", "waits.ack: 0s is not at least 1ms"},
		"grace over drain": {head + "releaseGrace: 10s\ndrainTimeout: 5s\n", "releaseGrace: 10s is not between 0s and 5s"},
		"wrong family":     {head + "probeAddresses: {ipv4: 'fd16::1'}\n", "probeAddresses.ipv4"},
		"http address":     {head + "httpAddress: localhost\n", "httpAddress"},
		"selector":         {head + "enablementSelectors: [{podSelector: {matchExpressions: [{key: a, operator: Is}]}}]\n", "enablementSelectors[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse([]byte(test.text))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error that says %q", err, test.want)
			}
		})
	}
}

func TestAllValuesOutOfRangeAreNamedAtOnce(t *testing.T) {
	_, err := config.Parse([]byte(head + "runDir: run\nproxySocket: sock\nwaits: {ack: 1h}\n"))
	for _, field := range []string{"runDir", "proxySocket", "waits.ack"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("got %v, which does not name %s", err, field)
		}
	}
}

// A path that is accepted is one that the kernel takes, also with the ending of a
// socket that is not in its place yet.
func TestSocketPaths(t *testing.T) {
	long := func(n int) string { return "/" + strings.Repeat("a", n-1) }
	for name, test := range map[string]struct {
		text, want string
	}{
		"proxySocket fits":     {"proxySocket: " + long(103), ""},
		"proxySocket too long": {"proxySocket: " + long(104), "proxySocket: the path of the socket /aaa"},
		"runDir fits":          {"runDir: " + long(103-len("/agent.sock")), ""},
		"runDir too long":      {"runDir: " + long(104-len("/agent.sock")), "runDir: the path of the socket /aaa"},
	} {
		_, err := config.Parse([]byte(head + test.text + "\n"))
		if test.want == "" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "has 104 bytes, the most is 103")) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.yaml")
	if _, err := config.Load(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("missing file: %v", err)
	}
	if err := os.WriteFile(path, []byte(head+"nonsense: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Load(path); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("bad file: %v", err)
	}
}

// Whatever the file holds, it is read or refused; what is read is valid.
func FuzzConfig(f *testing.F) {
	f.Add(head)
	f.Add(head + "waits: {pod: 1s}\nenablementSelectors: [{}]\n")
	f.Add("{}")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := config.Parse([]byte(text))
		if err != nil {
			return
		}
		if err := c.Validate(); err != nil {
			t.Errorf("accepted, yet invalid: %v", err)
		}
	})
}
