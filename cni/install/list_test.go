package install

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func testEntry(t testing.TB) []byte {
	t.Helper()
	entry, err := entryOf(Config{AgentSocket: "/run/fairlead/agent.sock", AllowWithoutAgent: []string{"kube-system", "fairlead-system"}})
	if err != nil {
		t.Fatal(err)
	}
	return entry
}

// derived surveys a directory and returns what our list would be, or the error.
func derived(t testing.TB, dir string) (string, error) {
	t.Helper()
	f, err := survey(dir)
	if err != nil {
		return "", err
	}
	content, err := f.list.with(testEntry(t))
	return string(content), err
}

func TestRefusedPrimaries(t *testing.T) {
	const head = `{"cniVersion": "1.0.0", "name": "net", `
	for name, test := range map[string]struct{ file, text, want string }{
		"empty":             {"10-a.conflist", ``, "is broken, waiting for its owner to write it again: not a JSON object: unexpected end of JSON input"},
		"half":              {"10-a.conflist", head + `"plugins": [{"type": "br`, "unexpected end of JSON input"},
		"more behind":       {"10-a.conflist", head + `"plugins": [{"type": "a"}]}}`, "invalid character '}' after top-level value"},
		"null":              {"10-a.conflist", `null`, "not a JSON object: null"},
		"an array":          {"10-a.conflist", `[]`, "not a JSON object"},
		"no name":           {"10-a.conflist", `{"cniVersion": "1.0.0", "plugins": [{"type": "a"}]}`, "it has no name"},
		"a name in case":    {"10-a.conflist", `{"cniVersion": "1.0.0", "Name": "a", "plugins": [{"type": "a"}]}`, "it has no name"},
		"a name of 3":       {"10-a.conflist", `{"cniVersion": "1.0.0", "name": 3, "plugins": [{"type": "a"}]}`, `field "name"`},
		"plugins twice":     {"10-a.conflist", head + `"plugins": [{"type": "a"}], "plugins": [{"type": "b"}]}`, `the field "plugins" stands there twice`},
		"plugins of text":   {"10-a.conflist", head + `"plugins": "a"}`, `field "plugins"`},
		"plugins that null": {"10-a.conflist", head + `"plugins": null}`, "no plugins of its own"},
		"a plugin of text":  {"10-a.conflist", head + `"plugins": [{"type": "a"}, "b"]}`, "plugin 1: "},
		"no type":           {"10-a.conflist", head + `"plugins": [{"type": "a"}, {"kind": "b"}]}`, "plugin 1 has no type"},
		"no plugins":        {"10-a.conflist", head + `"plugins": []}`, "it has no plugins of its own that ours could follow: set install.mode to dropin"},
		"from a directory":  {"10-a.conflist", head + `"disableCheck": true}`, "it has no plugins of its own that ours could follow"},
		"conf of a list":    {"10-a.conf", head + `"plugins": [{"type": "a"}]}`, "plugin 0 has no type"},
		"json without type": {"10-a.json", head + `"a": 1}`, "plugin 0 has no type"},
		"multus":            {"00-multus.conf", head + `"type": "multus", "delegates": []}`, "it is a Multus configuration"},
		"thick multus":      {"00-multus.conflist", head + `"plugins": [{"type": "multus-shim"}]}`, "set install.mode to chained, which puts fairlead-cni into that list"},
		"old version":       {"10-a.conf", `{"cniVersion": "0.2.0", "name": "a", "type": "a"}`, `its cniVersion is "0.2.0", and fairlead-cni speaks 0.3.1, 0.4.0, 1.0.0, 1.1.0`},
		"no version":        {"10-a.conf", `{"name": "a", "type": "a"}`, `its cniVersion is ""`},
		"version of 1":      {"10-a.conf", `{"cniVersion": 1, "name": "a", "type": "a"}`, `field "cniVersion"`},
		"later version":     {"10-a.conflist", `{"cniVersion": "1.2.0", "cniVersions": ["1.0.0"], "name": "a", "plugins": [{"type": "a"}]}`, `"1.2.0"`},
		"too large":         {"10-a.conf", head + strings.Repeat(" ", maxConfig) + "}", "is larger than 1048576 bytes"},
		"nothing":           {"10-a.txt", "{}", "there is no primary network configuration in DIR, waiting for it"},
		"only the mesh's":   {"10-a.conflist", head + `"plugins": [{"type": "istio-cni"}, {"type": "fairlead-cni"}]}`, "there is no primary network configuration in DIR"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, test.file), test.text)
			got, err := derived(t, dir)
			if want := strings.ReplaceAll(test.want, "DIR", dir); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %q, %v, want an error that says %q", got, err, want)
			}
		})
	}
}

// A broken first file is not skipped: the runtime does not skip it either.
func TestBrokenFirst(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "05-a.conflist"), "{")
	write(t, filepath.Join(dir, "10-b.conflist"), bridgeList)
	if got, err := derived(t, dir); err == nil || !strings.Contains(err.Error(), "05-a.conflist is broken") {
		t.Errorf("got %q, %v", got, err)
	}
}

// Whatever the primary is, it is refused, or our list holds its plugins byte for byte.
func FuzzList(f *testing.F) {
	f.Add("a.conflist", []byte(bridgeList))
	f.Add("a.conf", []byte(` {"cniVersion":"1.0.0","name":"a","type":"b","n":1e400} `))
	f.Add("a.conflist", []byte(`{"cniVersion":"1.0.0","name":"a","plugins":[ {"type":"b"} ,{"type":"istio-cni"}, {"type":"c","d":[{}]}]}`))
	f.Fuzz(func(t *testing.T, name string, text []byte) {
		l, err := parseList(name, text)
		if err != nil {
			return
		}
		got, err := l.with(testEntry(t))
		if err != nil {
			return
		}
		again, err := parseList("a.conflist", got)
		if err != nil {
			t.Fatalf("%v: %s", err, got)
		}
		want := append(slices.DeleteFunc(slices.Clone(l.plugins), isMesh), plugin{kind: PluginName, text: testEntry(t)})
		same := func(a, b plugin) bool { return a.kind == b.kind && bytes.Equal(a.text, b.text) }
		if !slices.EqualFunc(again.plugins, want, same) || !slices.Equal(again.versions, l.versions) || !json.Valid(got) {
			t.Errorf("from %q\ncame %q", text, got)
		}
	})
}
