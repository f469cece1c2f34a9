package ruleset

import (
	"fmt"
	"slices"
	"strings"
)

// Diff is how a ruleset that was found differs from the one that is wanted; empty if not at all.
type Diff []Difference

// Difference is one deviation. Want or Got is empty where nothing is wanted or nothing was found.
type Difference struct {
	Kind  DifferenceKind
	Where string
	Want  string
	Got   string
}

// DifferenceKind says what is wrong with the place.
type DifferenceKind string

// The kinds of difference.
const (
	Missing  DifferenceKind = "missing"
	Added    DifferenceKind = "added"
	Changed  DifferenceKind = "changed"
	Moved    DifferenceKind = "moved"     // a rule that is there, before or behind where it belongs
	InMotion DifferenceKind = "in motion" // changed by somebody under the reader's eyes, again and again
)

func (d Difference) String() string {
	switch {
	case d.Want != "" && d.Got != "":
		return fmt.Sprintf("%s %s: want `%s`, got `%s`", d.Where, d.Kind, d.Want, d.Got)
	case d.Want != "":
		return fmt.Sprintf("%s %s: `%s`", d.Where, d.Kind, d.Want)
	case d.Got != "":
		return fmt.Sprintf("%s %s: `%s`", d.Where, d.Kind, d.Got)
	}
	return fmt.Sprintf("%s %s", d.Where, d.Kind)
}

// String has a line for each difference, and stays readable when somebody has added a thousand rules.
func (d Diff) String() string {
	const most = 20
	var b strings.Builder
	for i, difference := range d {
		if i == most {
			fmt.Fprintf(&b, "and %d more\n", len(d)-most)
			break
		}
		fmt.Fprintln(&b, difference)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// Compare says how got, read from a kernel, differs from want. The order of rules counts; the order of chains does not,
// since hooks and priorities decide.
func Compare(want, got Ruleset) Diff {
	if len(got.Chains) == 0 && len(got.Foreign) == 0 && len(want.Chains) > 0 {
		return Diff{{Kind: Missing, Where: "everything in table inet " + Table}}
	}
	var diff Diff
	for _, foreign := range got.Foreign {
		diff = append(diff, Difference{Kind: Added, Where: "table inet " + Table, Got: printable(foreign)})
	}
	for _, w := range want.Chains {
		i := slices.IndexFunc(got.Chains, func(g Chain) bool { return g.Name == w.Name })
		if i < 0 {
			diff = append(diff, Difference{Kind: Missing, Where: "chain " + w.Name, Want: w.head()})
			continue
		}
		if g := got.Chains[i]; g.head() != w.head() {
			diff = append(diff, Difference{Kind: Changed, Where: "chain " + w.Name, Want: w.head(), Got: g.head()})
		}
		diff = append(diff, compareRules(w, got.Chains[i])...)
	}
	for _, g := range got.Chains {
		if !slices.ContainsFunc(want.Chains, func(w Chain) bool { return w.Name == g.Name }) {
			diff = append(diff, Difference{Kind: Added, Where: "chain " + printable(g.Name), Got: g.head()})
		}
	}
	return diff
}

// compareRules numbers rules from 1, as an operator counts them in a listing.
func compareRules(want, got Chain) Diff {
	if slices.EqualFunc(want.Rules, got.Rules, Rule.Equal) {
		return nil
	}
	wantLeft, gotLeft := outOfOrder(want.Rules, got.Rules)
	var diff Diff
	at := func(kind DifferenceKind, i int, wanted, found string) {
		where := fmt.Sprintf("chain %s rule %d", want.Name, i+1)
		diff = append(diff, Difference{Kind: kind, Where: where, Want: wanted, Got: found})
	}
	take := func(i int, same func(w, g Rule) bool) (int, bool) {
		j := slices.IndexFunc(gotLeft, func(j int) bool { return same(want.Rules[i], got.Rules[j]) })
		if j < 0 {
			return 0, false
		}
		found := gotLeft[j]
		gotLeft = slices.Delete(gotLeft, j, j+1)
		return found, true
	}
	var absent []int
	for _, i := range wantLeft {
		if j, ok := take(i, Rule.Equal); ok {
			at(Moved, i, want.Rules[i].String(), fmt.Sprintf("rule %d", j+1))
		} else {
			absent = append(absent, i)
		}
	}
	sameComment := func(w, g Rule) bool { return w.Comment == g.Comment }
	for _, i := range absent {
		if j, ok := take(i, sameComment); ok {
			at(Changed, i, want.Rules[i].String(), got.Rules[j].String())
		} else {
			at(Missing, i, want.Rules[i].String(), "")
		}
	}
	for _, j := range gotLeft {
		at(Added, j, "", got.Rules[j].String())
	}
	return diff
}

// outOfOrder gives the indexes of those rules that are not in the longest common run of both lists.
func outOfOrder(want, got []Rule) (wantLeft, gotLeft []int) {
	// common[i][j] is the length of the longest common subsequence of want[i:] and got[j:].
	common := make([][]int, len(want)+1)
	for i := range common {
		common[i] = make([]int, len(got)+1)
	}
	for i := len(want) - 1; i >= 0; i-- {
		for j := len(got) - 1; j >= 0; j-- {
			if want[i].Equal(got[j]) {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(want) && j < len(got) {
		switch {
		case want[i].Equal(got[j]):
			i, j = i+1, j+1
		case common[i+1][j] >= common[i][j+1]:
			wantLeft = append(wantLeft, i)
			i++
		default:
			gotLeft = append(gotLeft, j)
			j++
		}
	}
	for ; i < len(want); i++ {
		wantLeft = append(wantLeft, i)
	}
	for ; j < len(got); j++ {
		gotLeft = append(gotLeft, j)
	}
	return wantLeft, gotLeft
}
