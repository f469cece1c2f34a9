package enroll_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
)

// Where something of ours stands a sweep takes it away, and what istio-cni left with it. Where istio-cni alone has been, an
// istio-cni that the node went back to may need it.
func TestSweepBesideIstioCNI(t *testing.T) {
	netlab.Kernel(t)
	dir := t.TempDir()
	finder, err := sandbox.New()
	if err != nil {
		t.Fatal(err)
	}
	finder.CNICache = filepath.Join(dir, "results")
	opener := enroll.Opener{Finder: finder}
	both, theirs := netlab.NewNS(t, "both"), netlab.NewNS(t, "theirs")
	for _, n := range []*netlab.NS{both, theirs} {
		netlab.IstioCNI(t, n, "nft")
		cache(dir, n.Name, n.Path, n.Name, "uid-"+n.Name)
	}
	untouched := netlab.NftList(t, theirs)
	place, err := finder.Told(both.Path)
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := opener.Open(place, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if err := kernel.Apply(t.Context(), ruleset.Config{Form: ruleset.FormMarks}); err != nil {
		t.Fatal(err)
	}
	if err := kernel.Close(); err != nil {
		t.Fatal(err)
	}
	netlab.MustRun(t, both, "iptables-nft", "-A", "INPUT", "-p", "udp", "-j", "DROP")

	swept, unread, err := opener.Sweep(t.Context())
	want := both.Path + " (where stays: chain ip filter/INPUT: it begins with a rule that drops all udp, " +
		"as istio-cni leaves it if it is killed at its work: restart the pod)"
	if got := strings.Join(swept, "\n"); got != want || len(unread) > 0 || err != nil {
		t.Errorf("swept %s; %v, %v", got, unread, err)
	}
	if got := netlab.NftList(t, both); strings.Contains(got, "istio") || strings.Contains(got, "fairlead") {
		t.Errorf("left:\n%s", got)
	}
	if got := netlab.NftList(t, theirs); got != untouched {
		t.Errorf("where nothing of ours was:\n%s", got)
	}
}
