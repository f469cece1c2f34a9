package demo

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestFindSabotage(t *testing.T) {
	if s, err := FindSabotage(""); s != nil || err != nil {
		t.Errorf("none asked for: %v, %v", s, err)
	}
	if _, err := FindSabotage("rules"); err == nil {
		t.Error("an unknown one is found")
	}
	checks := map[string]bool{}
	steps := map[int]bool{}
	for _, s := range Sabotages {
		if found, err := FindSabotage(s.Name); err != nil || found != s {
			t.Errorf("%s: %v, %v", s.Name, found, err)
		}
		if checks[s.Check] {
			t.Errorf("%q is sabotaged twice", s.Check)
		}
		checks[s.Check], steps[s.Step] = true, true
	}
	if len(steps) != 9 {
		t.Errorf("sabotaged steps: %v", steps)
	}
}

// A run ends with what has failed, and with the exit code that goes with it.
func TestConclusions(t *testing.T) {
	sabotage := &Sabotage{Name: "sand", Check: "it runs"}
	for name, c := range map[string]struct {
		sabotage *Sabotage
		failed   []string
		err      error
		code     int
		says     string
	}{
		"all passed":               {code: ExitPassed, says: "5 checks passed, 0 failed"},
		"one failed":               {failed: []string{"it runs"}, code: ExitFailed, says: "5 checks passed, 1 failed"},
		"nothing can follow":       {failed: []string{"it runs"}, err: errStuck, code: ExitFailed, says: "failed: it runs"},
		"it could not be told":     {err: errors.New("no bridge"), code: ExitUntold, says: "5 checks passed, 0 failed"},
		"sabotage noticed":         {sabotage: sabotage, failed: []string{"it runs"}, code: ExitFailed, says: "sand was noticed"},
		"sabotage not noticed":     {sabotage: sabotage, code: ExitUntold, says: "sand was not noticed"},
		"sabotage noticed wrongly": {sabotage: sabotage, failed: []string{"it walks"}, code: ExitUntold, says: "sand was not noticed"},
		"too much broke":           {sabotage: sabotage, failed: []string{"it runs", "it walks"}, code: ExitUntold, says: "sand was not noticed"},
		"sabotaged and stuck":      {sabotage: sabotage, failed: []string{"it runs"}, err: errStuck, code: ExitUntold, says: "sand was not noticed"},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			s := &story{screen: &screen{out: &out, width: plainWidth}, sabotage: c.sabotage, passed: 5, failed: c.failed}
			if code := s.conclude(c.err, time.Second); code != c.code || !strings.Contains(out.String(), c.says) {
				t.Errorf("exit code %d, want %d:\n%s", code, c.code, &out)
			}
		})
	}
}

// A check that is broken, or whose sabotage is, counts as what it is.
func TestCheck(t *testing.T) {
	fine := func(context.Context) (string, error) { return "all is well", nil }
	broken := func(context.Context) (string, error) { return "", errors.New("it creaks") }
	for name, c := range map[string]struct {
		look     look
		commit   commit
		goesOn   bool
		passed   int
		failed   []string
		sabotage bool
	}{
		"passes":   {look: fine, goesOn: true, passed: 1},
		"fails":    {look: broken, failed: []string{"it runs"}},
		"noticed":  {look: broken, sabotage: true, commit: func(context.Context, *story) (mend, error) { return nothing, nil }, goesOn: true, failed: []string{"it runs"}},
		"overseen": {look: fine, sabotage: true, commit: func(context.Context, *story) (mend, error) { return nothing, nil }, goesOn: true, passed: 1},
		"impossible": {look: fine, sabotage: true, commit: func(context.Context, *story) (mend, error) { return nil, errors.New("no sand") },
			failed: []string{"the sabotage can be done"}},
		"for ever": {look: broken, sabotage: true, commit: func(context.Context, *story) (mend, error) {
			return func(context.Context) error { return errors.New("no broom") }, nil
		}, failed: []string{"it runs", "the sabotage can be mended"}},
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			s := &story{screen: &screen{out: &out, width: plainWidth}}
			if c.sabotage {
				s.sabotage = &Sabotage{Name: "sand", Check: "it runs", commit: c.commit}
			}
			if goesOn := s.check(t.Context(), "it runs", c.look); goesOn != c.goesOn {
				t.Errorf("goes on: %t", goesOn)
			}
			if s.passed != c.passed || !reflect.DeepEqual(s.failed, c.failed) {
				t.Errorf("%d passed, failed: %q", s.passed, s.failed)
			}
		})
	}
	t.Run("interrupted", func(t *testing.T) {
		var out strings.Builder
		s := &story{screen: &screen{out: &out, width: plainWidth}}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s.check(ctx, "it runs", broken)
		if s.passed+len(s.failed) > 0 || out.Len() > 0 {
			t.Errorf("%d passed, failed: %q, %q", s.passed, s.failed, &out)
		}
	})
}
