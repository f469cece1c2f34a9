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

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// in gives a place another mode.
func (p *place) in(mode Mode) *place {
	p.config.Mode = mode
	return p
}

const (
	chainedThere = `-rw-r--r-- 10-net.conflist {"cniVersion": "1.0.0", "name": "net", "plugins": [{"type": "bridge"}, ` + ourEntry + "]}\n"
	dropInThere  = "drwxr-xr-x net\n-rw------- net/fairlead.conf " + ourEntry + "\n"
	noProblem    = "primary \"10-net.conflist\", problem <nil>\n"
	chainedAll   = binaryThere + chainedThere + noProblem
	dropInAll    = binaryThere + bridgeThere + dropInThere + noProblem
	goneAll      = binaryThere + bridgeThere + "primary \"\", problem the plugin was removed from the runtime's configuration on purpose\n"
)

// From each mode to each: only what the new one needs is left, and after Remove nothing.
// In mode owned the primary keeps an entry that another mode has put there, since no file
// of others is touched; our list has but one.
func TestFromModeToMode(t *testing.T) {
	want := map[Mode]string{Owned: installed, Chained: chainedAll, DropIn: dropInAll}
	for _, from := range modes {
		for _, to := range modes {
			t.Run(fmt.Sprintf("%s to %s", from, to), func(t *testing.T) {
				p := newPlace(t).in(from)
				p.primary("10-net.conflist", bridgeList)
				close(p.ready)
				if p.Present() {
					t.Error("the plugin is said to be there before it is")
				}
				p.look(t.Context())
				p.becomes(want[from])
				if !p.Present() {
					t.Error("the plugin is not said to be there")
				}
				if p.in(to); !p.Present() {
					t.Error("the plugin is not said to be there in another mode")
				}
				p.look(t.Context())
				want := want[to]
				if from == Chained && to == Owned {
					want = strings.Replace(want, bridgeThere, chainedThere, 1)
				}
				p.becomes(want)
				before := p.inodes()
				p.look(t.Context())
				if diff := cmp.Diff(before, p.inodes()); diff != "" {
					t.Errorf("files were written again (-before +after):\n%s", diff)
				}
				if err := p.Remove(t.Context()); err != nil {
					t.Error(err)
				}
				p.becomes(goneAll)
			})
		}
	}
}

// In each mode, what others do to the primary is followed, by notification alone.
func TestPrimaryIsRewritten(t *testing.T) {
	other := strings.Replace(bridgeList, "bridge", "ptp", 1)
	ways := map[string]func(path string) error{
		"in place": func(path string) error { return os.WriteFile(path, []byte(other), 0o644) },
		"renamed over": func(path string) error {
			return errors.Join(os.WriteFile(path+".new", []byte(other), 0o644), os.Rename(path+".new", path))
		},
		"moved from elsewhere": func(path string) error {
			elsewhere := filepath.Join(filepath.Dir(path), "..", "elsewhere")
			return errors.Join(os.WriteFile(elsewhere, []byte(other), 0o644), os.Rename(elsewhere, path))
		},
		"truncated, and written in parts": func(path string) error {
			file, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
			if err == nil {
				_, err = file.WriteString(other[:30])
			}
			if err == nil {
				_, err = file.WriteString(other[30:])
			}
			return errors.Join(err, file.Close())
		},
		"removed, and made again": func(path string) error {
			return errors.Join(os.Remove(path), os.WriteFile(path, []byte(other), 0o644))
		},
	}
	for mode, all := range map[Mode]string{Owned: installed, Chained: chainedAll, DropIn: dropInAll} {
		for way, rewrite := range ways {
			t.Run(fmt.Sprintf("%s, %s", mode, way), func(t *testing.T) {
				p := newPlace(t).in(mode)
				p.primary("10-net.conflist", bridgeList)
				close(p.ready)
				p.run()
				p.becomes(all)
				if err := rewrite(filepath.Join(p.conf, "10-net.conflist")); err != nil {
					t.Fatal(err)
				}
				p.becomes(strings.ReplaceAll(all, `"bridge"`, `"ptp"`))
			})
		}
	}
}

// A drop-in is put back, by notification of its own directory, and follows the name of
// the network.
func TestDropIn(t *testing.T) {
	p := newPlace(t).in(DropIn)
	p.primary("10-net.conflist", bridgeList)
	close(p.ready)
	p.run()
	p.becomes(dropInAll)
	if err := os.Remove(filepath.Join(p.conf, "net", dropInName)); err != nil {
		t.Fatal(err)
	}
	p.becomes(dropInAll)
	p.primary("10-net.conflist", strings.Replace(bridgeList, `"net"`, `"two"`, 1))
	p.becomes(strings.NewReplacer("net/fair", "two/fair", "x net", "x two", `"net"`, `"two"`).Replace(dropInAll))
}

// Our plugin is never the first that the runtime executes: it has no interface then.
func TestDropInIsNotTheFirst(t *testing.T) {
	p := newPlace(t).in(DropIn)
	p.primary("10-net.conflist", `{"cniVersion": "1.0.0", "name": "net"}`)
	close(p.ready)
	p.look(t.Context())
	want := p.conf + "/net none sorts before fairlead.conf: ours would be the first"
	says := func() {
		t.Helper()
		if got := text(p.State().Problem); !strings.Contains(got, want) {
			t.Errorf("the problem is %q, want it to say %q", got, want)
		}
		if exists(filepath.Join(p.conf, "net", dropInName)) {
			t.Error("it is there")
		}
	}
	says()
	if err := os.MkdirAll(filepath.Join(p.conf, "net", "a.conf"), 0o755); err != nil {
		t.Fatal(err)
	}
	p.primary("net/tuning.conf", `{"type": "tuning"}`)
	p.primary("net/bridge.conflist", `{"type": "bridge"}`)
	p.look(t.Context())
	says()
	p.primary("net/bridge.conf", `{"type": "bridge"}`)
	p.look(t.Context())
	if err := p.State().Problem; err != nil || !exists(filepath.Join(p.conf, "net", dropInName)) {
		t.Errorf("behind another it is not there: %v", err)
	}
}

// The runtime hears of a drop-in by what it watches: its own directory. It is told again
// when an agent was killed before it had.
func TestDropInIsNoticed(t *testing.T) {
	p := newPlace(t).in(DropIn)
	p.primary("10-net.conflist", bridgeList)
	close(p.ready)
	runtime := newHints(p.config.Logger)
	t.Cleanup(runtime.close)
	runtime.renew([]string{p.conf}) // not of what is in it
	heard := func() error {
		select {
		case <-runtime.woken:
			return nil
		default:
			return errors.New("the runtime has heard of nothing")
		}
	}
	p.look(t.Context())
	p.becomes(dropInAll)
	netlab.Eventually(t, heard)
	p.look(t.Context())
	write(t, filepath.Join(p.conf, tempName(dropInName)), "")
	netlab.Eventually(t, heard)
	p.clean()
	p.becomes(dropInAll)
	netlab.Eventually(t, heard)
}

// While the primary's owner writes it all the time, no version of it is lost, and in
// the end our entry stands in the last one.
func TestOwnerWritesAtTheSameTime(t *testing.T) {
	p := newPlace(t).in(Chained)
	version := func(n int) string { return strings.Replace(bridgeList, "bridge", fmt.Sprintf("bridge%d", n), 1) }
	p.primary("10-net.conflist", version(0))
	close(p.ready)
	path := filepath.Join(p.conf, "10-net.conflist")
	const last = 300
	whileWritten(t, func() (err error) {
		for n := 0; n <= last && err == nil; n++ {
			err = errors.Join(os.WriteFile(path+".new", []byte(version(n)), 0o644), os.Rename(path+".new", path))
		}
		return err
	}, func() {
		p.fight = fight{} // it would have us wait, as it should
		p.look(t.Context())
	})
	p.becomes(strings.ReplaceAll(chainedAll, `"bridge"`, fmt.Sprintf("%q", fmt.Sprintf("bridge%d", last))))
}

// A file of others keeps its mode.
func TestChainedKeepsTheMode(t *testing.T) {
	p := newPlace(t).in(Chained)
	p.primary("10-net.conflist", bridgeList)
	if err := os.Chmod(filepath.Join(p.conf, "10-net.conflist"), 0o640); err != nil {
		t.Fatal(err)
	}
	close(p.ready)
	p.look(t.Context())
	p.becomes(strings.Replace(chainedAll, "-rw-r--r-- 10", "-rw-r----- 10", 1))
}

// A link is not replaced by a file, and a change of what it names would not be noticed.
func TestChainedRefusesALink(t *testing.T) {
	p := newPlace(t).in(Chained)
	write(t, filepath.Join(p.conf, "..", "real"), bridgeList)
	if err := os.Symlink("../real", filepath.Join(p.conf, "10-net.conflist")); err != nil {
		t.Fatal(err)
	}
	close(p.ready)
	p.look(t.Context())
	if want := p.conf + "/10-net.conflist is a link"; !strings.Contains(text(p.State().Problem), want) {
		t.Errorf("got %v, want %s", p.State().Problem, want)
	}
}

// A list of istio-cni's that the runtime takes instead of the primary is named, in
// the modes that leave the choice of the list to the runtime.
func TestBeforeThePrimary(t *testing.T) {
	for _, mode := range []Mode{Chained, DropIn} {
		p := newPlace(t).in(mode)
		p.primary("10-net.conflist", bridgeList)
		p.primary(istioList, bridgeList)
		close(p.ready)
		p.look(t.Context())
		if want := p.conf + "/02-istio-cni.conflist sorts before 10-net.conflist, and the runtime uses the first"; !strings.HasPrefix(text(p.State().Problem), want) {
			t.Errorf("mode %s: got %v, want %s", mode, p.State().Problem, want)
		}
	}
}

// A change that would have pods wait is held back until it disturbs nobody, and is then
// made of what is there by then; what brings the plugin into use never waits.
func TestHold(t *testing.T) {
	for mode, all := range map[Mode]string{Owned: installed, DropIn: dropInAll} {
		t.Run(string(mode), func(t *testing.T) {
			p := newPlace(t).in(mode)
			held, resumed := 0, 0
			during := func() {}
			p.config.Hold = func(ctx context.Context) func() {
				if _, bounded := ctx.Deadline(); !bounded {
					t.Error("the wait has no end")
				}
				held++
				during()
				return func() { resumed++ }
			}
			p.primary("10-net.conflist", bridgeList)
			close(p.ready)
			p.look(t.Context())
			p.look(t.Context())
			p.becomes(all)
			if held != 0 {
				t.Errorf("the first installation was held back %d times", held)
			}
			during = func() { p.primary("10-net.conflist", strings.Replace(bridgeList, "bridge", "three", 1)) }
			p.primary("10-net.conflist", strings.Replace(bridgeList, "bridge", "two", 1))
			p.entry = []byte(strings.Replace(string(p.entry), "kube-system", "other", 1))
			p.look(t.Context())
			p.becomes(strings.NewReplacer("bridge", "three", "kube-system", "other").Replace(all))
			if held != 1 || resumed != 1 {
				t.Errorf("a change was held back %d times, and resumed %d times", held, resumed)
			}
			p.primary("01-first.conflist", strings.Replace(bridgeList, `"net"`, `"first"`, 1))
			p.look(t.Context())
			if held != 1 {
				t.Error("with another file before ours, a change was held back")
			}
		})
	}
}
