package plugin

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

func TestParseConfig(t *testing.T) {
	defaults := []string{"kube-system", "fairlead-system"}
	tests := map[string]struct {
		conf string
		want config
	}{
		"nothing of ours": {
			`{"cniVersion":"1.0.0","name":"net","type":"fairlead-cni"}`,
			config{CNIVersion: "1.0.0", AgentSocket: agentapi.Socket, AllowWithoutAgent: defaults},
		},
		"everything": {
			`{"cniVersion":"1.1.0","agentSocket":"/x/agent.sock","allowWithoutAgent":["a","b"],"status":"never","orphanAfter":"5m","prevResult":{"a": 1}}`,
			config{"1.1.0", "/x/agent.sock", []string{"a", "b"}, "never", "5m", json.RawMessage(`{"a": 1}`), 5 * time.Minute},
		},
		"none allowed": {
			`{"allowWithoutAgent":[]}`,
			config{AgentSocket: agentapi.Socket, AllowWithoutAgent: []string{}},
		},
		"what a runtime adds": {
			`{"capabilities":{"x":true},"runtimeConfig":{"x":[1]},"args":{"cni":{}},"cni.dev/valid-attachments":[],"cni.dev/attachments":[],"acme.example/x":1,"prevResult":null}`,
			config{AgentSocket: agentapi.Socket, AllowWithoutAgent: defaults},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := parseConfig([]byte(tt.conf))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&tt.want, got, cmp.AllowUnexported(config{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseConfigRefuses(t *testing.T) {
	tests := map[string]struct {
		conf string
		says []string
	}{
		"unknown fields":     {`{"z":1,"log":{},"name":"n"}`, []string{`unknown field ["log" "z"]`, "agentSocket, allowWithoutAgent, orphanAfter and status"}},
		"another case":       {`{"agentsocket":"/x"}`, []string{`unknown field ["agentsocket"]`}},
		"another type":       {`{"agentSocket":7,"allowWithoutAgent":"kube-system"}`, []string{`field "agentSocket"`, `field "allowWithoutAgent"`}},
		"relative socket":    {`{"agentSocket":"agent.sock"}`, []string{`"agent.sock" is not an absolute path`}},
		"empty socket":       {`{"agentSocket":""}`, []string{`"" is not an absolute path`}},
		"socket too long":    {`{"agentSocket":"/` + strings.Repeat("x", 106) + `"}`, []string{"at most 106 bytes"}},
		"empty namespace":    {`{"allowWithoutAgent":[""]}`, []string{"a namespace's name is empty"}},
		"status":             {`{"status":"always"}`, []string{`field "status": "always" is not "never"`}},
		"no duration":        {`{"orphanAfter":"soon"}`, []string{`field "orphanAfter": "soon"`}},
		"no time at all":     {`{"orphanAfter":"0s"}`, []string{`field "orphanAfter": "0s"`}},
		"no JSON":            {`{`, []string{"cannot decode"}},
		"no object":          {`[]`, []string{"cannot decode"}},
		"two objects":        {`{}{}`, []string{"cannot decode"}},
		"several at once":    {`{"x":1,"agentSocket":"y"}`, []string{`unknown field ["x"]`, `"y" is not an absolute path`}},
		"list's fields here": {`{"plugins":[]}`, []string{`unknown field ["plugins"]`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := parseConfig([]byte(tt.conf))
			for _, s := range tt.says {
				if err == nil || !strings.Contains(err.Error(), s) {
					t.Errorf("got %v, want %q", err, s)
				}
			}
		})
	}
}

func TestLenientSocket(t *testing.T) {
	for conf, want := range map[string]string{
		`{"agentSocket":"/x/agent.sock"}`:                                     "/x/agent.sock",
		`{"agentSocket":"/x/agent.sock","unknown":1,"allowWithoutAgent":"x"}`: "/x/agent.sock",
		`{"agentSocket":"x"}`:                                                 "",
		`{"agentSocket":1}`:                                                   "",
		`{}`:                                                                  "",
		`{`:                                                                   "",
		``:                                                                    "",
	} {
		if got := lenientSocket([]byte(conf)); got != want {
			t.Errorf("%s: got %q, want %q", conf, got, want)
		}
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"net","type":"fairlead-cni","agentSocket":"/run/x","allowWithoutAgent":["a"],"prevResult":` + prevResult + `}`))
	f.Add([]byte(`{"cniVersion":"0.3.1","prevResult":{"ips":[{"version":"4","address":"10.0.0.1/8","interface":-1}],"interfaces":[null]}}`))
	f.Add([]byte(`{"cniVersion":"1.0.0","prevResult":{"ips":[null],"interfaces":[null],"routes":[null]}}`))
	f.Add([]byte(`{"cniVersion":"1.0.0","prevResult":{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.1/8"}}}`))
	f.Add([]byte(`{"agentSocket":null,"cniVersion":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		socket := lenientSocket(data)
		c, err := parseConfig(data)
		if err != nil {
			return
		}
		if socket != "" && !validSocket(c.AgentSocket) {
			t.Fatalf("DEL would use %q, ADD %q", socket, c.AgentSocket)
		}
		before, err := readPrevious(c)
		if err != nil {
			return
		}
		if !json.Valid(before.print) {
			t.Fatalf("not JSON: %q", before.print)
		}
	})
}
