package nft

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// What we write by netlink reads back in the nft command as the golden text, byte for byte; and what the nft command
// makes of that text is what we would have written.
func TestKernelHoldsTheGoldenText(t *testing.T) {
	netlab.Kernel(t)
	ours, theirs := netlab.NewNS(t, "ours"), netlab.NewNS(t, "theirs")
	table, copied := open(t, ours), open(t, theirs)
	for name, config := range matrix() {
		golden, err := txtar.ParseFile(filepath.Join("..", "ruleset", "testdata", "golden", name+".txtar"))
		if err != nil {
			t.Fatal(err)
		}
		if len(golden.Files) != len(forms) {
			t.Fatalf("%s: %d forms", name, len(golden.Files))
		}
		for i, form := range forms {
			want := build(t, config, form)
			text := string(golden.Files[i].Data)
			apply(t, table, want)
			if d := cmp.Diff(text, netlab.NftList(t, ours)); d != "" {
				t.Errorf("%s, form %s: -golden +nft list ruleset:\n%s", name, form, d)
			}
			if diff := check(t, table, want); len(diff) > 0 {
				t.Errorf("%s, form %s: what was applied differs:\n%s", name, form, diff)
			}
			feed(t, theirs, "flush ruleset\n"+text)
			if diff := check(t, copied, want); len(diff) > 0 {
				t.Errorf("%s, form %s: what nft made of the text differs:\n%s", name, form, diff)
			}
		}
	}
}

// feed has the nft command do commands.
func feed(t *testing.T, n *netlab.NS, commands string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "commands.nft")
	if err := os.WriteFile(file, []byte(commands), 0o600); err != nil {
		t.Fatal(err)
	}
	netlab.MustRun(t, n, "nft", "-f", file)
}

// Every character that an interface's name may have, and the lengths at the ends.
func TestOddInterfaceNames(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "names")
	table := open(t, n)
	names := []string{"a", "123456789012345", "-", "@", "0", "all", "tap0.7"}
	for c := byte('!'); c <= '~'; c++ {
		if name := "x" + string(c) + "y"; ruleset.CheckInterface(name) == nil {
			names = append(names, name)
		}
	}
	for len(names) > 0 {
		some := names[:min(len(names), 60)]
		names = names[len(some):]
		want := build(t, ruleset.Config{IPv4: true, VirtualInterfaces: some}, ruleset.FormFull)
		apply(t, table, want)
		if d := cmp.Diff(want.String(), netlab.NftList(t, n)); d != "" {
			t.Errorf("-want +nft list ruleset:\n%s", d)
		}
		feed(t, n, "flush ruleset\n"+want.String())
		if diff := check(t, table, want); len(diff) > 0 {
			t.Errorf("nft reads a name as another one:\n%s", diff)
		}
	}
}
