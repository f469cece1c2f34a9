package enroll

import (
	"context"
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// This kernel can do it. The trial leaves nothing open, and nothing where the agent lives.
func TestTry(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	o := opener(t)
	here := func() string {
		out, err := exec.CommandContext(t.Context(), "sh", "-ec", "nft list ruleset; ip rule; ip -6 rule; ip route show table all; ip link").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	before := here()
	if err := o.Try(t.Context()); err != nil {
		t.Error(err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if err := o.Try(ended); !errors.Is(err, context.Canceled) || errors.Is(err, ErrNotTried) {
		t.Errorf("a trial that does not come to its end: %v", err)
	}
	if after := here(); after != before {
		t.Errorf("the agent's own namespace was\n%s\nand is\n%s", before, after)
	}
}

// That no namespace can be made says nothing about what can be done in one.
func TestTryWithoutANamespace(t *testing.T) {
	netlab.Kernel(t)
	o := opener(t)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	err := o.Try(t.Context())
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(err, ErrNotTried) || !errors.Is(err, unix.EMFILE) {
		t.Errorf("got %v", err)
	}
}
