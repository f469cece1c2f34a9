package enroll_test

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Traits are what a phase says of a pod and its node.
type traits struct {
	object string // "", "plain", "labelled"
	box    bool
	proxy  string // "there", "away"; "" if the phase does not say
	conn   bool   // one is held
	old    bool   // that is older than the capture
	recipe []string
}

// gone: the object of a pod that runs is not there.
func (t traits) gone() bool { return t.box && t.object == "" }

// traitsOf also says how a phase is come by, from nothing, with a proxy.
var traitsOf = map[phase]traits{
	nothing:        {},
	plainObject:    {object: "plain", recipe: []string{"plain object"}},
	labelledObject: {object: "labelled", proxy: "there", recipe: []string{"labelled object"}},
	unservedObject: {object: "labelled", proxy: "away", recipe: []string{"labelled object", "proxy away"}},

	plain:          {object: "plain", box: true, recipe: []string{"plain object", "ADD"}},
	plainConnected: {object: "plain", box: true, conn: true, recipe: []string{"plain object", "ADD", "connect"}},
	plainGone:      {box: true, recipe: []string{"plain object", "ADD", "object gone"}},

	captured:          {object: "labelled", box: true, proxy: "there", recipe: []string{"labelled object", "ADD"}},
	capturedConnected: {object: "labelled", box: true, proxy: "there", conn: true, recipe: []string{"labelled object", "ADD", "connect"}},
	capturedOld:       {object: "labelled", box: true, proxy: "there", conn: true, old: true, recipe: []string{"plain object", "ADD", "connect", "label"}},
	capturedGone:      {box: true, proxy: "there", recipe: []string{"labelled object", "ADD", "object gone"}},

	blocked:     {object: "labelled", box: true, proxy: "away", recipe: []string{"labelled object", "ADD", "proxy away"}},
	blockedOld:  {object: "labelled", box: true, proxy: "away", conn: true, recipe: []string{"plain object", "ADD", "connect", "label", "proxy away"}},
	blockedGone: {box: true, proxy: "away", recipe: []string{"labelled object", "ADD", "object gone", "proxy away"}},

	waiting:          {object: "labelled", box: true, proxy: "away", recipe: []string{"plain object", "ADD", "proxy away", "label"}},
	waitingConnected: {object: "labelled", box: true, proxy: "away", conn: true, recipe: []string{"plain object", "ADD", "connect", "proxy away", "label"}},
	waitingGone:      {box: true, proxy: "away", recipe: []string{"plain object", "ADD", "proxy away", "label", "object gone"}},

	draining:     {object: "plain", box: true, proxy: "there", conn: true, recipe: []string{"labelled object", "ADD", "connect", "unlabel"}},
	drainingGone: {box: true, proxy: "there", conn: true, recipe: []string{"labelled object", "ADD", "connect", "unlabel", "object gone"}},
}

// Why something cannot be. The matrix says so in its empty cells.
const (
	wasThere     = "there is one already"
	noObject     = "there is no object"
	hasLabel     = "it has the label"
	hasNoLabel   = "it does not have the label"
	noSandbox    = "there is no sandbox"
	hasSandbox   = "there is a sandbox"
	hasConn      = "a connection is held"
	hasNone      = "no connection is held"
	objectIsGone = "as while the object is there"
	proxyAway    = "the phase is one without a proxy"
	proxyThere   = "the phase is one with a proxy"
	notServed    = "it is about an ADD that finds no proxy"
	byChance     = "how far a pod is opened up that has no proxy is a matter of chance"
	notCaptured  = "it is about a captured pod, with no connection through the proxy"
)

// when is why something cannot be, if it cannot.
func when(bad bool, why string) string {
	if bad {
		return why
	}
	return ""
}

func anywhere(traits) string         { return "" }
func noObjectYet(t traits) string    { return when(t.object != "", wasThere) }
func withObject(t traits) string     { return when(t.object == "", noObject) }
func withSandbox(t traits) string    { return when(!t.box, noSandbox) }
func withoutSandbox(t traits) string { return when(t.box, hasSandbox) }
func withProxy(t traits) string      { return when(t.proxy == "away", proxyAway) }
func withoutProxy(t traits) string   { return when(t.proxy == "there", proxyThere) }
func unserved(t traits) string {
	return when(t.box || t.object != "labelled" || t.proxy != "away", notServed)
}

// first is the first reason that there is.
func first(reasons ...string) string {
	for _, r := range reasons {
		if r != "" {
			return r
		}
	}
	return ""
}

// A pair is a cell of the matrix: what happens to a pod in a phase.
type pair struct {
	Phase  phase
	Column string
}

// A matrix counts what has happened to pods in which phase.
type matrix map[pair]int

// possible lists all pairs that can be.
func possible() []pair {
	var all []pair
	for _, p := range phases {
		for _, c := range columns {
			if c.never(traitsOf[p]) == "" {
				all = append(all, pair{p, c.name})
			}
		}
	}
	return all
}

// missing lists the pairs that can be and have not been.
func (m matrix) missing() []pair {
	var all []pair
	for _, p := range possible() {
		if m[p] == 0 {
			all = append(all, p)
		}
	}
	return all
}

// print writes the matrix as a table, and why there is nothing in its empty cells.
func (m matrix) print(out io.Writer) error {
	reasons := map[string]string{}
	for i, p := range phases {
		fmt.Fprintf(out, "%2d  %s\n", i+1, p)
	}
	table := tabwriter.NewWriter(out, 0, 0, 1, ' ', tabwriter.AlignRight)
	line := []string{"event"}
	for i := range phases {
		line = append(line, fmt.Sprint(i+1))
	}
	width := 0
	for _, c := range columns {
		width = max(width, len(c.name))
	}
	fmt.Fprintf(table, "%-*s\t", width, line[0])
	fmt.Fprintln(table, strings.Join(line[1:], "\t")+"\t")
	for _, c := range columns {
		fmt.Fprintf(table, "%-*s\t", width, c.name)
		for _, p := range phases {
			why := c.never(traitsOf[p])
			switch {
			case why == "":
				fmt.Fprintf(table, "%d\t", m[pair{p, c.name}])
			case reasons[why] == "":
				reasons[why] = string(rune('a' + len(reasons)))
				fallthrough
			default:
				fmt.Fprintf(table, "%s\t", reasons[why])
			}
		}
		fmt.Fprintln(table)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for i := range len(reasons) {
		for why, letter := range reasons {
			if letter == string(rune('a'+i)) {
				fmt.Fprintf(out, "%s   cannot be: %s\n", letter, why)
			}
		}
	}
	return nil
}
