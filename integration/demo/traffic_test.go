package demo

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// Traffic counts what goes wrong: a connection past the proxy, one that is cut, one
// that is refused, and none at all.
func TestTraffic(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "pod")
	w, err := serveWeb(n)
	if err != nil {
		t.Fatal(err)
	}
	defer w.close()
	here := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for says, port := range map[string]uint16{"past the proxy": webPort, "connection refused": webPort + 1} {
		traffic := begin(t.Context(), 3, trip{&pod{net: n}, netip.AddrPortFrom(here, port)})
		netlab.Eventually(t, func() error {
			if len(traffic.failures()) < 3 {
				return context.DeadlineExceeded
			}
			return nil
		})
		err := traffic.stop()
		if err == nil || !strings.Contains(err.Error(), says) || int(traffic.count.Load()) != len(traffic.failures()) {
			t.Errorf("%v after %d connections, want %q", err, traffic.count.Load(), says)
		}
	}
	if err := begin(t.Context(), 3).stop(); err == nil || !strings.Contains(err.Error(), "no traffic") {
		t.Errorf("without a trip: %v", err)
	}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	traffic := &traffic{}
	if traffic.note(interrupted, context.Canceled); traffic.count.Load() > 0 {
		t.Error("what an interruption has cut counts")
	}
}

// Rules that were replaced are not those from before, though they say the same.
func TestRulesetNumber(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "pod")
	const rules = "table inet fairlead {}; delete table inet fairlead; table inet fairlead { chain a { counter; accept; }; }"
	var seen []uint32
	for range 2 {
		netlab.MustRun(t, n, "nft", rules)
		for range 2 {
			number, err := rulesetNumber(n)
			if err != nil {
				t.Fatal(err)
			}
			seen = append(seen, number)
		}
	}
	if seen[0] != seen[1] || seen[1] == seen[2] {
		t.Errorf("read twice, and twice after they were replaced: %v", seen)
	}
}
