package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// versions are those of the CNI specification that our plugin speaks.
var versions = []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}

// A list is a runtime's list of plugins: parts of the text of a file, which are copied
// and never written anew, so that numbers, order and spelling stay what they are.
type list struct {
	file       string // its name
	name       string
	single     bool   // the file is one plugin's, of which the runtime makes a list
	inlined    bool   // no directory of plugins belongs to it (loadOnlyInlinedPlugins)
	text       []byte // of the file
	head, tail []byte // what stands before and behind the plugins
	plugins    []plugin
	versions   []string
	version    span // of its cniVersion, if it has one
}

// A plugin is one entry of a list, and where it stands in the list's file.
type plugin struct {
	kind string
	text []byte
	at   span
}

// parseList reads a configuration as the runtime does: a .conflist is a list, anything
// else one plugin, which the runtime makes a list of.
func parseList(name string, text []byte) (*list, error) {
	fields, err := object(text, all(text))
	if err != nil {
		return nil, err
	}
	l := &list{file: name, text: text}
	if err := errors.Join(l.readName(fields), l.readVersions(fields), l.readInlined(fields)); err != nil {
		return nil, err
	}
	if filepath.Ext(name) != ".conflist" {
		return l, l.wrap(fields)
	}
	plugins, ok := fields["plugins"]
	if !ok {
		l.head, l.tail = text, nil
		return l, nil // legal: they come from a directory; see with
	}
	elements, err := array(text, plugins)
	if err != nil {
		return nil, fmt.Errorf("field \"plugins\": %w", err)
	}
	l.head, l.tail = text[:plugins.from], text[plugins.to:]
	return l, l.add(elements...)
}

// wrap makes a list of one plugin's configuration.
func (l *list) wrap(fields map[string]span) error {
	var head []string
	for _, name := range []string{"cniVersion", "name"} {
		if at, ok := fields[name]; ok {
			head = append(head, fmt.Sprintf("  %q: %s,\n", name, at.of(l.text)))
		}
	}
	l.single = true
	l.head, l.tail = []byte("{\n"+strings.Join(head, "")+"  \"plugins\": "), []byte("\n}\n")
	from := len(l.text) - len(bytes.TrimLeft(l.text, " \t\r\n"))
	return l.add(span{from, len(bytes.TrimRight(l.text, " \t\r\n"))})
}

func (l *list) add(elements ...span) error {
	for n, at := range elements {
		var head struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(at.of(l.text), &head); err != nil {
			return fmt.Errorf("plugin %d: %w", n, err)
		}
		if head.Type == "" {
			return fmt.Errorf("plugin %d has no type", n)
		}
		l.plugins = append(l.plugins, plugin{head.Type, at.of(l.text), at})
	}
	return nil
}

func (l *list) readName(fields map[string]span) error {
	if at, ok := fields["name"]; !ok {
		return errors.New("it has no name")
	} else if err := json.Unmarshal(at.of(l.text), &l.name); err != nil {
		return fmt.Errorf("field \"name\": %w", err)
	}
	return nil
}

// readInlined reads what runtimes take as true or as "True".
func (l *list) readInlined(fields map[string]span) error {
	at, ok := fields["loadOnlyInlinedPlugins"]
	if !ok {
		return nil
	}
	word := strings.ToLower(strings.Trim(string(at.of(l.text)), `"`))
	if word != "true" && word != "false" {
		return fmt.Errorf("field \"loadOnlyInlinedPlugins\": %s is neither true nor false", at.of(l.text))
	}
	l.inlined = word == "true"
	return nil
}

// readVersions reads what the list says of its version: one, or, since version 1.1 of
// the specification, several beside it.
func (l *list) readVersions(fields map[string]span) error {
	var one string
	if at, ok := fields["cniVersion"]; ok {
		if err := json.Unmarshal(at.of(l.text), &one); err != nil {
			return fmt.Errorf("field \"cniVersion\": %w", err)
		}
		l.versions, l.version = []string{one}, at
	}
	if at, ok := fields["cniVersions"]; ok && one == "" {
		if err := json.Unmarshal(at.of(l.text), &l.versions); err != nil {
			return fmt.Errorf("field \"cniVersions\": %w", err)
		}
	}
	return nil
}

const istioName = "istio-cni"

func isOurs(p plugin) bool  { return p.kind == PluginName }
func isIstio(p plugin) bool { return p.kind == istioName }
func isMesh(p plugin) bool  { return isOurs(p) || isIstio(p) }

// meshOnly says that all its plugins are ours or istio-cni's: it makes no network.
func (l *list) meshOnly() bool {
	return len(l.plugins) > 0 && !slices.ContainsFunc(l.plugins, func(p plugin) bool { return !isMesh(p) })
}

func (l *list) multus() bool {
	return len(l.plugins) > 0 && strings.HasPrefix(l.plugins[0].kind, "multus")
}

// speaks says why our plugin cannot stand in a list of these versions.
func speaks(listed []string) error {
	if slices.ContainsFunc(listed, func(v string) bool { return slices.Contains(versions, v) }) {
		return nil
	}
	return fmt.Errorf("its cniVersion is %q, and fairlead-cni speaks %s: have its owner write one of them", strings.Join(listed, ", "), strings.Join(versions, ", "))
}

// with returns the list's text with an entry put last, and without those of istio-cni.
func (l *list) with(entry []byte) ([]byte, error) {
	plugins := slices.DeleteFunc(slices.Clone(l.plugins), isMesh)
	switch {
	case len(plugins) == 0:
		return nil, errors.New("it has no plugins of its own that ours could follow: set install.mode to dropin")
	case l.multus():
		return nil, errors.New("it is a Multus configuration, which its owner writes anew, for the list that it delegates to: " +
			"set install.mode to chained, which puts fairlead-cni into that list")
	}
	if err := speaks(l.versions); err != nil {
		return nil, err
	}
	var out bytes.Buffer
	out.Write(l.head)
	out.WriteString("[")
	for n, p := range append(plugins, plugin{kind: PluginName, text: entry}) {
		if n > 0 {
			out.WriteString(",")
		}
		out.WriteString("\n    ")
		out.Write(p.text)
	}
	out.WriteString("\n  ]")
	out.Write(l.tail)
	return out.Bytes(), nil
}

// entryOf is our entry.
func entryOf(c Config) ([]byte, error) {
	entry := struct {
		Type              string   `json:"type"`
		AgentSocket       string   `json:"agentSocket"`
		AllowWithoutAgent []string `json:"allowWithoutAgent"`
		Status            Status   `json:"status,omitempty"`
		OrphanAfter       string   `json:"orphanAfter,omitempty"`
	}{Type: PluginName, AgentSocket: c.AgentSocket, AllowWithoutAgent: c.AllowWithoutAgent}
	if entry.AllowWithoutAgent == nil {
		entry.AllowWithoutAgent = []string{}
	}
	if c.Status == StatusNever {
		entry.Status = StatusNever
	}
	if c.OrphanAfter > 0 {
		entry.OrphanAfter = c.OrphanAfter.String()
	}
	return json.Marshal(entry)
}
