package kube

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A tainter is a cluster in which a NodeWriter runs.
type tainter struct {
	*cluster
	writer *NodeWriter
	stop   func()

	mu     sync.Mutex
	reason string
	why    error // why the agent is not ready
}

var errStarting = errors.New("the node's pods are not known yet")

// inTainter runs story with a NodeWriter of this configuration, and an agent that starts.
func inTainter(t *testing.T, c NodeWriterConfig, story func(*tainter), with ...func(*corev1.Node)) {
	t.Helper()
	inCluster(t, func(of *cluster) {
		n := &tainter{cluster: of, reason: "Starting", why: errStarting}
		c.Source, c.Ready, c.Logger = of.source, n.ready, of.logger()
		var err error
		if n.writer, err = NewNodeWriter(c); err != nil {
			t.Fatal(err)
		}
		n.api.node("node1", with...)
		n.stop = n.run(n.writer.Run)
		defer n.stop()
		story(n)
	})
}

func (n *tainter) ready() (string, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reason, n.why
}

// is has the agent be ready, or not, and lets it be noticed.
func (n *tainter) is(reason string, why error) {
	n.mu.Lock()
	n.reason, n.why = reason, why
	n.mu.Unlock()
	n.pass(readyInterval)
}

func (n *tainter) wantShown(want string) {
	n.t.Helper()
	synctest.Wait()
	if got := n.api.shownOf("node1"); got != want {
		n.t.Errorf("the node has\n%s\nwant\n%s", got, want)
	}
}

// patches returns how many patches there were since it was last asked.
func (n *tainter) patches() int { return strings.Count(n.api.requests(), "PATCH ") }

const (
	theirTaint = "dedicated=db:NoSchedule"
	ourTaint   = "fairlead.io/agent-not-ready:NoSchedule"
	kubelets   = "Ready/True/KubeletReady"
)

func theirs(n *corev1.Node) {
	n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoSchedule})
}

func born(with ...corev1.Taint) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, with...) }
}

var (
	ourStartup = corev1.Taint{Key: StartupTaint, Effect: corev1.TaintEffectNoSchedule}
	istios     = corev1.Taint{Key: istioTaint, Value: "true", Effect: corev1.TaintEffectNoExecute}
)

// The taint that a node was born with goes when the agent is ready, whichever it is, and
// nothing else does. Whoever puts it there later is wrong.
func TestStartupTaint(t *testing.T) {
	inTainter(t, NodeWriterConfig{Taint: true}, func(n *tainter) {
		n.pass(10 * time.Minute)
		n.wantShown(ourTaint + " " + theirTaint + " cni.istio.io/not-ready=true:NoExecute " + kubelets)
		n.is("OK", nil)
		n.wantShown(theirTaint + " " + kubelets)
		if got := n.patches(); got != 1 {
			t.Errorf("%d patches", got)
		}
		n.api.node("node1", born(ourStartup))
		n.pass(nodeInterval + time.Second)
		n.wantShown(theirTaint + " " + kubelets)
		n.patches()
		n.is("NotInstalled", errors.New("it is gone"))
		n.pass(5 * time.Minute)
		n.wantShown(theirTaint + " " + kubelets)
		if got := n.patches(); got != 0 {
			t.Errorf("%d patches where nothing is to be put back", got)
		}
	}, born(ourStartup), theirs, born(istios))
}

// The last taint of a node goes too.
func TestLastTaint(t *testing.T) {
	inTainter(t, NodeWriterConfig{Taint: true}, func(n *tainter) {
		n.is("OK", nil)
		n.wantShown(kubelets)
	}, born(ourStartup))
}

// Put there at the start, at once, for as long as the agent is not ready; a person who takes
// it away by hand is not contradicted. A node that was made again is another one.
func TestTaintIsPutBackAtTheStart(t *testing.T) {
	inTainter(t, NodeWriterConfig{Taint: true, PutBack: true}, func(n *tainter) {
		n.wantShown(theirTaint + " " + ourTaint + " " + kubelets)
		n.api.node("node1", func(n *corev1.Node) { n.Spec.Taints = nil })
		n.pass(5 * time.Minute)
		n.wantShown(kubelets)
		n.api.node("node1", func(n *corev1.Node) { n.UID += "-2" })
		n.pass(nodeInterval + time.Second)
		n.wantShown(ourTaint + " " + kubelets)
		n.is("OK", nil)
		n.wantShown(kubelets)
		n.is("NotInstalled", errors.New("it is gone"))
		n.pass(5 * time.Minute)
		n.wantShown(kubelets)
	}, theirs)
}

// One that is there already is not put there a second time.
func TestTaintIsThereAtTheStart(t *testing.T) {
	inTainter(t, NodeWriterConfig{Taint: true, PutBack: true}, func(n *tainter) {
		n.pass(time.Minute)
		n.wantShown("cni.istio.io/not-ready=true:NoExecute " + kubelets)
		if got := n.patches(); got != 0 {
			t.Errorf("%d patches", got)
		}
	}, born(istios))
}

// Put back whenever the agent has not been ready for a while, and not for less.
func TestTaintIsPutBackWhenUnready(t *testing.T) {
	inTainter(t, NodeWriterConfig{Taint: true, Guard: true}, func(n *tainter) {
		n.is("OK", nil)
		for range 5 {
			n.is("NotInstalled", errors.New("for a moment"))
			n.pass(grace - 3*time.Second)
			n.wantShown(kubelets)
			n.is("OK", nil)
		}
		if got := n.patches(); got != 0 {
			t.Errorf("%d patches", got)
		}
		n.is("NotInstalled", errors.New("for good"))
		n.pass(grace)
		n.wantShown(ourTaint + " " + kubelets)
		n.api.node("node1", func(n *corev1.Node) { n.Spec.Taints = nil }) // by hand
		n.pass(5 * time.Minute)
		n.wantShown(kubelets)
		n.is("OK", nil)
		n.is("NotInstalled", errors.New("again"))
		n.pass(grace)
		n.wantShown(ourTaint + " " + kubelets)
		n.is("OK", nil)
		n.wantShown(kubelets)
	})
}

// Who takes it away by hand while the agent starts is not contradicted either, before the
// agent has been ready.
func TestTaintIsTakenAwayWhileTheAgentStarts(t *testing.T) {
	inTainter(t, NodeWriterConfig{Taint: true, PutBack: true, Guard: true}, func(n *tainter) {
		n.wantShown(ourTaint + " " + kubelets)
		n.pass(5 * time.Second)
		n.api.node("node1", func(n *corev1.Node) { n.Spec.Taints = nil }) // by hand
		n.pass(5 * time.Minute)
		n.wantShown(kubelets)
		n.is("OK", nil)
		n.is("NotInstalled", errors.New("for good"))
		n.pass(grace)
		n.wantShown(ourTaint + " " + kubelets)
	})
}

// An agent that ends changes nothing: the next one may be ready already.
func TestNodeStaysAsItIsAtTheEnd(t *testing.T) {
	inTainter(t, NodeWriterConfig{Taint: true, PutBack: true, Guard: true, Condition: true}, func(n *tainter) {
		n.is("OK", nil)
		n.is("NotInstalled", errors.New("it ends"))
		n.patches()
		n.stop()
		n.pass(5 * time.Minute)
		n.wantShown(kubelets + " fairlead.io/Ready/True/OK")
		if got := n.patches(); got != 0 {
			t.Errorf("%d patches", got)
		}
	})
}

// A write that is on its way when the agent ends is given up, without a word.
func TestNodeWriteAtTheEnd(t *testing.T) {
	inTainter(t, NodeWriterConfig{Taint: true}, func(n *tainter) {
		n.api.refusing(func(r *http.Request) *metav1.Status {
			if r.Method == http.MethodPatch {
				<-r.Context().Done()
			}
			return nil
		})
		n.is("OK", nil)
		n.stop()
		if lines := n.logged.Lines("level="); len(lines) > 0 || n.writer.Problems() != nil {
			t.Errorf("logged %q", lines)
		}
	}, born(ourStartup))
}

// What others do to the node between our look at it and our write is neither lost nor
// undone: a taint that comes, one that goes, and a node that is made again.
func TestNodeIsWrittenByOthersMeanwhile(t *testing.T) {
	meanwhile := func(n *tainter, from int) (left func() int) {
		others := []func(*corev1.Node){
			born(corev1.Taint{Key: "a", Effect: corev1.TaintEffectNoExecute}),
			func(n *corev1.Node) {
				n.Spec.Taints = slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t corev1.Taint) bool { return t.Key == "dedicated" })
			},
			func(n *corev1.Node) { n.UID += "-2" },
		}
		step := from
		n.api.refusing(func(r *http.Request) *metav1.Status {
			if r.Method == http.MethodPatch && step < len(others) {
				n.api.node("node1", others[step])
				step++
			}
			return nil
		})
		return func() int { return len(others) - step }
	}
	check := func(n *tainter, left func() int, want string) {
		t.Helper()
		n.wantShown(want)
		if left() > 0 || n.writer.Problems() != nil {
			t.Errorf("%d changes did not come in between; problems %q", left(), n.writer.Problems())
		}
	}
	inTainter(t, NodeWriterConfig{Taint: true}, func(n *tainter) {
		left := meanwhile(n, 0)
		n.is("OK", nil)
		check(n, left, "a:NoExecute "+kubelets)
	}, born(ourStartup), theirs)
	inTainter(t, NodeWriterConfig{Taint: true, Guard: true}, func(n *tainter) {
		n.is("OK", nil)
		left := meanwhile(n, 0)
		n.is("NotInstalled", errors.New("gone"))
		n.pass(grace)
		check(n, left, "a:NoExecute "+ourTaint+" "+kubelets)
	}, theirs)
	inTainter(t, NodeWriterConfig{Condition: true}, func(n *tainter) {
		left := meanwhile(n, 2)
		n.is("OK", nil)
		check(n, left, theirTaint+" "+kubelets+" fairlead.io/Ready/True/OK")
	}, theirs)
}

// Who writes the node all the time does not keep us from anything else for ever.
func TestNodeIsWrittenAllTheTime(t *testing.T) {
	inTainter(t, NodeWriterConfig{Taint: true}, func(n *tainter) {
		n.api.refusing(func(r *http.Request) *metav1.Status {
			if r.Method == http.MethodPatch {
				n.api.node("node1")
			}
			return nil
		})
		n.is("OK", nil)
		if got := n.patches(); got != mostTries {
			t.Errorf("%d patches", got)
		}
		want := "what the API shows of the node node1 is not up to date: it changes all the time: 10 tries were in vain; remedy: look who writes the node so often"
		if got := strings.Join(n.writer.Problems(), "\n"); got != want {
			t.Errorf("problems %q", got)
		}
		n.api.refusing(nil)
		n.pass(time.Minute)
		n.wantShown(kubelets)
		if got := n.writer.Problems(); got != nil {
			t.Errorf("problems %q", got)
		}
	}, born(ourStartup))
}

// A cache that lags has nothing written by what it says, and is not believed when there is
// something to be done.
func TestNodeFromACacheThatLags(t *testing.T) {
	inTainter(t, NodeWriterConfig{Taint: true}, func(n *tainter) {
		n.api.mu.Lock()
		n.api.oldNodes = map[string]*corev1.Node{"node1": n.api.nodes["node1"]}
		n.api.mu.Unlock()
		n.is("OK", nil)
		n.wantShown(kubelets)
		n.patches()
		n.pass(10 * time.Minute) // the cache still has the taint
		if got := n.patches(); got != 0 {
			t.Errorf("%d patches", got)
		}
	}, born(ourStartup))
	inTainter(t, NodeWriterConfig{Taint: true, PutBack: true}, func(n *tainter) {
		n.wantShown(ourTaint + " " + kubelets)
		n.api.mu.Lock()
		before := n.api.nodes["node1"]
		n.api.mu.Unlock()
		n.api.node("node1", func(n *corev1.Node) { n.UID += "-2" })
		n.pass(time.Minute)
		n.api.node("node1", func(n *corev1.Node) { n.Spec.Taints = nil }) // by hand
		n.api.mu.Lock()
		n.api.oldNodes = map[string]*corev1.Node{"node1": before}
		n.api.mu.Unlock()
		n.pass(10 * time.Minute) // the cache still has the node that was there before
		n.wantShown(kubelets)
	})
	inTainter(t, NodeWriterConfig{Taint: true, Guard: true}, func(n *tainter) {
		n.api.mu.Lock()
		n.api.oldNodes = map[string]*corev1.Node{"node1": n.api.nodes["node1"]}
		n.api.mu.Unlock()
		n.pass(grace)
		n.wantShown(ourTaint + " " + kubelets)
		n.is("OK", nil) // the cache does not have it yet
		n.wantShown(kubelets)
	})
}

func TestNodeRefused(t *testing.T) {
	for name, test := range map[string]struct {
		refuse func(*http.Request) *metav1.Status
		want   string
	}{
		"may not get":   {refuse(http.MethodGet, http.StatusForbidden, metav1.StatusReasonForbidden, "nodes is forbidden"), "cannot get nodes: nodes is forbidden; remedy: let the agent's service account get nodes (its ClusterRole, and admission policies)"},
		"may not patch": {refuse(http.MethodPatch, http.StatusForbidden, metav1.StatusReasonForbidden, "denied"), "cannot patch nodes: denied; remedy: let the agent's service account patch nodes (its ClusterRole, and admission policies)"},
		"no such node":  {refuse(http.MethodGet, http.StatusNotFound, metav1.StatusReasonNotFound, "not found"), "cannot get nodes: not found; remedy: see that nodeName (NODE_NAME) is the node's name, and that its kubelet has registered it"},
		"broken":        {refuse(http.MethodPatch, http.StatusInternalServerError, metav1.StatusReasonInternalError, "etcd"), "cannot patch nodes: etcd; remedy: look at the API server: it answers with an error"},
	} {
		t.Run(name, func(t *testing.T) {
			inTainter(t, NodeWriterConfig{Taint: true}, func(n *tainter) {
				n.api.refusing(test.refuse)
				n.api.requests()
				n.is("OK", nil)
				n.pass(10 * time.Minute)
				if got := strings.Join(n.writer.Problems(), "\n"); got != "what the API shows of the node node1 is not up to date: "+test.want {
					t.Errorf("problems %q", got)
				}
				if asked := strings.Count(n.api.requests(), "PATCH"); asked > 30 {
					t.Errorf("%d patches in ten minutes", asked)
				}
				if lines := n.logged.Lines("level=WARN"); len(lines) != 1 {
					t.Errorf("logged %q", lines)
				}
				n.wantMeasured("fairlead_api_node_outdated", "1")
				n.api.refusing(nil)
				n.pass(time.Minute)
				n.wantShown(kubelets)
				n.wantMeasured("fairlead_api_node_outdated", "0")
				if got := n.writer.Problems(); got != nil {
					t.Errorf("it is over, yet %q", got)
				}
			}, born(ourStartup))
		})
	}
}

// The API is away when the agent starts, and when it becomes ready: what holds at the end is
// written.
func TestNodeWithoutTheAPI(t *testing.T) {
	inTainter(t, NodeWriterConfig{Taint: true, PutBack: true, Condition: true}, func(n *tainter) {
		n.net.goAway(errors.New("connect: connection refused"))
		n.pass(10 * time.Minute)
		n.is("OK", nil)
		n.pass(10 * time.Minute)
		n.net.goAway(nil)
		n.pass(nodeInterval + time.Second)
		n.wantShown(kubelets + " fairlead.io/Ready/True/OK")
	})
}
