package enroll

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// What a release has to leave in a pod is said, once in the log, until the pod is captured again.
func TestReleaseNamesWhatIsLeft(t *testing.T) {
	captured(t, func(w *world, s *space) {
		s.set(func() { s.left = []string{"chain ip filter/INPUT: restart the pod", "another"} })
		const plain = "no enablement selector matches the pod and its namespace"
		release := func(want string) {
			t.Helper()
			w.object("web", false)
			for range 2 {
				w.pass(time.Minute)
				w.wantState("web NotCaptured NotLabelled")
				if got := w.r.Report()[0].Message; got != want {
					t.Errorf("the message is %q, want %q", got, want)
				}
			}
		}
		release(plain + "; what may still take its packets, and is not removed: chain ip filter/INPUT: restart the pod, another")
		if got := w.logged.Lines("what is left in a released pod"); len(got) != 1 || !strings.Contains(got[0], `left="chain ip filter/INPUT: restart the pod, another"`) {
			t.Errorf("logged: %q", got)
		}
		w.object("web", true)
		w.pass(time.Minute)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		s.set(func() { s.left, s.fail["left"] = nil, errors.New("EIO") })
		release(plain + "; what may still take its packets, and is not removed: what else there is cannot be seen: EIO")
		w.object("web", true)
		w.pass(time.Minute)
		s.set(func() { s.fail["left"] = nil })
		release(plain)
	})
}

// network connects the pod to a peer that answers, and returns its addresses. The pod has rules of its own, or
// the kernel would forget all connections with the last rule about them.
func network(t *testing.T, pod *netlab.NS) []string {
	t.Helper()
	peer := netlab.NewNS(t, "peer")
	netlab.Connect(t, netlab.Port{NS: pod, Link: "eth0", Addrs: netlab.Prefixes("10.0.0.1/24", "fd00::1/64")},
		netlab.Port{NS: peer, Link: "eth0", Addrs: netlab.Prefixes("10.0.0.2/24", "fd00::2/64")})
	netlab.MustRun(t, pod, "nft", "table inet app { chain in { type filter hook input priority 0; ct state established accept; }; chain out { type nat hook output priority 0; }; }")
	addrs := []string{"10.0.0.2", "[fd00::2]"}
	for _, addr := range addrs {
		netlab.ServeEcho(t, peer, "peer", "tcp", addr+":80")
		netlab.ServeEcho(t, peer, "peer", "udp", addr+":53")
	}
	return addrs
}

// wantAnswers asks each peer, and tells who answers: its name, or refused.
func wantAnswers(t *testing.T, pod *netlab.NS, addrs []string, want string) {
	t.Helper()
	for _, addr := range addrs {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		reply, err := netlab.AskEcho(ctx, pod, "tcp", addr+":80")
		cancel()
		got := reply.Server
		if errors.Is(err, unix.ECONNREFUSED) {
			got = "refused"
		} else if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}

// A pod that istio-cni had captured is captured by us, and released: it talks directly. So does one that no proxy has served
// meanwhile, and that was cut off until then; and a DNS socket that it has had all the time.
func TestKernelReleasesFromIstioCNI(t *testing.T) {
	netlab.Kernel(t)
	for _, backend := range []string{"iptables-nft", "nft"} {
		for _, form := range []ruleset.Form{ruleset.FormFull, ruleset.FormMarks} {
			t.Run(fmt.Sprintf("%s/%s", backend, form), func(t *testing.T) {
				pod, k := openPod(t)
				addrs := network(t, pod)
				before := kernelText(t, pod)
				netlab.IstioCNI(t, pod, backend)
				wantAnswers(t, pod, addrs, "refused")
				resolvers := resolve(t, pod, addrs)
				want := full()
				want.Form = form
				if err := k.Apply(t.Context(), want); err != nil {
					t.Fatal(err)
				}
				if form == ruleset.FormMarks {
					wantAnswers(t, pod, addrs, "refused")
				} else {
					wantNothingOf(t, pod, "istio")
					t.Run("captured", func(t *testing.T) {
						netlab.ServeEcho(t, pod, "proxy", "tcp", "[::]:15001", netlab.Mark(int(ruleset.ProxyMark)))
						wantAnswers(t, pod, addrs, "proxy")
					})
				}
				if err := k.Remove(t.Context()); err != nil {
					t.Fatal(err)
				}
				wantNothingOf(t, pod, "istio", "fairlead")
				if now := kernelText(t, pod); backend == "nft" && now != before { // iptables' own chains stay
					t.Errorf("left over:\n%s\nbefore:\n%s", now, before)
				}
				wantAnswers(t, pod, addrs, "peer")
				for i, r := range resolvers {
					if reply, err := query(r); err != nil || reply.Server != "peer" {
						t.Errorf("to %s, by a socket of before: %q, %v", addrs[i], reply.Server, err)
					}
				}
				if left, err := k.Left(t.Context()); err != nil || len(left) > 0 {
					t.Errorf("left: %q, %v", left, err)
				}
			})
		}
	}
}

func wantNothingOf(t *testing.T, pod *netlab.NS, whose ...string) {
	t.Helper()
	rules := netlab.NftList(t, pod)
	for _, name := range whose {
		if strings.Contains(strings.ToLower(rules), name) {
			t.Errorf("there is something of %s:\n%s", name, rules)
		}
	}
}

// resolve opens an app's sockets for DNS, and has istio-cni's proxy answer them, which then goes.
func resolve(t *testing.T, pod *netlab.NS, addrs []string) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, len(addrs))
	for i, addr := range addrs {
		conn, err := pod.Dial(t.Context(), "udp", addr+":53")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		conns[i] = conn
	}
	t.Run("resolving", func(t *testing.T) {
		netlab.ServeEcho(t, pod, "proxy", "udp", "127.0.0.1:15053", netlab.Mark(int(ruleset.ProxyMark)))
		netlab.ServeEcho(t, pod, "proxy", "udp", "[::1]:15053", netlab.Mark(int(ruleset.ProxyMark)))
		for i, conn := range conns {
			if reply, err := query(conn); err != nil || reply.Server != "proxy" {
				t.Errorf("a query to %s: %q, %v", addrs[i], reply.Server, err)
			}
		}
	})
	return conns
}

func query(conn net.Conn) (netlab.Reply, error) {
	if _, err := fmt.Fprintln(conn, "query"); err != nil {
		return netlab.Reply{}, err
	}
	return netlab.ReadReply(bufio.NewReader(conn))
}

// What is not removed is named: it goes on taking the pod's packets.
func TestKernelNamesWhatIsLeft(t *testing.T) {
	netlab.Kernel(t)
	pod, k := openPod(t)
	addrs := network(t, pod)
	netlab.IstioCNI(t, pod, "iptables-legacy")
	netlab.MustRun(t, pod, "iptables-nft", "-I", "OUTPUT", "-p", "udp", "-j", "DROP")
	if err := errors.Join(k.Apply(t.Context(), full()), k.Remove(t.Context())); err != nil {
		t.Fatal(err)
	}
	wantAnswers(t, pod, addrs, "refused")
	left, err := k.Left(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, of := range []string{"ip raw: 8", "ip nat: 14", "ip mangle: 8", "ip6 raw: 8", "ip6 nat: 14", "ip6 mangle: 8"} {
		want = append(want, "iptables-legacy table "+of+" entries: if istio-cni left them restart the pod")
	}
	want = append(want, "chain ip filter/OUTPUT: it begins with a rule that drops all udp, as istio-cni leaves it if it is killed at its work: restart the pod")
	slices.Sort(want)
	slices.Sort(left)
	if d := cmp.Diff(want, left); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}
