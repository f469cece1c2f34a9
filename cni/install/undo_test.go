package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Whatever mode has left, and whatever others have: all of ours goes, and nothing else.
// Removing nothing succeeds.
func TestRemoveAll(t *testing.T) {
	p := newPlace(t)
	p.primary("10-net.conflist", bridgeList+"\n\n")
	p.primary("20-multus.conf", `{"cniVersion": "1.0.0", "name": "m", "type": "multus", "delegates": [{"plugins": [{"type": "a"} ]}]}`)
	p.primary("30-broken.conflist", "{")
	p.primary("40-single.conf", `{"name": "by-hand", "type": "fairlead-cni"}`)
	before := tree(t, p.conf)
	chained := strings.NewReplacer(`"bridge"}`, `"bridge"},`+"\n    "+ourEntry, `"a"}`, `"a"},`+ourEntry)
	for _, name := range []string{"10-net.conflist", "20-multus.conf"} {
		text, err := os.ReadFile(filepath.Join(p.conf, name))
		if err != nil {
			t.Fatal(err)
		}
		p.primary(name, chained.Replace(string(text)))
	}
	p.primary(ListName, bridgeList)
	for _, dir := range []string{"net", "other"} {
		if err := os.Mkdir(filepath.Join(p.conf, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		p.primary(filepath.Join(dir, dropInName), ourEntry)
	}
	write(t, filepath.Join(p.bin, PluginName), "the plugin")
	named := func() {
		t.Helper()
		if err := p.RemoveBinary(); !errors.Is(err, ErrNamed) || !exists(filepath.Join(p.bin, PluginName)) {
			t.Errorf("the binary was removed while it is named: %v", err)
		}
	}
	named()
	for range 2 {
		err := p.Remove(t.Context())
		if want := "40-single.conf: nothing but fairlead-cni stands in it"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("of what was not made by the agent: %v", err)
		}
		named()
	}
	if diff := cmp.Diff(before, tree(t, p.conf)); diff != "" {
		t.Errorf("(-before +after)\n%s", diff)
	}
	if err := os.Remove(filepath.Join(p.conf, "40-single.conf")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := errors.Join(p.Remove(t.Context()), p.RemoveBinary()); err != nil {
			t.Error(err)
		}
	}
	if entries, err := os.ReadDir(p.bin); err != nil || len(entries) != 0 {
		t.Errorf("of binaries there are %v (%v)", entries, err)
	}
}

// A removal is held back until it disturbs nobody, too: nothing of ours goes before, and ADDs
// are resumed when all of it has gone; or when it has failed.
func TestRemoveIsHeld(t *testing.T) {
	for mode, all := range map[Mode]string{Owned: installed, Chained: chainedAll, DropIn: dropInAll} {
		t.Run(string(mode), func(t *testing.T) {
			p := newPlace(t).in(mode)
			p.primary("10-net.conflist", bridgeList)
			close(p.ready)
			p.look(t.Context())
			steps := ""
			p.config.Hold = func(ctx context.Context) func() {
				if _, bounded := ctx.Deadline(); !bounded {
					t.Error("the wait has no end")
				}
				steps += "held: " + p.tree()
				return func() { steps += "resumed: " + p.tree() }
			}
			if err := p.Remove(t.Context()); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff("held: "+all+"resumed: "+goneAll, steps); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			steps = ""
			p.primary("30-broken.conflist", `"fairlead-cni"`)
			if err := p.Remove(t.Context()); err == nil || strings.Count(steps, "resumed: ") != 1 {
				t.Errorf("of a removal that fails: %v, after\n%s", err, steps)
			}
		})
	}
}

// What an agent has left that was killed while it wrote goes, too, and the directories that
// it has made for that; others' stay.
func TestRemoveWhatWasNotWholeYet(t *testing.T) {
	p := newPlace(t)
	p.primary("10-net.conflist", bridgeList)
	for _, dir := range []string{"net", "others"} {
		if err := os.Mkdir(filepath.Join(p.conf, dir), 0o755); err != nil {
			t.Fatal(err)
		}
		p.primary(filepath.Join(dir, tempName(dropInName)), "{")
	}
	p.primary("others/tuning.conf", `{"type": "tuning"}`)
	p.primary(tempName(ListName), "{")
	p.primary(tempName(dropInName), "")
	write(t, filepath.Join(p.bin, tempName(PluginName)), "the")
	if err := p.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.becomes(bridgeThere + "drwxr-xr-x others\n-rw-r--r-- others/tuning.conf {\"type\": \"tuning\"}\n" +
		"primary \"\", problem the plugin was removed from the runtime's configuration on purpose\n")
}

// A list that is a link stays one, and is named.
func TestRemoveFromALink(t *testing.T) {
	p := newPlace(t)
	target := filepath.Join(filepath.Dir(p.conf), "real")
	write(t, target, strings.Replace(bridgeList, "]", ", "+ourEntry+"]", 1))
	if err := os.Symlink("../real", filepath.Join(p.conf, "10-net.conflist")); err != nil {
		t.Fatal(err)
	}
	before := tree(t, filepath.Dir(p.conf))
	err := p.Remove(t.Context())
	if want := p.conf + "/10-net.conflist: it is a link to ../real"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want it to say %s", err, want)
	}
	if diff := cmp.Diff(before, tree(t, filepath.Dir(p.conf))); diff != "" {
		t.Errorf("(-before +after)\n%s", diff)
	}
}

// What cannot be read, and names our plugin, is named.
func TestRemoveFromABrokenList(t *testing.T) {
	for name, content := range map[string]string{
		"half":      strings.Replace(bridgeList, "]}", `,{"type": "fairlead-cni"`, 1),
		"ours only": `{"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "fairlead-cni"}]}`,
	} {
		p := newPlace(t)
		p.primary("10-net.conflist", content)
		if err := p.Remove(t.Context()); err == nil || !strings.Contains(err.Error(), p.conf+"/10-net.conflist: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whatever list it is: with our entry it has ours once, and last; without, it is what it
// was.
func FuzzChain(f *testing.F) {
	f.Add([]byte(bridgeList))
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"a","plugins":[ {"type":"fairlead-cni"} , {"type":"b"} ,{"type":"fairlead-cni","a":1}, {"type":"c"},{"type":"fairlead-cni"} ]}`))
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"multus","delegates":[{"cniVersion":"1.0.0","plugins":[ {"type":"b"}]}]}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		of := func(text []byte) (chain, error) {
			l, err := parseList("a.conflist", text)
			if err != nil {
				return chain{}, err
			}
			return l.chain()
		}
		c, err := of(text)
		if err != nil {
			return
		}
		with, err := c.with(testEntry(t))
		if err != nil {
			return
		}
		again, err := of(with)
		if err != nil {
			t.Fatalf("%v: %q became %q", err, text, with)
		}
		kinds := func(c chain) (all string) {
			for _, p := range c.plugins {
				all += fmt.Sprintf("%q ", p.kind)
			}
			return all
		}
		if want := strings.ReplaceAll(kinds(c), `"fairlead-cni" `, "") + `"fairlead-cni" `; kinds(again) != want {
			t.Errorf("%q became %q, with %s instead of %s", text, with, kinds(again), want)
		}
		if same, err := again.with(testEntry(t)); err != nil || string(same) != string(with) {
			t.Errorf("it changes again, to %q (%v)", same, err)
		}
		if got := string(again.without()); got != string(c.without()) {
			t.Errorf("%q became, without ours, %q, and that %q", text, c.without(), got)
		}
	})
}
