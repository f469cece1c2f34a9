package enroll

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

func TestAddOfAnUnlabelledPod(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", false)
		if err := w.add("web", "c1"); err != nil {
			t.Fatal(err)
		}
		w.wantDone()
		w.wantState("web NotCaptured NotLabelled")
		w.del("web", "c1")
		w.wantState("web NotCaptured NotLabelled") // as the source knows it
	})
}

func TestAddCapturesBeforeItSucceeds(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		if err := w.add("web", "c1"); err != nil {
			t.Fatal(err)
		}
		w.wantDone("apply full+dns", "announce uid-web as shop/web of sa")
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")

		w.del("web", "c1")
		// The namespace is dying: nothing in it is touched.
		w.wantDone("withdraw uid-web")
	})
}

// What is known of the cause of a wait changes while it lasts, and does not make it longer.
func TestAddWaitsOnceForThePodsObject(t *testing.T) {
	inWorld(t, func(w *world) {
		began := time.Now()
		answer := w.addLater(w.t.Context(), "web", "c1")
		w.pass(3 * time.Second)
		w.breaks(status.APIUnavailable)
		err := <-answer
		wantFailure(w.t, err, status.APIUnavailable, "not captured: so it is")
		if took := time.Since(began); took != 5*time.Second {
			w.t.Errorf("it took %s", took)
		}
	})
}

func TestAddWaitsForWhatItNeeds(t *testing.T) {
	tcp := func(w *world) { s := w.space("c1"); s.set(func() { s.missing = "tcp" }) }
	for _, test := range []struct {
		name   string
		lack   func(*world)
		supply func(*world)
		reason status.Reason
		says   string
	}{
		{
			"pod's object",
			func(w *world) { w.forget("web") },
			func(w *world) { w.object("web", true) },
			status.PodUnknown, "no object or manifest",
		},
		{
			"manifest",
			func(w *world) { w.breaks(status.ManifestBroken) },
			func(w *world) { w.breaks("") },
			status.ManifestBroken, "so it is",
		},
		{
			"API",
			func(w *world) { w.breaks(status.APIUnavailable) },
			func(w *world) { w.breaks("") },
			status.APIUnavailable, "so it is",
		},
		{
			"proxy",
			func(w *world) { w.proxySays(proxylink.NoProxy, "") },
			func(w *world) { w.proxySays(proxylink.Acked, "") },
			status.NoProxy, "no node proxy is connected",
		},
		{
			"answer",
			func(w *world) { w.proxySays(proxylink.Waiting, "") },
			func(w *world) { w.proxySays(proxylink.Acked, "") },
			status.NoAnswer, "has not acknowledged",
		},
		{
			"listeners", tcp,
			func(w *world) { s := w.space("c1"); s.set(func() { s.missing = "" }) },
			status.NoListeners, "does not listen in it: 15053",
		},
	} {
		t.Run(test.name+" comes", func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.object("web", true)
				test.lack(w)
				answer := w.addLater(w.t.Context(), "web", "c1")
				w.pass(4900 * time.Millisecond)
				select {
				case err := <-answer:
					t.Fatalf("answered too early: %v", err)
				default:
				}
				test.supply(w)
				if err := <-answer; err != nil {
					t.Error(err)
				}
				w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
			})
		})
		t.Run(test.name+" does not come", func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.object("web", true)
				test.lack(w)
				start := time.Now()
				wantFailure(t, w.add("web", "c1"), test.reason, test.says)
				if took := time.Since(start); took != 5*time.Second {
					t.Errorf("gave up after %s, want 5s", took)
				}
				w.forget("web")
				w.wantState()
			})
		})
	}
}

func TestAddFailsAtOnceOnARefusal(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		w.proxySays(proxylink.Nacked, "bind: address already in use")
		start := time.Now()
		wantFailure(t, w.add("web", "c1"), status.ProxyRefused, "(pid 7) refused the pod: bind: address already in use")
		if time.Since(start) != 0 {
			t.Error("waited for nothing")
		}
		w.wantDone("apply full+dns", "announce uid-web as shop/web of sa", "withdraw uid-web", "remove")
		// The next try of the kubelet is asked anew.
		w.proxySays(proxylink.Acked, "")
		if err := w.add("web", "c2"); err != nil {
			t.Error(err)
		}
	})
}

func TestAddFailsOnANamespaceThatIsNotOne(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		w.object("plain", false)
		for _, verb := range []string{"find", "open"} {
			s := w.space("c1")
			s.fail[verb] = fmt.Errorf("/run/netns/c1: %w: nothing is mounted there", sandbox.ErrNotAPods)
			wantFailure(t, w.add("web", "c1"), status.NetnsRefused, "/run/netns/c1: not a pod's network namespace")
			delete(s.fail, verb)
		}
		w.space("c2").fail["find"] = sandbox.ErrAnothers
		wantFailure(t, w.add("plain", "c2"), status.NetnsRefused, "not a pod's network namespace")
		w.wantDone()
	})
}

// A pod that does not ask for capture starts, whatever the agent can see of its namespace. It
// is not captured either, should it ask later, until the namespace is seen.
func TestAddOfAnUnlabelledPodThatCannotBeLookedInto(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("plain", false)
		s := w.space("c1")
		s.fail["find"] = sandbox.ErrNotAPods
		if err := w.add("plain", "c1"); err != nil {
			t.Fatal(err)
		}
		w.wantState("plain NotCaptured NotLabelled")
		w.object("plain", true)
		w.pass(10 * time.Second)
		w.wantDone()
		w.wantState("plain Bypassing NetworkNamespaceRefused")
		s.set(func() { delete(s.fail, "find") })
		w.pass(time.Minute)
		w.wantState("plain Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-plain acked")
		w.del("plain", "c1")
	})
}

func TestAddRetriesTheKernelForAMoment(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		s := w.space("c1")
		s.fail["apply"] = errors.New("chain nat-output: no such file or directory")
		start := time.Now()
		wantFailure(t, w.add("web", "c1"), status.KernelRefused, "chain nat-output")
		if took := time.Since(start); took != kernelPatience {
			t.Errorf("gave up after %s, want %s", took, kernelPatience)
		}
		s = w.space("c2")
		s.fail["apply"] = errors.New("interrupted")
		answer := w.addLater(w.t.Context(), "web", "c2")
		s.set(func() { delete(s.fail, "apply") })
		if err := <-answer; err != nil {
			t.Error(err)
		}
	})
}

// One wait after the other: the answer comes before the plugin gives up, and says
// what is waited for.
func TestWaitsEndBeforeThePluginDoes(t *testing.T) {
	inWorld(t, func(w *world) {
		start := time.Now()
		answer := w.addLater(w.t.Context(), "web", "c1")
		w.pass(4 * time.Second)
		w.proxySays(proxylink.NoProxy, "")
		w.object("web", true)
		w.pass(4 * time.Second)
		w.proxySays(proxylink.Waiting, "")
		wantFailure(t, <-answer, status.NoAnswer, "has not acknowledged")
		if took := time.Since(start); took != addLimit {
			t.Errorf("answered after %s, want %s", took, addLimit)
		}
	})
}

// The node's own lack of descriptors does not stop pods that are to be left alone.
func TestOutOfDescriptors(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		w.object("plain", false)
		for _, container := range []string{"c1", "c2"} {
			w.space(container).fail["find"] = unix.EMFILE
		}
		wantFailure(t, w.add("web", "c1"), status.KernelRefused, "limit of open files")
		if err := w.add("plain", "c2"); err != nil {
			t.Error(err)
		}
	})
}

// Behind many others the pod's own wait for an answer has not begun.
func TestQueuedBehindOthers(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		w.proxySays(proxylink.Queued, "")
		answer := w.addLater(w.t.Context(), "web", "c1")
		w.pass(6 * time.Second)
		w.proxySays(proxylink.Waiting, "")
		w.pass(2 * time.Second)
		w.proxySays(proxylink.Acked, "")
		if err := <-answer; err != nil {
			t.Error(err)
		}
		w.proxySays(proxylink.Queued, "")
		start := time.Now()
		wantFailure(t, w.add("web", "c2"), status.Capturing, "busy with others")
		if took := time.Since(start); took != addLimit {
			t.Errorf("gave up after %s", took)
		}
	})
}

// A pod that did not start is shown with the reason, and said in the log once.
func TestAFailedAddIsRemembered(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		w.proxySays(proxylink.NoProxy, "pid 7 is kept waiting")
		wantFailure(t, w.add("web", "c1"), status.NoProxy, "connected to the agent: pid 7 is kept waiting")
		got := w.r.Report()[0]
		if got.State != status.Pending || got.Reason != status.NoProxy || !strings.Contains(got.Message, "last start failed") || got.Remedy == "" {
			t.Errorf("got %+v", got)
		}
		if got := w.logged.Lines("a pod does not start"); len(got) != 1 || !strings.Contains(got[0], "reason=NoProxy") {
			t.Errorf("logged: %q", got)
		}
		w.proxySays(proxylink.Acked, "")
		if err := w.add("web", "c2"); err != nil {
			t.Fatal(err)
		}
		w.del("web", "c2")
		if got := w.r.Report()[0]; got.Reason != status.NetnsUnknown {
			t.Errorf("after one that succeeded: %+v", got)
		}
	})
}

func TestStopping(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		if err := w.add("web", "c1"); err != nil {
			t.Fatal(err)
		}
		w.done()
		w.proxySays(proxylink.NoProxy, "")
		w.object("slow", true)
		answer := w.addLater(w.t.Context(), "slow", "c2")
		w.stop()
		if err := <-answer; !errors.Is(err, errStopping) {
			t.Errorf("a waiting ADD got %v", err)
		}
		if err := w.add("web", "c1"); !errors.Is(err, errStopping) {
			t.Errorf("a late ADD got %v", err)
		}
		// Nothing is undone: the plugin asks the next agent.
		w.wantDone("apply full+dns", "announce uid-slow as shop/slow of sa")
	})
}

// The server's context for a request ends with the agent's.
func TestStoppingEndsTheRequestsToo(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		w.proxySays(proxylink.NoProxy, "")
		ctx, cancel := context.WithCancel(w.ctx)
		defer cancel()
		answer := w.addLater(ctx, "web", "c1")
		w.stop()
		if err := <-answer; !errors.Is(err, errStopping) {
			t.Errorf("got %v", err)
		}
		w.wantDone("apply full+dns", "announce uid-web as shop/web of sa")
	})
}
