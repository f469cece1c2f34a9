package config_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"net/netip"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-mesh/fairlead/nodeagent/config"
	"github.com/fairlead-mesh/fairlead/nodeagent/hostnet"
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

var update = flag.Bool("update", false, "write the golden file anew")

// All defaults stand in a file, for review; read, it gives them.
func TestDefaultRoundTrips(t *testing.T) {
	text, err := yaml.Marshal(config.Default())
	if err != nil {
		t.Fatal(err)
	}
	const file = "testdata/default.yaml"
	if *update {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(text)); diff != "" {
		t.Errorf("-%s +now (go test -update writes it anew):\n%s", file, diff)
	}
	got, err := config.Parse(text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if diff := cmp.Diff(config.Default(), got, sameAddr); diff != "" {
		t.Errorf("(-default +got):\n%s", diff)
	}
}

// The selectors that people who run ambient meshes know.
func TestDefaultPolicyIsTheMeshes(t *testing.T) {
	p, err := config.Default().Policy()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range p.Selectors {
		got = append(got, s.Pod.String()+" in "+s.Namespace.String())
	}
	want := []string{
		"istio.io/dataplane-mode=ambient in ",
		"istio.io/dataplane-mode notin (none) in istio.io/dataplane-mode=ambient",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("selectors (-want +got):\n%s", diff)
	}
	if !p.CaptureDNS || p.ExcludeNamespaces[0] != "kube-system" {
		t.Errorf("default policy %+v", p)
	}
}

func TestValues(t *testing.T) {
	got, err := config.Parse([]byte(head + `
runDir: /run/other
cniCache: /var/lib/other/results
kubeconfig: /etc/kubeconfig
nodeName: node1
unsupportedRuntimeClasses: [strange]
installed: 2026-01-02T15:04:05+01:00
logLevel: debug
dnsCapture: false
excludeNamespaces: []
enablementSelectors:
- namespaceSelector: {matchLabels: {mesh: "on"}}
waits: {proxy: 250ms}
probes: hostIP
probeMark: 0x80000
kubeletProcesses: [hyperkube]
node: {condition: true}
`))
	if err != nil {
		t.Fatal(err)
	}
	if got.File("lock") != "/run/other/lock" || got.LogLevel.String() != "DEBUG" || got.DNSCapture || len(got.ExcludeNamespaces) != 0 {
		t.Errorf("got %+v", got)
	}
	if got.CNICache != "/var/lib/other/results" || !got.Installed.Time.Equal(time.Date(2026, 1, 2, 14, 4, 5, 0, time.UTC)) {
		t.Errorf("cniCache %q, installed %s", got.CNICache, got.Installed)
	}
	if got.Probes != hostnet.HostIP || got.ProbeMark != 1<<19 || strings.Join(got.KubeletProcesses, " ") != "hyperkube" {
		t.Errorf("probes %q, mark %#x, kubelet %q", got.Probes, got.ProbeMark, got.KubeletProcesses)
	}
	if got.Waits.Proxy.Duration != 250*time.Millisecond || got.Waits.Pod.Duration != 5*time.Second {
		t.Errorf("waits %+v: the one that is named changes, the others keep their default", got.Waits)
	}
	if got.Node != (config.Node{Taint: config.TaintNone, Condition: true}) {
		t.Errorf("node %+v", got.Node)
	}
	if got.Kubeconfig != "/etc/kubeconfig" || got.NodeName != "node1" {
		t.Errorf("kubeconfig %q, nodeName %q", got.Kubeconfig, got.NodeName)
	}
	p, err := got.Policy()
	if err != nil {
		t.Fatal(err)
	}
	if len(p.OwnStacks) != 1 || p.OwnStacks[0] != "strange" {
		t.Errorf("runtime classes with a stack of their own: %q", p.OwnStacks)
	}
	d := p.Decide(intent.Pod{}, intent.Namespace{Labels: map[string]string{"mesh": "on"}})
	if !d.Capture || len(p.Selectors) != 1 {
		t.Errorf("own selector: %+v", d)
	}
}

func TestRefusals(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"not YAML":          {"\t{", "not YAML: found character that cannot start any token"},
		"another kind":      {"apiVersion: v1\nkind: ConfigMap\n", `the file has apiVersion "v1" and kind "ConfigMap", but this agent reads`},
		"another version":   {"apiVersion: agent.fairlead.io/v2\nkind: AgentConfig\n", "apiVersion: agent.fairlead.io/v1alpha1"},
		"other case":        {"apiversion: agent.fairlead.io/v1alpha1\nkind: AgentConfig\n", `the file has apiVersion ""`},
		"empty":             {"", "AgentConfig"},
		"a list":            {"- apiVersion: v1\n", "not a mapping of fields"},
		"a second document": {head + "---\nlogLevel: debug\n", "more than one YAML document"},
		"unknown field":     {head + "dnsCaptrue: true\n", `unknown field "dnsCaptrue" (did you mean "dnsCapture"?)`},
		"unknown inside":    {head + "waits: {prxy: 1s}\n", `unknown field "waits.prxy" (did you mean "proxy"?)`},
		"unknown deep inside": {
			head + "enablementSelectors: [{podSelector: {labels: {a: b}}}]\n",
			`unknown field "enablementSelectors[0].podSelector.labels" (known here: matchExpressions, matchLabels)`,
		},
		"field in lower case": {head + "loglevel: debug\n", `unknown field "loglevel" (did you mean "logLevel"?)`},
		"field in upper case": {head + "RUNDIR: /run/x\n", `unknown field "RUNDIR" (did you mean "runDir"?)`},
		"field twice":         {head + "runDir: /a\nrunDir: /b\n", `line 4: the field "runDir" stands here for the second time`},
		"existing":            {head + "existingConnections: drop\n", `existingConnections: "drop" is neither reset nor keep`},
		"relative kubeconfig": {head + "kubeconfig: config\n", `kubeconfig: "config" is not an absolute path`},
		"runtime class":       {head + "unsupportedRuntimeClasses: [kata*, '[']\n", `unsupportedRuntimeClasses[1]: "[" is not a name or a pattern such as kata*`},
		"relative path":       {head + "runDir: run\n", `runDir: "run" is not an absolute path`},
		"relative cache":      {head + "cniCache: results\n", `cniCache: "results" is not an absolute path`},
		"no cache":            {head + "cniCache: ''\n", `cniCache: "" is not an absolute path`},
		"installed one day":   {head + "installed: last year\n", `installed: "last year" is not a time such as 2026-01-02T15:04:05Z`},
		"installed on a date": {head + "installed: 2026-01-02\n", `installed: "2026-01-02" is not a time such as 2026-01-02T15:04:05Z`},
		"installed at a time": {head + "installed: 1767366245\n", `installed: 1767366245 is not a time such as`},
		"wrong type":          {head + "dnsCapture: 3\n", "dnsCapture: 3 is not true or false"},
		"text for a list":     {head + "excludeNamespaces: kube-system\n", `excludeNamespaces: "kube-system" is not a list`},
		"label of other type": {head + "enablementSelectors: [{podSelector: {matchLabels: {a: on}}}]\n", "podSelector.matchLabels[a]: true is not a string: put it in quotes"},
		"log level":           {head + "logLevel: verbose\n", `logLevel: "verbose" is not debug, info, warn or error`},
		"duration as text":    {head + "sweepInterval: 5 minutes\n", `sweepInterval: "5 minutes" is not a duration such as 10s`},
		"duration as number":  {head + "sweepInterval: 10\n", "sweepInterval: 10 is not a duration such as 10s"},
		"pod wait":            {head + "waits: {pod: 9s}\n", "waits.pod: 9s is not at least 0s and less than 9s; the plugin gives an ADD up after 10s"},
		"proxy wait":          {head + "waits: {proxy: 2m}\n", "waits.proxy: 2m0s"},
		"ack wait":            {head + "waits: {ack: 0s}\n", "waits.ack: 0s is not at least 1ms"},
		"grace over drain":    {head + "releaseGrace: 10s\ndrainTimeout: 5s\n", "releaseGrace: 10s is not between 0s and drainTimeout, which is 5s"},
		"no address":          {head + "probeAddresses: {ipv4: localhost}\n", `probeAddresses.ipv4: "localhost" is not an IP address`},
		"empty address":       {head + "probeAddresses: {ipv6: ''}\n", `probeAddresses.ipv6: "" is not an IPv6 address`},
		"wrong family":        {head + "probeAddresses: {ipv4: 'fd16::1'}\n", `probeAddresses.ipv4: "fd16::1" is not an IPv4 address`},
		"probes":              {head + "probes: nat\n", `probes: "nat" is neither snat, hostIP nor off`},
		"probe mark":          {head + "probeMark: 0x3000\n", "probeMark: 0x3000 is not one bit, as 0x1000"},
		"no kubelet":          {head + "kubeletProcesses: []\n", "kubeletProcesses: the list is empty"},
		"kubelet's name":      {head + "kubeletProcesses: [kubelet, /usr/local/bin/kubelet]\n", `kubeletProcesses[1]: "/usr/local/bin/kubelet" is no process's name`},
		"taint":               {head + "node: {taint: 'off'}\n", `node.taint: "off" is neither none, remove, start nor unready`},
		"http address":        {head + "httpAddress: localhost\n", `httpAddress: "localhost" is not host:port or :port`},
		"operator": {
			head + "enablementSelectors: [{podSelector: {matchExpressions: [{key: a, operator: Is}]}}]\n",
			`enablementSelectors[0].podSelector.matchExpressions[0].operator: "Is" is not In, NotIn, Exists or DoesNotExist`,
		},
		"selector": {
			head + "enablementSelectors: [{}, {namespaceSelector: {matchLabels: {a b: c}}}]\n",
			"enablementSelectors[1].namespaceSelector: ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := config.Parse([]byte(test.text))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v\nwant an error that says %s", err, test.want)
			}
			if err != nil && (strings.Contains(err.Error(), "json") || strings.Contains(err.Error(), "Go ")) {
				t.Errorf("%v: says how the file is read, which is nothing to its author", err)
			}
		})
	}
}

func TestAllThatIsWrongIsNamedAtOnce(t *testing.T) {
	_, err := config.Parse([]byte(head + `
runDir: run
runDir: run
loglevel: debug
proxySocket: sock
cniCache: cache
installed: one day
dnsCapture: perhaps
probeAddresses: {ipv4: x, ipv6: y}
waits: {ack: 1h, pdo: 1s}
enablementSelectors: [{podSelector: {matchLabels: {a: ";"}}}, {namespaceSelector: {matchLabels: {b: ";"}}}]
sweepInterval: often
`))
	for _, field := range []string{
		`"runDir" stands here for the second time`, "runDir: ", "loglevel", "proxySocket", "cniCache", "installed", "dnsCapture", "probeAddresses.ipv4", "probeAddresses.ipv6",
		"waits.ack", "waits.pdo", "enablementSelectors[0]", "enablementSelectors[1]", "sweepInterval",
	} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("got %v, which does not name %s", err, field)
		}
	}
}

// What stands around the one document does not matter.
func TestSeparators(t *testing.T) {
	for _, text := range []string{"---\n" + head, "# ours\n---\n" + head, head + "---\n# the end\n", head + "---\n"} {
		if _, err := config.Parse([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestWarnings(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "",
		"enablementSelectors:\n":                 "", // left out
		"enablementSelectors: []\n":              "enablementSelectors is an empty list: no pod is captured",
		"enablementSelectors: [{}]\n":            "",
		"installed: 2999-01-02T15:04:05+01:00\n": "installed: 2999-01-02T14:04:05Z is in the future; on this node it is 2",
		"installed: 2019-01-02T15:04:05Z\n":      "",
	} {
		c, err := config.Parse([]byte(head + text))
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		got := c.Warnings()
		if len(got) > 1 || (len(got) == 1) != (want != "") || !strings.Contains(strings.Join(got, ""), want) {
			t.Errorf("%q: warnings %q, want %q", text, got, want)
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
