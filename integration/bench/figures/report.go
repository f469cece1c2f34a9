// Package figures is what benchmarks have measured: for people as a table, and as JSON
// for machines, and for one program that takes in what another has measured.
//
// # Failures it survives
//
//   - A row that could not be measured: it stands there, with the reason.
package figures

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A Report is what a run has measured.
type Report struct {
	Began     time.Time `json:"began"`
	Kernel    string    `json:"kernel"`
	CPUs      int       `json:"cpus"`
	Load      float64   `json:"load"` // average of the minute before the run
	LoadAfter float64   `json:"loadAfter"`
	Noisy     bool      `json:"noisy"`
	Figures
}

// Figures are what came of some rows.
type Figures struct {
	Measures []Measure `json:"measures"`
	Failures []Failure `json:"failures"`
}

// Add takes in what came of a row.
func (f *Figures) Add(row string, measures []Measure, err error) {
	for _, m := range measures {
		m.Row = row
		m.judge()
		f.Measures = append(f.Measures, m)
	}
	if err != nil {
		f.Failures = append(f.Failures, Failure{row, err.Error()})
	}
}

// Has says whether anything came of a row.
func (f *Figures) Has(row string) bool {
	return slices.ContainsFunc(f.Measures, func(m Measure) bool { return m.Row == row }) ||
		slices.ContainsFunc(f.Failures, func(failure Failure) bool { return failure.Row == row })
}

// A Measure is one figure.
type Measure struct {
	Row    string   `json:"row"`
	What   string   `json:"what"`
	Value  float64  `json:"value"`
	Unit   string   `json:"unit"`
	Budget *float64 `json:"budget,omitempty"` // at most
	Met    *bool    `json:"met,omitempty"`    // nil without a budget
	Others []Other  `json:"others,omitempty"`
	Note   string   `json:"note,omitempty"`
}

// An Other is what the figure is compared with, in the same unit and from the same run.
type Other struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Ratio float64 `json:"ratio"` // to the measure's own value
}

// A Failure is a row that could not be measured, or not as a whole.
type Failure struct {
	Row   string `json:"row"`
	Error string `json:"error"`
}

func (m *Measure) judge() {
	if m.Budget != nil {
		met := m.Value <= *m.Budget
		m.Met = &met
	}
	for i := range m.Others {
		if m.Value > 0 {
			m.Others[i].Ratio = m.Others[i].Value / m.Value
		}
	}
}

// ClusterRows are the rows of "make bench" that need a Kubernetes cluster. They are
// measured by a program of their own, since what makes a cluster is a module of its own.
var ClusterRows = []string{"cluster-start", "cluster-deployment", "cluster-memory"}

// AtMost is a budget.
func AtMost(budget float64) *float64 { return &budget }

// Missed are the measures over their budget.
func (r *Report) Missed() int {
	missed := 0
	for _, m := range r.Measures {
		if m.Met != nil && !*m.Met {
			missed++
		}
	}
	return missed
}

// WriteJSON writes the report for machines.
func (r *Report) WriteJSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}

// Write writes the report for people.
func (r *Report) Write(w io.Writer) error {
	fmt.Fprintf(w, "Linux %s, %d CPUs, load average %.2f before, %.2f after", r.Kernel, r.CPUs, r.Load, r.LoadAfter)
	if r.Noisy {
		fmt.Fprint(w, ": NOISY, other work ran on this machine; the figures are a rehearsal")
	}
	fmt.Fprint(w, "\n\n")
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "WHAT\tMEASURED\tBUDGET\t\tCOMPARED WITH, IN THIS RUN")
	var notes []string
	for _, m := range r.Measures {
		budget, verdict := "-", ""
		if m.Budget != nil {
			budget = "≤ " + figure(*m.Budget, m.Unit)
			verdict = map[bool]string{true: "met", false: "MISSED"}[*m.Met]
		}
		what := m.What
		if m.Note != "" {
			if !slices.Contains(notes, m.Note) {
				notes = append(notes, m.Note)
			}
			what += fmt.Sprintf(" [%d]", slices.Index(notes, m.Note)+1)
		}
		var others []string
		for _, o := range m.Others {
			others = append(others, fmt.Sprintf("%s: %s (%.3g × ours)", o.Name, figure(o.Value, m.Unit), o.Ratio))
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", what, figure(m.Value, m.Unit), budget, verdict, strings.Join(others, "; "))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for i, note := range notes {
		fmt.Fprintf(w, "[%d] %s\n", i+1, note)
	}
	for _, f := range r.Failures {
		fmt.Fprintf(w, "NOT MEASURED: %s: %s\n", f.Row, f.Error)
	}
	_, err := fmt.Fprintf(w, "%d missed\n", r.Missed())
	return err
}

// figure shows three digits, as far as the unit has them.
func figure(value float64, unit string) string {
	digits := 0
	for limit := 100.0; digits < 3 && value < limit && value != float64(int64(value)); limit /= 10 {
		digits++
	}
	return strings.TrimSpace(fmt.Sprintf("%.*f %s", digits, value, unit))
}
