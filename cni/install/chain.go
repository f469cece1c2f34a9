package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
)

// A chain is a text of somebody else's, and the plugins in it that ours may follow:
// those of a list, or those of the list that Multus delegates to.
type chain struct {
	text     []byte
	plugins  []plugin
	versions []string
}

// chain finds the plugins that a file's own text holds.
func (l *list) chain() (chain, error) {
	switch {
	case l.multus():
		return l.delegate()
	case l.single:
		return chain{}, errors.New("it is one plugin and no list, in which ours could follow: set install.mode to owned, which makes a list of it")
	case len(l.plugins) == 0:
		return chain{}, errors.New("it has no plugins of its own that ours could follow: set install.mode to dropin")
	}
	return chain{l.text, l.plugins, l.versions}, nil
}

var errElsewhere = errors.New("what Multus delegates to stands elsewhere")

// delegate finds the list inside a configuration of Multus to which it delegates a
// pod's first network.
func (l *list) delegate() (chain, error) {
	multus, err := object(l.text, l.plugins[0].at)
	if err != nil {
		return chain{}, err
	}
	at, ok := multus["delegates"]
	if !ok {
		return chain{}, errElsewhere
	}
	delegates, err := array(l.text, at)
	if err != nil {
		return chain{}, fmt.Errorf("field \"delegates\": %w", err)
	}
	if len(delegates) == 0 {
		return chain{}, errElsewhere
	}
	first, err := object(l.text, delegates[0])
	if err != nil {
		return chain{}, fmt.Errorf("field \"delegates\": %w", err)
	}
	at, ok = first["plugins"]
	if !ok {
		return chain{}, errors.New("it is a Multus configuration that delegates to one plugin and to no list, in which ours could follow: give Multus a list (plugins) to delegate to")
	}
	elements, err := array(l.text, at)
	if err != nil {
		return chain{}, fmt.Errorf("field \"delegates\": %w", err)
	}
	inner := list{text: l.text}
	if err := errors.Join(inner.add(elements...), inner.readVersions(first)); err != nil {
		return chain{}, fmt.Errorf("field \"delegates\": %w", err)
	}
	return chain{l.text, inner.plugins, inner.versions}, nil
}

// clusterNetwork is what Multus calls a pod's first network, if that does not stand in
// its own configuration: the name of a network, or the path of its file.
func (l *list) clusterNetwork() string {
	var multus struct {
		ClusterNetwork string `json:"clusterNetwork"`
	}
	_ = json.Unmarshal(l.plugins[0].text, &multus) // of another type it names nothing
	return multus.ClusterNetwork
}

// delegatedTo finds the file of the list that Multus delegates to.
func (f *found) delegatedTo() (string, chain, error) {
	want := f.list.clusterNetwork()
	for _, name := range f.names {
		if want == "" || name == f.primary {
			continue
		}
		l, err := f.load(name)
		if filepath.Base(want) == name || err == nil && l.name == want {
			if err != nil {
				return "", chain{}, err
			}
			c, err := l.chain()
			return name, c, err
		}
	}
	return "", chain{}, fmt.Errorf("it is a Multus configuration, and the list that it delegates to (delegates: none, clusterNetwork: %q) is not in %s: "+
		"chain fairlead-cni by hand at the end of that list, and leave install out of the agent's configuration", want, f.dir)
}

// with returns the text with an entry put behind the plugins, and no other of ours. All
// else keeps its bytes; taking the entry out again gives those that were before.
func (c chain) with(entry []byte) ([]byte, error) {
	switch {
	case slices.ContainsFunc(c.plugins, isIstio):
		return nil, errors.New("istio-cni stands in it: uninstall istio-cni first, or set install.mode to owned, which leaves it out")
	case !slices.ContainsFunc(c.plugins, func(p plugin) bool { return !isOurs(p) }):
		return nil, errors.New("it has no plugins of its own that ours could follow")
	case c.endsWith(entry):
		return c.text, nil
	}
	if err := speaks(c.versions); err != nil {
		return nil, err
	}
	var at int
	for _, p := range c.plugins {
		if !isOurs(p) {
			at = p.at.to
		}
	}
	return slices.Concat(c.rest(0, at), []byte(",\n    "), entry, c.rest(at, len(c.text))), nil
}

// endsWith says whether the entry stands there as it should, in whatever spelling.
func (c chain) endsWith(entry []byte) bool {
	last := len(c.plugins) - 1
	var have bytes.Buffer
	return slices.IndexFunc(c.plugins, isOurs) == last && json.Compact(&have, c.plugins[last].text) == nil && bytes.Equal(have.Bytes(), entry)
}

// without returns the text without entries of ours.
func (c chain) without() []byte { return c.rest(0, len(c.text)) }

// rest returns what a part of the text is without entries of ours.
func (c chain) rest(from, to int) []byte {
	var out []byte
	for _, gone := range c.ours() {
		if from <= gone.from && gone.to <= to {
			out = append(out, c.text[from:gone.from]...)
			from = gone.to
		}
	}
	return append(out, c.text[from:to]...)
}

// ours is where entries of ours stand, each with the comma that sets it apart.
func (c chain) ours() []span {
	var spans []span
	before := -1 // the end of the plugin before, if there is one that stays
	for n, p := range c.plugins {
		switch {
		case !isOurs(p):
		case before >= 0:
			spans = append(spans, span{before, p.at.to})
		case n+1 < len(c.plugins):
			spans = append(spans, span{p.at.from, c.plugins[n+1].at.from})
		}
		if before >= 0 || !isOurs(p) {
			before = p.at.to
		}
	}
	return spans
}
