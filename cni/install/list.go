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
	head, tail []byte // what stands before and behind the plugins
	plugins    []plugin
	versions   []string
}

type plugin struct {
	kind string
	text []byte
}

// parseList reads a configuration as the runtime does: a .conflist is a list, anything
// else one plugin, which the runtime makes a list of.
func parseList(name string, text []byte) (*list, error) {
	fields, err := object(text)
	if err != nil {
		return nil, err
	}
	l := &list{}
	if err := errors.Join(requireName(text, fields), l.readVersions(text, fields)); err != nil {
		return nil, err
	}
	if filepath.Ext(name) != ".conflist" {
		return l, l.wrap(text, fields)
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
	return l, l.add(text, elements...)
}

// wrap makes a list of one plugin's configuration.
func (l *list) wrap(text []byte, fields map[string]span) error {
	var head []string
	for _, name := range []string{"cniVersion", "name"} {
		if at, ok := fields[name]; ok {
			head = append(head, fmt.Sprintf("  %q: %s,\n", name, at.of(text)))
		}
	}
	l.head, l.tail = []byte("{\n"+strings.Join(head, "")+"  \"plugins\": "), []byte("\n}\n")
	trimmed := bytes.TrimSpace(text)
	return l.add(trimmed, span{0, len(trimmed)})
}

func (l *list) add(text []byte, elements ...span) error {
	for n, at := range elements {
		var head struct {
			Type string `json:"type"`
		}
		if err := json.Unmarshal(at.of(text), &head); err != nil {
			return fmt.Errorf("plugin %d: %w", n, err)
		}
		if head.Type == "" {
			return fmt.Errorf("plugin %d has no type", n)
		}
		l.plugins = append(l.plugins, plugin{head.Type, at.of(text)})
	}
	return nil
}

func requireName(text []byte, fields map[string]span) error {
	var name string
	if at, ok := fields["name"]; !ok {
		return errors.New("it has no name")
	} else if err := json.Unmarshal(at.of(text), &name); err != nil {
		return fmt.Errorf("field \"name\": %w", err)
	}
	return nil
}

// readVersions reads what the list says of its version: one, or, since version 1.1 of
// the specification, several beside it.
func (l *list) readVersions(text []byte, fields map[string]span) error {
	var one string
	if at, ok := fields["cniVersion"]; ok {
		if err := json.Unmarshal(at.of(text), &one); err != nil {
			return fmt.Errorf("field \"cniVersion\": %w", err)
		}
		l.versions = []string{one}
	}
	if at, ok := fields["cniVersions"]; ok && one == "" {
		if err := json.Unmarshal(at.of(text), &l.versions); err != nil {
			return fmt.Errorf("field \"cniVersions\": %w", err)
		}
	}
	return nil
}

func isMesh(p plugin) bool { return p.kind == PluginName || p.kind == "istio-cni" }

// meshOnly says that all its plugins are ours or istio-cni's: it makes no network.
func (l *list) meshOnly() bool {
	return len(l.plugins) > 0 && !slices.ContainsFunc(l.plugins, func(p plugin) bool { return !isMesh(p) })
}

// with returns the list's text with an entry put last, and without those of istio-cni.
func (l *list) with(entry []byte) ([]byte, error) {
	plugins := slices.DeleteFunc(slices.Clone(l.plugins), isMesh)
	switch {
	case len(plugins) == 0:
		return nil, errors.New("it has no plugins of its own that ours could follow; chain fairlead-cni by hand, and leave install out of the agent's configuration")
	case strings.HasPrefix(plugins[0].kind, "multus"):
		return nil, errors.New("it is a Multus configuration, and what Multus delegates to would not be chained with ours; " +
			"chain fairlead-cni by hand at the end of the list that Multus delegates to, and leave install out of the agent's configuration")
	case !slices.ContainsFunc(l.versions, func(v string) bool { return slices.Contains(versions, v) }):
		return nil, fmt.Errorf("its cniVersion is %q, and fairlead-cni speaks %s: have its owner write one of them", strings.Join(l.versions, ", "), strings.Join(versions, ", "))
	}
	var out bytes.Buffer
	out.Write(l.head)
	out.WriteString("[")
	for _, p := range append(plugins, plugin{PluginName, entry}) {
		if out.Len() > len(l.head)+1 {
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
func entryOf(socket string, allowWithoutAgent []string) ([]byte, error) {
	if allowWithoutAgent == nil {
		allowWithoutAgent = []string{}
	}
	return json.Marshal(struct {
		Type              string   `json:"type"`
		AgentSocket       string   `json:"agentSocket"`
		AllowWithoutAgent []string `json:"allowWithoutAgent"`
	}{PluginName, socket, allowWithoutAgent})
}
