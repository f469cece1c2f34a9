package install

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// pass lets time pass, in a bubble.
func pass(d time.Duration) { <-time.After(d) }

// Others undo three times within ten seconds what we write: from then on there is one
// try in ten seconds, for as long as they do, and the agent is not ready.
func TestFight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t)
		p.primary("10-net.conflist", bridgeList)
		close(p.ready)
		without := binaryThere + bridgeThere + "primary \"10-net.conflist\", problem <nil>\n"
		problem := "another program (the owner of 10-net.conflist, bridge, perhaps) undoes what is written to /net.d/02-fairlead.conflist, again and again " +
			"(trying once in 10s from now on): have it leave 02-fairlead.conflist alone"
		fought := func(tree string) string { return strings.Replace(tree, "<nil>", problem, 1) }
		undo := func() {
			t.Helper()
			if err := os.Remove(p.list()); err != nil {
				t.Fatal(err)
			}
		}
		for range 3 {
			p.look(t.Context())
			p.becomes(installed)
			undo()
		}
		for range 3 {
			for range 2 {
				p.look(t.Context())
				p.becomes(fought(without))
				pass(fightWindow / 2)
			}
			p.look(t.Context())
			p.becomes(fought(installed))
			undo()
		}
		p.look(t.Context())
		pass(fightWindow)
		for range 2 {
			p.look(t.Context())
			p.becomes(fought(installed))
			pass(fightWindow / 2)
		}
		p.look(t.Context())
		p.becomes(installed)
		if n := p.State().Undone; n != 6 {
			t.Errorf("undone %d times, want 6", n)
		}
	})
}

// Changes further apart are no fight, and neither are changes of the primary.
func TestNoFight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlace(t)
		close(p.ready)
		for n := range 10 {
			p.primary("10-net.conflist", bridgeList+strings.Repeat(" ", n))
			p.look(t.Context())
			p.becomes(installed)
		}
		if n := p.State().Undone; n != 0 {
			t.Errorf("the primary's changes count as %d", n)
		}
		for range 5 {
			if err := os.Remove(p.list()); err != nil {
				t.Fatal(err)
			}
			p.look(t.Context())
			p.becomes(installed)
			pass(fightWindow / 2)
		}
	})
}

// Who undoes it is named by what there is to see.
func TestRivals(t *testing.T) {
	for name, test := range map[string]struct {
		mode Mode
		undo func(p *place) error
		want string
	}{
		"Cilium": {Owned, func(p *place) error { return os.Rename(p.list(), p.list()+".cilium_bak") },
			"Cilium undoes what is written to /net.d/02-fairlead.conflist, again and again (trying once in 10s from now on): " +
				"set cni.exclusive to false in its Helm values (cni-exclusive in the ConfigMap cilium-config)"},
		"istio-cni": {Owned, func(p *place) error {
			p.primary(istioList, bridgeList)
			return os.Remove(p.list())
		}, "istio-cni undoes what is written to /net.d/02-fairlead.conflist, again and again (trying once in 10s from now on): uninstall it"},
		"another agent": {Owned, func(p *place) error {
			return os.WriteFile(p.list(), []byte(strings.Replace(bridgeList, "]", `, {"type": "fairlead-cni", "agentSocket": "/other"}]`, 1)), 0o600)
		}, "another Fairlead agent undoes what is written to /net.d/02-fairlead.conflist, again and again (trying once in 10s from now on): let one alone run on a node"},
		"the primary's owner": {Chained, func(p *place) error {
			p.primary("10-net.conflist", bridgeList)
			return nil
		}, "the owner of 10-net.conflist (bridge) undoes what is written to /net.d/10-net.conflist, again and again (trying once in 10s from now on): " +
			"set install.mode to owned, which leaves that file to its owner"},
		"nobody known, of a drop-in": {DropIn, func(p *place) error { return os.RemoveAll(filepath.Join(p.conf, "net")) },
			"another program (the owner of 10-net.conflist, bridge, perhaps) undoes what is written to /net.d/net/fairlead.conf, again and again " +
				"(trying once in 10s from now on): have it leave fairlead.conf alone"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newPlace(t).in(test.mode)
				p.primary("10-net.conflist", bridgeList)
				close(p.ready)
				for range 3 {
					p.look(t.Context())
					if err := errors.Join(test.undo(p), p.State().Problem); err != nil && !strings.Contains(err.Error(), "sorts before") {
						t.Fatal(err)
					}
				}
				p.look(t.Context())
				if got := strings.ReplaceAll(text(p.State().Problem), filepath.Dir(p.conf), ""); got != test.want {
					t.Errorf("got %s\nwant %s", got, test.want)
				}
			})
		})
	}
}
