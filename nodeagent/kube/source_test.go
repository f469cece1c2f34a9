package kube

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
)

// What is known of the node, and what is told when it changes; with an API server that
// streams lists, and with one that does not.
func TestSourceFollowsTheAPI(t *testing.T) {
	for _, streaming := range []bool{true, false} {
		t.Run(fmt.Sprintf("streaming %v", streaming), func(t *testing.T) {
			inCluster(t, func(c *cluster) {
				c.api.streaming = streaming
				c.api.namespace("shop", nil)
				c.api.pod("shop", "web", labelled)
				c.api.pod("shop", "far", labelled, elsewhere)
				defer c.run(c.source.Run)()
				c.wantView("synced true", "shop/web uid-web map[istio.io/dataplane-mode:ambient] in map[]")
				c.wantTold("all uid-web")

				c.api.pod("shop", "web", unlabelled)
				c.wantTold("uid-web")
				c.api.pod("shop", "db")
				c.wantTold("uid-db")
				c.api.namespace("shop", ambient)
				c.wantTold("uid-db uid-web")
				c.api.namespace("empty", ambient)
				c.api.pod("shop", "web") // a new version, and nothing that concerns us
				c.wantTold("")
				c.api.deletePod("shop", "web")
				c.wantTold("uid-web")
				c.wantView("synced true", "shop/db uid-db map[] in map[istio.io/dataplane-mode:ambient]")
				if c.api.anyCache {
					t.Error("a list that may be old was asked for")
				}
				if lines := c.logged.Lines("level"); len(lines) > 0 || len(c.source.Problems()) > 0 {
					t.Errorf("nothing is wrong, yet: %q, %q", lines, c.source.Problems())
				}
			})
		})
	}
}

func TestSourceIsSyncedWhenBothAre(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.api.namespace("shop", ambient)
		c.api.pod("shop", "web")
		c.api.refusing(func(r *http.Request) *metav1.Status {
			if strings.HasSuffix(r.URL.Path, "/namespaces") {
				return failure(http.StatusForbidden, metav1.StatusReasonForbidden, "no")
			}
			return nil
		})
		defer c.run(c.source.Run)()
		c.wantView("synced false", "shop/web uid-web map[]") // its namespace is not known
		c.wantTold("uid-web")
		c.api.refusing(nil)
		c.pass(time.Minute)
		c.wantView("synced true", "shop/web uid-web map[] in map[istio.io/dataplane-mode:ambient]")
		c.wantTold("all uid-web")
	})
}

// The API goes away and comes back: nothing is forgotten, what changed meanwhile is seen,
// and it is logged once.
func TestSourceOutage(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.api.namespace("shop", ambient)
		c.api.pod("shop", "web")
		c.api.pod("shop", "old")
		defer c.run(c.source.Run)()
		c.told()
		c.net.goAway(errors.New("connect: connection refused"))
		c.api.cutWatches(true)
		c.pass(10 * time.Minute)
		c.wantView("synced true", "shop/old uid-old map[] in map[istio.io/dataplane-mode:ambient]", "shop/web uid-web map[] in map[istio.io/dataplane-mode:ambient]")
		c.wantTold("")
		problems := c.source.Problems()
		if len(problems) != 3 || !strings.Contains(problems[1], "http://api does not tell of pods (since 2000-01-01T00:00:") ||
			!strings.Contains(problems[1], "connection refused; what was known stays in force; remedy: look whether the API server runs") {
			t.Errorf("problems %q", problems)
		}
		c.api.deletePod("shop", "old")
		c.api.pod("shop", "web", renewed)
		c.api.pod("shop", "new", labelled)
		c.net.goAway(nil)
		c.pass(20 * time.Second)
		c.wantView("synced true", "shop/new uid-new map[istio.io/dataplane-mode:ambient] in map[istio.io/dataplane-mode:ambient]",
			"shop/web uid-web-2 map[] in map[istio.io/dataplane-mode:ambient]")
		c.wantTold("uid-new uid-old uid-web uid-web-2")
		if problems := c.source.Problems(); len(problems) > 0 {
			t.Errorf("it is over, yet: %q", problems)
		}
		if lines := c.logged.Lines("level"); len(lines) != 2 || !strings.Contains(lines[0], "does not tell") || !strings.Contains(lines[1], "again") {
			t.Errorf("logged %q", lines)
		}
	})
}

func TestSourceOutageBeforeTheFirstAnswer(t *testing.T) {
	inCluster(t, func(c *cluster) {
		for _, want := range []string{"http://api has not told of namespaces yet", "http://api has not told of pods yet"} {
			if got := strings.Join(c.source.Problems(), "\n"); !strings.Contains(got, want) {
				t.Errorf("problems %s, want %s", got, want)
			}
		}
		for _, test := range []struct {
			status *metav1.Status
			want   string
		}{
			{failure(http.StatusForbidden, metav1.StatusReasonForbidden, "pods is forbidden"), "pods is forbidden; what was known stays in force; remedy: let the agent's service account list and watch pods"},
			{failure(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "who are you"), "who are you; what was known stays in force; remedy: look whether the agent's token"},
			{failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "etcd is away"), "etcd is away; what was known stays in force; remedy: look at the API server"},
		} {
			c.api.refusing(func(*http.Request) *metav1.Status { return test.status })
			stop := c.run(c.source.Run)
			c.pass(time.Minute)
			if got := strings.Join(c.source.Problems(), "\n"); !strings.Contains(got, test.want) {
				t.Errorf("problems %s, want %s", got, test.want)
			}
			stop()
		}
	})
}

// A watch that ends, or may not go on from where it was, is begun anew; that is no outage.
func TestSourceWatchEnds(t *testing.T) {
	for _, expired := range []bool{false, true} {
		for _, streaming := range []bool{false, true} {
			t.Run(fmt.Sprintf("expired %v, streaming %v", expired, streaming), func(t *testing.T) {
				inCluster(t, func(c *cluster) {
					c.api.streaming = streaming
					c.api.namespace("shop", nil)
					c.api.pod("shop", "web")
					c.api.pod("shop", "old")
					defer c.run(c.source.Run)()
					c.pass(time.Minute)
					c.told()
					c.api.cutWatches(expired)
					c.api.deletePod("shop", "old")
					c.api.pod("shop", "web", renewed)
					c.pass(time.Minute)
					c.wantView("synced true", "shop/web uid-web-2 map[] in map[]")
					c.wantTold("uid-old uid-web uid-web-2")
					if lines := c.logged.Lines("level"); len(lines) > 0 {
						t.Errorf("logged %q", lines)
					}
				})
			})
		}
	}
}

// A list that comes in parts, and one of which a part is refused because it took too long,
// is whole when pods are said to be known.
func TestSourceListsInParts(t *testing.T) {
	for _, expires := range []bool{false, true} {
		inCluster(t, func(c *cluster) {
			c.api.streaming = false
			c.api.namespace("shop", nil)
			for i := range 1200 {
				c.api.pod("shop", fmt.Sprint("p", i))
			}
			parts := 0
			c.api.refusing(func(r *http.Request) *metav1.Status {
				if kindOf(r) == "Pod" && r.URL.Query().Get("continue") != "" {
					if parts++; expires && parts == 2 {
						c.api.cutWatches(true)
					}
				}
				if c.source.Synced() && parts < 2 {
					t.Error("synced too early")
				}
				return nil
			})
			defer c.run(c.source.Run)()
			c.pass(time.Minute)
			if got := len(c.source.Pods()); got != 1200 || parts < 2 || !c.source.Synced() {
				t.Errorf("%d pods, in %d parts; synced %v", got, parts, c.source.Synced())
			}
			if lines := c.logged.Lines("level"); len(lines) > 0 {
				t.Errorf("logged %q", lines)
			}
		})
	}
}

// A namespace that is gone while a pod of it is still there: the pod is not known to be
// in an unlabelled one.
func TestSourceNamespaceGone(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.api.namespace("shop", ambient)
		c.api.pod("shop", "web")
		defer c.run(c.source.Run)()
		c.told()
		c.api.deleteNamespace("shop")
		c.wantView("synced true", "shop/web uid-web map[]")
		c.wantTold("uid-web")
	})
}

// What is kept of a pod, whole.
func TestPodOf(t *testing.T) {
	class := "kata-qemu"
	got := podOf(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "web", UID: "u1", ResourceVersion: "7", Labels: map[string]string{"a": "b"},
			Annotations: map[string]string{
				Annotation: "enabled", intent.AnnotationDNS: "false", intent.AnnotationConfigHash: "h1", "fairlead.io/enforcement": "strict",
				"kubectl.kubernetes.io/last-applied-configuration": "much",
			},
			DeletionTimestamp: &metav1.Time{},
		},
		Spec: corev1.PodSpec{
			ServiceAccountName: "sa", HostNetwork: true, RuntimeClassName: &class,
			ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "other"}, {ConditionType: Condition}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "none"}, {IP: "fd00::1"}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady}, {Type: Condition, Status: corev1.ConditionTrue, Reason: "OK"}},
		},
	})
	want := &pod{
		Pod: intent.Pod{
			Namespace: "shop", Name: "web", UID: "u1", ServiceAccount: "sa", Labels: map[string]string{"a": "b"},
			Annotations: map[string]string{intent.AnnotationDNS: "false", intent.AnnotationConfigHash: "h1", "fairlead.io/enforcement": "strict"},
			HostNetwork: true, RuntimeClass: "kata-qemu", Phase: "Running", Deleting: true,
			IPs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
		},
		version: "7", gated: true,
		stands: report{annotation: "enabled", condition: corev1.PodCondition{Type: Condition, Status: corev1.ConditionTrue, Reason: "OK"}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(pod{}, report{}), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// What is dropped while a list streams in is nothing that is kept.
func TestTransformerKeepsWhatIsKept(t *testing.T) {
	class := "gvisor"
	full := func() *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "u1", ManagedFields: []metav1.ManagedFieldsEntry{{}}, Labels: ambient},
			Spec: corev1.PodSpec{
				NodeName: "node1", ServiceAccountName: "sa", HostNetwork: true, RuntimeClassName: &class, Containers: []corev1.Container{{}},
				ReadinessGates: []corev1.PodReadinessGate{{ConditionType: Condition}},
			},
			Status: corev1.PodStatus{
				Phase: corev1.PodFailed, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}, ContainerStatuses: []corev1.ContainerStatus{{}},
				Conditions: []corev1.PodCondition{{Type: Condition, Reason: "OK"}},
			},
		}
	}
	stripped, err := podStore{}.Transformer()(full())
	if err != nil {
		t.Fatal(err)
	}
	small := stripped.(*corev1.Pod)
	if len(small.Spec.Containers) > 0 || len(small.Status.ContainerStatuses) > 0 || len(small.ManagedFields) > 0 {
		t.Errorf("not dropped: %+v", small)
	}
	if diff := cmp.Diff(podOf(full()), podOf(small), cmp.AllowUnexported(pod{}, report{}), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-full +stripped):\n%s", diff)
	}
}

// Answers that come late: of a pod that has been deleted since, and of one whose
// successor is known already.
func TestLateAnswers(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.api.namespace("shop", nil)
		c.api.pod("shop", "web")
		defer c.run(c.source.Run)()
		old := c.api.pods[name{"shop", "web"}].DeepCopy()
		c.api.pod("shop", "web", renewed, labelled)
		synctest.Wait()
		c.source.learn(old)
		c.wantView("synced true", "shop/web uid-web-2 map[istio.io/dataplane-mode:ambient] in map[]")

		// The watch tells of the old one's end after the new one was learned of.
		if err := (podStore{c.source}).Delete(old); err != nil {
			t.Fatal(err)
		}
		c.wantView("synced true", "shop/web uid-web-2 map[istio.io/dataplane-mode:ambient] in map[]")

		late := c.api.pods[name{"shop", "web"}].DeepCopy()
		c.api.deletePod("shop", "web")
		synctest.Wait()
		c.source.learn(late)
		c.wantView("synced true")
	})
}

// A list that an API server's stale cache gave does not take away what is newer.
func TestStaleList(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.api.namespace("shop", nil)
		c.api.pod("shop", "web")
		defer c.run(c.source.Run)()
		if err := (podStore{c.source}).Replace(nil, "50"); err != nil {
			t.Fatal(err)
		}
		c.wantView("synced true", "shop/web uid-web map[] in map[]")
		if err := (podStore{c.source}).Replace(nil, "5000"); err != nil {
			t.Fatal(err)
		}
		c.wantView("synced true")
	})
}

func TestStaticPodsAreKnownByTheirHash(t *testing.T) {
	inCluster(t, func(c *cluster) {
		c.api.namespace("shop", nil)
		c.api.pod("shop", "etcd", func(p *corev1.Pod) { p.Annotations = map[string]string{intent.AnnotationConfigHash: "h1"} })
		defer c.run(c.source.Run)()
		c.wantTold("all h1")
		if pod, _, ok := c.source.Lookup("shop", "etcd"); !ok || !pod.Is("h1") || !pod.Is("uid-etcd") {
			t.Errorf("%+v, %v", pod, ok)
		}
	})
}

func TestUserAgent(t *testing.T) {
	inCluster(t, func(c *cluster) {
		defer c.run(c.source.Run)()
		_ = c.source.fetch(c.t.Context(), name{"shop", "web"})
		if diff := cmp.Diff(map[string]bool{"fairlead/v1.2.3": true}, c.api.agents); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestNewSourceSaysWhatIsMissing(t *testing.T) {
	for want, config := range map[string]SourceConfig{
		"a part of the configuration is missing":                                        {Node: "node1"},
		"the node's name is not known; set nodeName in the configuration, or NODE_NAME": {Client: &Client{}, Changed: func(string) {}, Metrics: &Metrics{}, Logger: (&cluster{}).logger()},
	} {
		if _, err := NewSource(config); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestNewClientOutsideACluster(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := NewClient("", "v1"); err == nil || !strings.Contains(err.Error(), "name a kubeconfig file in the configuration (kubeconfig), or a directory of manifests") {
		t.Errorf("got %v", err)
	}
	if _, err := NewClient("/nowhere", "v1"); err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("got %v", err)
	}
}
