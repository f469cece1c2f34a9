package bench

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

func TestEndless(t *testing.T) {
	e := &endless{text: "abc"}
	var got strings.Builder
	for range 5 {
		if _, err := io.CopyN(&got, e, 4); err != nil {
			t.Fatal(err)
		}
	}
	if want := strings.Repeat("abc", 6) + "ab"; got.String() != want {
		t.Errorf("got %q, want %q", got.String(), want)
	}
}

// What the hostile pod does is really done, and a loop that has ended by itself is not
// taken for one that runs.
func TestBeside(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "beside")
	r := redirected(t, n)
	netlab.MustRun(t, n, "nft", "add table inet hostile; add chain inet hostile loop")
	for i, l := range attacks {
		want := others{starts: figures.Sample{time.Duration(i)}}
		got, err := beside(t.Context(), n, attacks[i:i+1], func(context.Context) (others, error) {
			netlab.Eventually(t, func() error {
				if err := r.check(t.Context()); err == nil {
					return errors.New("nothing is changed")
				}
				return nil
			})
			return want, nil
		})
		if err != nil || len(got.starts) != 1 || got.starts[0] != want.starts[0] {
			t.Errorf("%s: %v, %v", l.program[0], got, err)
		}
		if err := r.apply(t.Context(), ruleset.FormFull); err != nil {
			t.Fatal(err)
		}
		if err := r.check(t.Context()); err != nil {
			t.Errorf("%s goes on: %v", l.program[0], err)
		}
	}
	_, err := beside(t.Context(), n, []loop{spins[0], {"", []string{"sh", "-c", "exit 7"}}}, func(ctx context.Context) (others, error) {
		<-ctx.Done()
		return others{}, nil
	})
	if err == nil || !strings.HasSuffix(err.Error(), "has ended: exit status 7") {
		t.Errorf("got %v, want how the loop ended", err)
	}
}
