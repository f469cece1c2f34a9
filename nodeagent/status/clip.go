package status

import (
	"fmt"
	"slices"
	"strings"
)

// What a report shows of one text and of one list. Texts come from elsewhere: a
// pod's annotations, a proxy's words, a manifest's errors.
const (
	maxText  = 1024
	maxLines = 20

	briefText = 250 // room for every name that Kubernetes allows
	briefList = 5
)

// Clip returns n with its texts and lists cut to what a person reads.
func (n Node) Clip() Node {
	n.Version, n.Source = clip(n.Version, maxText), clip(n.Source, maxText)
	n.Problems = clipLines(n.Problems, maxLines, maxText)
	n.Proxies = slices.Clone(n.Proxies)
	for i := range n.Proxies {
		n.Proxies[i].Why = clip(n.Proxies[i].Why, maxText)
	}
	return n
}

// Brief returns the least that is to be said of the node, where Clip is still too
// long to be sent. It fits, whatever n is.
func (n Node) Brief() Node {
	n.Version, n.Source = clip(n.Version, briefText), clip(n.Source, briefText)
	n.Problems = append(clipLines(n.Problems, briefList, briefText), fmt.Sprintf(
		"this head of the report was too long to be sent and is shortened; %d proxies are connected", len(n.Proxies)))
	n.Proxies = first(n.Proxies, briefList)
	for i := range n.Proxies {
		n.Proxies[i].State, n.Proxies[i].Why = clip(n.Proxies[i].State, briefText), clip(n.Proxies[i].Why, briefText)
	}
	return n
}

// Clip returns p with its texts and lists cut to what a person reads.
func (p Pod) Clip() Pod {
	p.Message, p.Remedy = clip(p.Message, maxText), clip(p.Remedy, maxText)
	p.Intent.Message = clip(p.Intent.Message, maxText)
	p.Intent.Warnings = clipLines(p.Intent.Warnings, maxLines, maxText)
	p.Proxies = slices.Clone(p.Proxies)
	for i := range p.Proxies {
		p.Proxies[i].Text = clip(p.Proxies[i].Text, maxText)
	}
	return p
}

// Brief returns the least that is to be said of the pod, where Clip is still too
// long to be sent: which it is, its state, and why. It fits, whatever p is.
func (p Pod) Brief() Pod {
	note := fmt.Sprintf("this pod's report was too long to be sent and is shortened; %d proxies are connected", len(p.Proxies))
	b := Pod{
		Namespace: clip(p.Namespace, briefText), Name: clip(p.Name, briefText), UID: clip(p.UID, briefText),
		Intent:         Intent{Capture: p.Intent.Capture, Reason: clip(p.Intent.Reason, briefText), Warnings: []string{note}},
		Netns:          Netns{Known: p.Netns.Known},
		Rules:          Rules{State: clip(p.Rules.State, briefText), DNS: p.Rules.DNS, Checked: p.Rules.Checked, Repaired: p.Rules.Repaired},
		Listeners:      p.Listeners,
		Proxies:        first(p.Proxies, briefList),
		OldConnections: p.OldConnections,
		Annotation:     clip(p.Annotation, briefText),
		State:          p.State, Reason: p.Reason, Since: p.Since,
		Message: clip(p.Message, briefText), Remedy: clip(p.Remedy, briefText),
	}
	for i := range b.Proxies {
		b.Proxies[i].State, b.Proxies[i].Text = clip(b.Proxies[i].State, briefText), clip(b.Proxies[i].Text, briefText)
	}
	return b
}

func clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}

// clipLines keeps the first few, and says how many more there are.
func clipLines(lines []string, most, text int) []string {
	kept := first(lines, most)
	for i := range kept {
		kept[i] = clip(kept[i], text)
	}
	if more := len(lines) - len(kept); more > 0 {
		kept = append(kept, fmt.Sprintf("… %d more", more))
	}
	return kept
}

// first returns a copy of the first few of a list.
func first[T any](list []T, most int) []T {
	return slices.Clone(list[:min(len(list), most)])
}
