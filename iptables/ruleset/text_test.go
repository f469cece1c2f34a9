package ruleset

import (
	"strings"
	"testing"
)

// What nft 1.0.6 prints was read off it.
func TestPriorityText(t *testing.T) {
	for _, tt := range []struct {
		priority int32
		hook     Hook
		want     string
	}{
		{-301, Output, "raw - 1"}, {-300, Output, "raw"}, {-290, Prerouting, "raw + 10"}, {-289, Prerouting, "-289"},
		{-151, Output, "mangle - 1"}, {-101, Prerouting, "dstnat - 1"}, {-101, Output, "-101"},
		{-1, Output, "filter - 1"}, {0, Output, "filter"}, {50, Output, "security"}, {99, "postrouting", "srcnat - 1"},
		{99, Output, "99"}, {-1 << 31, Output, "-2147483648"},
	} {
		if got := priorityText(tt.priority, tt.hook); got != tt.want {
			t.Errorf("%d at %s: %q, want %q", tt.priority, tt.hook, got, tt.want)
		}
	}
}

// Everything in a table that is ours by name may be somebody else's words.
func TestForeignWordsCannotForgeALine(t *testing.T) {
	const evil = "x\"\n}\x1b[2J\u202e"
	rs := Ruleset{
		Foreign: []string{"set " + evil},
		Chains: []Chain{{Name: evil, Rules: []Rule{
			{Matches: []Match{InInterface{Name: evil}, Foreign{evil}}, Statement: Accept{}, Comment: evil},
		}}},
	}
	want := `table inet fairlead {
	# set x"?}?[2J?
	chain x"?}?[2J? {
		# on no hook
		iifname "x'?}?[2J?" x"?}?[2J? accept comment "x'?}?[2J?"
	}
}
`
	if got := rs.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// nft stores a comment with its terminating zero in at most 128 bytes, and prints it between quotes.
func TestCommentsFitNft(t *testing.T) {
	for name, config := range matrix() {
		for _, f := range forms {
			for _, c := range mustBuild(t, config.with(f)).Chains {
				for _, r := range c.Rules {
					if r.Comment == "" || len(r.Comment) > 127 || strings.ContainsAny(r.Comment, "\"\n") {
						t.Errorf("%s, chain %s: comment %q", name, c.Name, r.Comment)
					}
				}
			}
		}
	}
}

func TestFormNames(t *testing.T) {
	for f, want := range map[Form]string{FormMarks: "marks", FormSYN: "syn", FormFull: "full", 7: "form(7)"} {
		if got := f.String(); got != want {
			t.Errorf("%d: %q, want %q", uint8(f), got, want)
		}
	}
	if got := Protocol(132).String(); got != "132" {
		t.Errorf("protocol 132: %q", got)
	}
}
