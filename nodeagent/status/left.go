package status

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// shown is what the annotation says of a captured pod.
const shown = "enabled"

// Left says whether something of ours is in the pod, or may be, or the API still shows
// peers that its traffic goes through the proxy. It is asked of pods on a drained node.
func (p Pod) Left() bool {
	switch {
	case p.Annotation == shown, p.Reason == Draining, p.Reason == Withdrawing:
		return true
	case p.State == Pending && p.Reason == NodeDrained: // it did not start
		return false
	case p.State == NotCaptured, p.State == Unsupported:
		return p.Rules.State != "none" && p.Netns.Known
	case p.State == Pending:
		return p.Intent.Reason == string(NodeDrained) || p.Rules.State != "none"
	}
	return true
}

// ToRelease says whether a drain of the node concerns the pod: it asks to be captured and
// has a sandbox, or something is left in it.
func (p Pod) ToRelease() bool {
	return p.Left() || p.Intent.Reason == string(NodeDrained) && p.Netns.Known
}

// A Step is one thing that an uninstallation takes from the node.
type Step struct {
	What    string  `json:"what"`
	Outcome Outcome `json:"outcome"`
	Message string  `json:"message,omitempty"`
}

// An Outcome says what became of it.
type Outcome string

// The outcomes.
const (
	Removed Outcome = "removed" // or was not there
	Kept    Outcome = "kept"    // on purpose; the message says why, and until when
	Failed  Outcome = "failed"
)

// Clip returns s with its texts cut to what a person reads.
func (s Step) Clip() Step {
	s.What, s.Message = clip(s.What, maxText), clip(s.Message, maxText)
	return s
}

// Brief is the least that is to be said of a step.
func (s Step) Brief() Step { return s.Clip() }

// WriteReleased writes for people what became of the pods of a drained node, and says more
// of those in which something is left.
func WriteReleased(w io.Writer, pods []Pod) error {
	if len(pods) == 0 {
		_, err := fmt.Fprintln(w, "there is no pod to be released")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, err := fmt.Fprintln(table, "NAMESPACE\tPOD\tRELEASED\tSTATE\tREASON")
	var left []Pod
	for _, p := range pods {
		released := "yes"
		if p.Left() {
			released, left = "no", append(left, p)
		}
		if err == nil {
			_, err = fmt.Fprintln(table, strings.Join([]string{printable(p.Namespace), printable(p.Name), released, string(p.State), printable(string(p.Reason))}, "\t"))
		}
	}
	if err == nil {
		err = table.Flush()
	}
	if err == nil {
		_, err = fmt.Fprintf(w, "\n%d released, %d left\n", len(pods)-len(left), len(left))
	}
	for _, p := range left {
		if p.Annotation == shown && p.State == NotCaptured && p.Rules.State == "none" {
			p.Message = "nothing of ours is in it, but the Kubernetes API still shows that it is captured, so that proxies elsewhere may speak to one here"
			p.Remedy = "see what fairlead status says of the API; the annotation goes by itself once it can be written"
		}
		if err == nil {
			_, err = fmt.Fprintf(w, "\n%s %s (%s)%s\n", who([]Pod{p}), p.State, printable(string(p.Reason)), p.notes())
		}
	}
	return err
}

// WriteSteps writes for people what an uninstallation has done.
func WriteSteps(w io.Writer, steps []Step) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range steps {
		cells := []string{string(s.Outcome), printable(s.What)}
		if s.Message != "" {
			cells = append(cells, printable(s.Message))
		}
		if _, err := fmt.Fprintln(table, strings.Join(cells, "\t")); err != nil {
			return err
		}
	}
	return table.Flush()
}
