package status

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Exit codes of "fairlead status".
const (
	ExitOK        = 0 // all as intended
	ExitUnasked   = 1 // could not ask
	ExitBypassing = 2 // at least one pod is Bypassing
	ExitAttention = 3 // none is, but one is Blocked, Unsupported, or Pending for over a minute
)

// pendingTooLong makes a Pending pod one that needs attention.
const pendingTooLong = time.Minute

// ExitCode sums the pods up.
func ExitCode(pods []Pod, now time.Time) int {
	code := ExitOK
	for _, p := range pods {
		switch {
		case p.State == Bypassing:
			return ExitBypassing
		case p.State == Blocked, p.State == Unsupported,
			p.State == Pending && now.Sub(p.Since) > pendingTooLong:
			code = ExitAttention
		}
	}
	return code
}

// WriteTable writes a report for people: the node, a row for each pod, and what is
// to be said of those that are not simply as they should be.
func WriteTable(w io.Writer, node Node, pods []Pod, now time.Time) error {
	if err := writeNode(w, node, now); err != nil {
		return err
	}
	if len(pods) == 0 {
		_, err := fmt.Fprintln(w, "no pods are known on this node")
		return err
	}
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	_, err := fmt.Fprintln(table, "NAMESPACE\tPOD\tSTATE\tREASON\tRULES\tLISTENERS\tPROXIES\tSINCE")
	for _, p := range pods {
		if err == nil {
			_, err = fmt.Fprintln(table, strings.Join([]string{
				printable(p.Namespace), printable(p.Name), string(p.State), printable(string(p.Reason)),
				p.rulesCell(), p.Listeners.String(), p.proxiesCell(), since(p.Since, now),
			}, "\t"))
		}
	}
	if err == nil {
		err = table.Flush()
	}
	if err == nil {
		_, err = fmt.Fprintf(w, "\n%s\n", summary(pods))
	}
	for _, text := range notes(pods) {
		if err == nil {
			_, err = fmt.Fprintf(w, "\n%s\n", text)
		}
	}
	return err
}

func writeNode(w io.Writer, node Node, now time.Time) error {
	var proxies []string
	for _, p := range node.Proxies {
		pods := "pods"
		if p.Workloads == 1 {
			pods = "pod"
		}
		proxies = append(proxies, fmt.Sprintf("pid %d (%s, %d %s, connected %s ago%s)", p.PID, p.State, p.Workloads, pods, since(p.Since, now), p.earlier()))
	}
	if len(proxies) == 0 {
		proxies = []string{"none connected"}
	}
	_, err := fmt.Fprintf(w, "agent %s, up %s; pods from %s; node proxy: %s\n",
		printable(node.Version), since(node.Started, now), printable(node.Source), strings.Join(proxies, ", "))
	if err == nil && !node.Synced {
		_, err = fmt.Fprintln(w, "not all pods are known yet: what follows is not complete")
	}
	for _, problem := range node.Problems {
		if err == nil {
			_, err = fmt.Fprintln(w, "problem:", printable(problem))
		}
	}
	if err == nil {
		_, err = fmt.Fprintln(w)
	}
	return err
}

// earlier says how the process's earlier connections ended.
func (p Proxy) earlier() string {
	switch p.EndedBadly {
	case 0:
		return ""
	case 1:
		return "; its connection before ended badly: " + printable(p.Why)
	}
	return fmt.Sprintf("; its %d connections before ended badly, the last: %s", p.EndedBadly, printable(p.Why))
}

// rulesCell is the form of the rules and whether DNS is in them.
func (p Pod) rulesCell() string {
	switch {
	case p.Rules.State == "none" || p.Rules.State == "":
		return "-"
	case p.Rules.DNS:
		return p.Rules.State + "+dns"
	}
	return p.Rules.State
}

// String lists the ports that are listened on; - if that is not known.
func (l Listeners) String() string {
	if !l.Known {
		return "-"
	}
	var up []string
	for _, port := range []struct {
		up   bool
		name string
	}{{l.Outbound, "15001"}, {l.Inbound, "15006"}, {l.HBONE, "15008"}, {l.DNS, "15053"}} {
		if port.up {
			up = append(up, port.name)
		}
	}
	if len(up) == 0 {
		return "none"
	}
	return strings.Join(up, ",")
}

func (p Pod) proxiesCell() string {
	if len(p.Proxies) == 0 {
		return "-"
	}
	var cells []string
	for _, a := range p.Proxies {
		cells = append(cells, fmt.Sprintf("%d:%s", a.PID, a.State))
	}
	return strings.Join(cells, ",")
}

// summary counts the pods by state, the most alarming first.
func summary(pods []Pod) string {
	count := map[State]int{}
	for _, p := range pods {
		count[p.State]++
	}
	var parts []string
	for _, s := range []State{Bypassing, Blocked, Unsupported, Pending, Captured, NotCaptured} {
		if count[s] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", count[s], s))
		}
	}
	noun := "pods"
	if len(pods) == 1 {
		noun = "pod"
	}
	return fmt.Sprintf("%d %s: %s", len(pods), noun, strings.Join(parts, ", "))
}

// since is how long ago t was, in the two largest units; - for a time that is not
// known. A clock that was set back gives 0s.
func since(t, now time.Time) string {
	if t.IsZero() {
		return "-"
	}
	seconds := max(0, int64(now.Sub(t)/time.Second))
	units := []struct {
		name string
		size int64
	}{{"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}}
	i := 0
	for i < len(units)-1 && seconds < units[i].size {
		i++
	}
	text := strconv.FormatInt(seconds/units[i].size, 10) + units[i].name
	if i+1 < len(units) {
		if rest := seconds % units[i].size / units[i+1].size; rest > 0 {
			text += strconv.FormatInt(rest, 10) + units[i+1].name
		}
	}
	return text
}

// printable keeps control characters from moving the cursor or breaking a row.
func printable(s string) string {
	quoted := strconv.Quote(s)
	if inner := quoted[1 : len(quoted)-1]; strings.ReplaceAll(inner, `\"`, `"`) == s {
		return s
	}
	return quoted
}
