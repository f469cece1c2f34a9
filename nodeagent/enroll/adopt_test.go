package enroll

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

func TestRestart(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.object("plain", false)
		if err := w.add("plain", "c2"); err != nil {
			t.Fatal(err)
		}
		w.restart()
		// Named in the snapshot, and otherwise left as it is.
		w.wantDone(announced)
		w.wantState("plain NotCaptured NotLabelled", "web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		if got := w.r.Report()[1]; got.Netns.ContainerID != "c1" || got.Rules.State != "full" {
			t.Errorf("adopted as %+v", got)
		}
		// And both are followed as before.
		w.object("plain", true)
		w.wantDone("apply marks+dns", "announce uid-plain as shop/plain of sa", "apply syn+dns", "expel", "apply full+dns", "expel")
		w.del("plain", "c0")
		w.wantDone()
		w.del("plain", "c2")
		w.del("web", "c1")
		w.wantDone("withdraw uid-plain", "withdraw uid-web")
		w.restart()
		w.wantDone()
	})
}

func TestRestartOfAPodCapturedWhileRunning(t *testing.T) {
	running(t, func(w *world, _ *space) {
		w.object("web", true)
		w.restart()
		w.wantDone(announced)
		w.wantState("web Captured OldConnections", "/run/netns/c1 has syn+dns", "proxy has uid-web acked")
	})
}

// What the source does not know yet was decided before.
func TestRestartBeforeTheSourceIsSynced(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.mu.Lock()
		objects := w.objects
		w.objects, w.unsynced = nil, true
		w.mu.Unlock()
		w.restart()
		w.wantDone(announced)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		w.mu.Lock()
		w.objects, w.unsynced = objects, false
		w.mu.Unlock()
		w.object("web", false)
		w.wantDone("apply marks+dns")
	})
}

// The agent was away while things happened.
func TestRestartAfterAChange(t *testing.T) {
	relabel := func(w *world) {
		w.mu.Lock()
		defer w.mu.Unlock()
		p := w.objects["shop/web"]
		p.Labels = nil
		w.objects["shop/web"] = p
	}
	for name, test := range map[string]struct {
		meanwhile func(*world, *space)
		want      []string
	}{
		"the rules are flushed": {
			func(_ *world, s *space) { s.set(func() { s.rules = "" }) },
			[]string{"web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked"},
		},
		"the label is gone": {
			func(w *world, _ *space) { relabel(w) },
			[]string{"web NotCaptured NotLabelled"},
		},
		"the label is gone, and the rules": {
			func(w *world, s *space) { relabel(w); s.set(func() { s.rules = "" }) },
			[]string{"web NotCaptured NotLabelled"},
		},
		"the namespace is gone": {
			func(w *world, s *space) {
				s.set(func() { s.fail["find"], s.rules = sandbox.ErrNotAPods, "" })
				w.mu.Lock()
				defer w.mu.Unlock()
				delete(w.objects, "shop/web")
			},
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			captured(t, func(w *world, s *space) {
				w.stop()
				test.meanwhile(w, s)
				w.restart()
				w.pass(time.Minute)
				w.wantState(test.want...)
			})
		})
	}
}

// That a namespace cannot be looked at says nothing of the pod: its proxies go on with
// it until it can be announced to them.
func TestRestartWithoutDescriptors(t *testing.T) {
	for _, verb := range []string{"find", "open"} {
		captured(t, func(w *world, s *space) {
			w.stop()
			s.set(func() { s.fail[verb] = unix.EMFILE })
			w.restart()
			w.wantDone("keep uid-web")
			w.wantState("web Bypassing KernelRefused", "/run/netns/c1 has full+dns", "proxy has uid-web kept")
			w.restart() // and it is on record still
			w.wantDone("keep uid-web")
			s.set(func() { delete(s.fail, verb) })
			w.pass(time.Minute)
			w.wantDone(announced)
			w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		})
	}
}

// A sandbox that has ended while no agent ran is not kept by proxies, whether its pod
// has an object or not.
func TestRestartAfterTheEndOfASandbox(t *testing.T) {
	captured(t, func(w *world, s *space) {
		w.object("web", true, withUID)
		w.stop()
		s.set(func() { s.fail["find"], s.rules = sandbox.ErrNotAPods, "" })
		w.restart()
		w.pass(time.Minute)
		w.wantDone("the snapshot stops uid-web")
		w.wantState("web Pending NetworkNamespaceUnknown")
	})
}

// Killed between any two steps of an order, the next agent comes to the same end.
func TestKilledAtEachStep(t *testing.T) {
	for name, test := range map[string]struct {
		start func(*testing.T, func(*world, *space))
		act   func(*world) // what the killed agent is in the middle of
		again func(*world) // what the runtime does when nobody has answered
	}{
		"ADD": {
			func(t *testing.T, story func(*world, *space)) {
				inWorld(t, func(w *world) { w.object("web", true); story(w, w.space("c1")) })
			},
			func(w *world) { w.addLater(w.t.Context(), "web", "c1") },
			func(w *world) {
				if err := w.add("web", "c1"); err != nil {
					w.t.Error(err)
				}
			},
		},
		"ADD, given up": {
			func(t *testing.T, story func(*world, *space)) {
				inWorld(t, func(w *world) { w.object("web", true); story(w, w.space("c1")) })
			},
			func(w *world) { w.addLater(w.t.Context(), "web", "c1") },
			func(w *world) {
				w.del("web", "c1")
				w.space("c1").set(func() { w.spaces["/run/netns/c1"].rules = "" }) // the runtime destroys the namespace
				if err := w.add("web", "c2"); err != nil {
					w.t.Error(err)
				}
			},
		},
		"label":   {running, func(w *world) { w.object("web", true); w.pass(time.Minute) }, nil},
		"release": {captured, func(w *world) { w.object("web", false); w.pass(time.Minute) }, nil},
		"label, and taken back": {
			running,
			func(w *world) { w.object("web", true); w.object("web", false); w.pass(time.Minute) }, nil,
		},
		"release, and taken back": {
			captured,
			func(w *world) {
				w.object("web", false)
				w.pass(time.Second)
				w.object("web", true)
				w.pass(time.Minute)
			}, nil,
		},
		"annotation": {
			captured,
			func(w *world) {
				w.object("web", true, func(p *intent.Pod) { p.Annotations = map[string]string{intent.AnnotationDNS: "false"} })
				w.pass(time.Minute)
			}, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			undisturbed := ""
			for n := 0; ; n++ {
				var end string
				killed := false
				test.start(t, func(w *world, _ *space) {
					w.mu.Lock()
					w.steps, w.killAfter = 0, n
					w.mu.Unlock()
					test.act(w)
					w.mu.Lock()
					killed, w.killAfter = w.dead, 0
					w.mu.Unlock()
					if killed {
						w.restart()
						// A redirect of a running pod is never flushed on the way in.
						if name == "label" && strings.Contains(w.done(), "apply marks+dns\napply marks+dns") {
							t.Error("redirects are flushed")
						}
					}
					if killed && test.again != nil || name == "ADD, given up" {
						test.again(w)
					}
					w.pass(time.Minute)
					end = w.state()
				})
				switch {
				case n == 0:
					undisturbed = end
				// The next agent cannot always tell that there was no gap.
				case strings.ReplaceAll(end, "OldConnections", "OK") != strings.ReplaceAll(undisturbed, "OldConnections", "OK"),
					strings.Contains(undisturbed, "OldConnections") && !strings.Contains(end, "OldConnections"):
					t.Errorf("killed after %d steps it ends as\n%s\nwant\n%s", n, end, undisturbed)
				}
				if n > 0 && !killed {
					t.Logf("%d steps", n-1)
					return
				}
			}
		})
	}
}

// An ADD whose agent and plugin have both ended waits for the runtime's word, and is
// nobody's in the meantime.
func TestOrphan(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		w.proxySays(proxylink.Waiting, "")
		w.addLater(w.t.Context(), "web", "c1")
		w.restart()
		w.pass(time.Minute)
		w.wantDone("the snapshot stops uid-web")
		if got := w.r.Report()[0]; got.State != status.Pending || !strings.Contains(got.Message, "the agent ended during the pod's ADD") {
			t.Errorf("got %+v", got)
		}
		s := w.space("c1")
		s.set(func() { s.fail["gone"], s.rules = errors.New("gone"), "" })
		w.pass(10 * time.Second)
		w.wantState("web Pending NetworkNamespaceUnknown")
	})
}

// A full disk costs the next agent a search, not the pod its start.
func TestNoRecordCanBeWritten(t *testing.T) {
	inWorld(t, func(w *world) {
		w.full = errors.New("no space left on device")
		w.object("web", true)
		if err := w.add("web", "c1"); err != nil {
			t.Error(err)
		}
		if got := w.logged.Lines("no space left"); len(got) == 0 {
			t.Error("nothing is said of it")
		}
		w.mu.Lock()
		w.full = nil
		w.mu.Unlock()
		w.pass(10 * time.Second)
		w.restart()
		w.wantDone(announced)
	})
}

// Records that somebody removes are written again: the next agent finds all pods.
func TestRecordsAreRemoved(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.mu.Lock()
		clear(w.records)
		w.mu.Unlock()
		w.pass(10 * time.Second)
		w.wantDone()
		w.restart()
		w.wantDone(announced)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

func TestRecordDir(t *testing.T) {
	dir := RecordDir(filepath.Join(t.TempDir(), "run", "pods"))
	if records, err := dir.Load(); err != nil || len(records) != 0 {
		t.Errorf("a directory that is not there: %v, %v", records, err)
	}
	if err := dir.Delete("u1"); err != nil {
		t.Errorf("deleting nothing: %v", err)
	}
	var id netns.ID
	if err := id.UnmarshalText([]byte("cookie 4711")); err != nil {
		t.Fatal(err)
	}
	want := Record{
		Version: recordVersion, Attachment: sandboxOf("web", "c1"), Netns: id, ServiceAccount: "sa",
		Decision: intent.Decision{Capture: true, Reason: intent.Selected, Redirect: intent.Redirect{CaptureDNS: true, VirtualInterfaces: []string{"tap0"}}},
		Touched:  true, Older: true, Raced: true, Process: 20,
		Applied: ruleset.Config{Form: ruleset.FormSYN, ProbeIPv4: ruleset.DefaultProbeIPv4, ProbeIPv6: ruleset.DefaultProbeIPv6, VirtualInterfaces: []string{"tap0"}},
	}
	for _, gone := range []string{"", "", dir.file("uid-web"), string(dir), filepath.Dir(string(dir))} {
		if gone != "" {
			if err := os.RemoveAll(gone); err != nil {
				t.Fatal(err)
			}
			if dir.Has("uid-web") {
				t.Errorf("on record without %s", gone)
			}
		}
		if err := dir.Save(want); err != nil {
			t.Fatal(err)
		}
		if !dir.Has("uid-web") {
			t.Errorf("not on record, though saved again when %s was removed", gone)
		}
	}
	records, err := dir.Load()
	if err != nil || len(records) != 1 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	if diff := cmp.Diff(fmt.Sprintf("%+v", want), fmt.Sprintf("%+v", records[0])); diff != "" {
		t.Error(diff)
	}
	info, err := os.Stat(dir.file("uid-web"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := dir.Delete("uid-web"); err != nil {
		t.Error(err)
	}
	if records, err := dir.Load(); err != nil || len(records) != 0 {
		t.Errorf("after Delete: %v, %v", records, err)
	}
}

func TestTornRecords(t *testing.T) {
	dir := RecordDir(t.TempDir())
	if err := dir.Save(Record{Version: recordVersion, Attachment: sandboxOf("web", "c1")}); err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(dir.file("uid-web"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty.json":    "",
		"half.json":     string(whole[:len(whole)/2]),
		"other.json":    string(whole), // another pod's
		".uid-web1234":  string(whole), // the temporary file of an agent that was killed
		"unknown.json":  `{"version":1,"attachment":{"uid":"unknown"},"surprise":1}`,
		"version2.json": `{"version":2,"attachment":{"uid":"version2"}}`,
	} {
		if err := os.WriteFile(filepath.Join(string(dir), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		records, err := dir.Load()
		if len(records) != 1 || err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %d records, %v; want one, and the file named", name, len(records), err)
		}
		if records, err := dir.Load(); len(records) != 1 || err != nil {
			t.Errorf("%s: the second time %d records, %v", name, len(records), err)
		}
	}
}
