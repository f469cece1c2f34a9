package status

import (
	"fmt"
	"strings"
)

// notes says more than a row of the pods that are noteworthy, once of those of which
// the same is to be said: one cause may concern all pods of a node.
func notes(pods []Pod) []string {
	var texts []string
	alike := map[string][]Pod{}
	for _, p := range pods {
		if !p.noteworthy() {
			continue
		}
		text := fmt.Sprintf("%s (%s)%s", p.State, printable(string(p.Reason)), p.notes())
		if alike[text] == nil {
			texts = append(texts, text)
		}
		alike[text] = append(alike[text], p)
	}
	for i, text := range texts {
		texts[i] = who(alike[text]) + " " + text
	}
	return texts
}

// who names a few pods, and the verb.
func who(pods []Pod) string {
	const most = 3
	names := make([]string, 0, most)
	for _, p := range first(pods, most) {
		names = append(names, printable(p.Namespace)+"/"+printable(p.Name))
	}
	switch more := len(pods) - most; {
	case len(pods) == 1:
		return names[0] + " is"
	case more > 0:
		return fmt.Sprintf("%s and %d more are", strings.Join(names, ", "), more)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " and " + names[last] + " are"
}

// noteworthy pods get more than a row.
func (p Pod) noteworthy() bool {
	return p.Remedy != "" || len(p.Intent.Warnings) > 0 || (p.State != Captured && p.State != NotCaptured)
}

func (p Pod) notes() string {
	var b strings.Builder
	for _, note := range []struct{ label, text string }{
		{"", p.Message}, {"remedy: ", p.Remedy}, {"warning: ", strings.Join(p.Intent.Warnings, "; ")},
	} {
		if note.text != "" {
			b.WriteString("\n  " + note.label + printable(note.text))
		}
	}
	return b.String()
}
