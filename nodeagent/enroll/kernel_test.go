package enroll

import (
	"bufio"
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

func TestMain(m *testing.M) { netlab.Main(m, 6) }

// openPod makes a namespace and opens it as the agent does.
func openPod(t *testing.T) (*netlab.NS, Kernel) {
	t.Helper()
	pod := netlab.NewNS(t, "pod")
	finder, err := sandbox.New()
	if err != nil {
		t.Fatal(err)
	}
	place, err := finder.Told(pod.Path)
	if err != nil {
		t.Fatal(err)
	}
	k, err := OpenKernel(finder, place)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return pod, k
}

// kernelText is all of ours that can be in a namespace.
func kernelText(t *testing.T, pod *netlab.NS) string {
	return strings.Join([]string{
		netlab.NftList(t, pod), netlab.MustRun(t, pod, "ip", "rule"), netlab.MustRun(t, pod, "ip", "-6", "rule"),
		netlab.MustRun(t, pod, "ip", "route", "show", "table", "all"),
		netlab.MustRun(t, pod, "ip", "-6", "route", "show", "table", "all"),
	}, "\n")
}

func full() ruleset.Config {
	return ruleset.Config{CaptureDNS: true, Form: ruleset.FormFull, VirtualInterfaces: []string{"tap0"}}
}

func TestKernelAppliesChecksAndRemoves(t *testing.T) {
	netlab.Kernel(t)
	pod, k := openPod(t)
	before := kernelText(t, pod)
	for _, form := range []ruleset.Form{ruleset.FormMarks, ruleset.FormSYN, ruleset.FormFull, ruleset.FormMarks} {
		want := full()
		want.Form = form
		if err := k.Apply(t.Context(), want); err != nil {
			t.Fatalf("%s: %v", form, err)
		}
		for range 2 { // read, then by number
			if drift, err := k.Check(t.Context(), want); err != nil || drift != "" {
				t.Errorf("%s: %q, %v", form, drift, err)
			}
		}
		rules := netlab.NftList(t, pod)
		if redirected := strings.Contains(rules, "redirect to :15001"); redirected != (form != ruleset.FormMarks) {
			t.Errorf("%s: redirects present: %v", form, redirected)
		}
		if k.Fingerprint() == "" {
			t.Errorf("%s has no fingerprint", form)
		}
	}
	if err := k.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := kernelText(t, pod); after != before {
		t.Errorf("left over:\n%s\nbefore:\n%s", after, before)
	}
	if err := k.Remove(t.Context()); err != nil {
		t.Errorf("removing nothing: %v", err)
	}
}

func TestKernelSeesAndHealsDrift(t *testing.T) {
	netlab.Kernel(t)
	pod, k := openPod(t)
	want := full()
	if err := k.Apply(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	whole := kernelText(t, pod)
	for _, damage := range [][]string{
		{"nft", "flush", "ruleset"},
		{"nft", "flush", "table", "inet", "fairlead"},
		{"ip", "rule", "del", "priority", "32764"},
		{"ip", "-6", "rule", "del", "priority", "32764"},
		{"ip", "route", "flush", "table", "100"},
	} {
		t.Run(strings.Join(damage, " "), func(t *testing.T) {
			if drift, err := k.Check(t.Context(), want); err != nil || drift != "" {
				t.Fatalf("before the damage: %q, %v", drift, err)
			}
			netlab.MustRun(t, pod, damage[0], damage[1:]...)
			drift, err := k.Check(t.Context(), want)
			if err != nil || drift == "" {
				t.Errorf("not seen: %v", err)
			}
			if err := k.Apply(t.Context(), want); err != nil {
				t.Fatal(err)
			}
			if now := kernelText(t, pod); now != whole {
				t.Errorf("not healed:\n%s\nwant:\n%s", now, whole)
			}
		})
	}
}

// The agent finds lo down when it is faster than the runtime.
func TestKernelBringsLoopbackUp(t *testing.T) {
	netlab.Kernel(t)
	pod, k := openPod(t)
	netlab.MustRun(t, pod, "ip", "link", "set", "lo", "down")
	if err := k.Apply(t.Context(), full()); err != nil {
		t.Fatal(err)
	}
	if out := netlab.MustRun(t, pod, "ip", "link", "show", "lo"); !strings.Contains(out, "UP") {
		t.Errorf("lo is down: %s", out)
	}
}

func TestKernelSeesListenersAndConnections(t *testing.T) {
	netlab.Kernel(t)
	pod, k := openPod(t)
	look := func() status.Listeners {
		t.Helper()
		l, err := k.Listeners(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if got := look(); got != (status.Listeners{Known: true}) {
		t.Errorf("an empty namespace: %s", got)
	}
	for _, addr := range []string{"[::]:15001", "[::]:15006", "0.0.0.0:15008", "127.0.0.1:15053"} {
		listen(t, pod, addr)
	}
	packet(t, pod, "127.0.0.1:15053")
	if got := look(); !got.Ready() || got.DNS {
		t.Errorf("without ::1, which queries over IPv6 are redirected to: %s", got)
	}
	listen(t, pod, "[::1]:15053")
	packet(t, pod, "[::1]:15053")
	if got := look(); !got.Ready() || !got.DNS {
		t.Errorf("with all of them: %s", got)
	}

	if n, err := k.Proxied(t.Context()); err != nil || n != 0 {
		t.Errorf("%d proxied connections, %v", n, err)
	}
	conn, err := pod.Dial(t.Context(), "tcp", "127.0.0.1:15001")
	if err != nil {
		t.Fatal(err)
	}
	if n, err := k.Proxied(t.Context()); err != nil || n != 1 {
		t.Errorf("%d proxied connections, %v; want 1", n, err)
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

func TestKernelWithoutIPv6(t *testing.T) {
	netlab.Kernel(t)
	pod, k := openPod(t)
	if err := pod.Sysctl("net/ipv6/conf/all/disable_ipv6", "1"); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"0.0.0.0:15001", "0.0.0.0:15006", "0.0.0.0:15008", "127.0.0.1:15053"} {
		listen(t, pod, addr)
	}
	packet(t, pod, "127.0.0.1:15053")
	if got, err := k.Listeners(t.Context()); err != nil || !got.DNS {
		t.Errorf("DNS over IPv4 alone is not enough: %s, %v", got, err)
	}
	if err := k.Apply(t.Context(), full()); err != nil {
		t.Fatal(err)
	}
	if drift, err := k.Check(t.Context(), full()); err != nil || drift != "" {
		t.Errorf("%q, %v", drift, err)
	}
}

// All that holds the namespace goes with Close; what cannot be opened leaves nothing.
func TestKernelHoldsNothingAfterwards(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	finder, err := sandbox.New()
	if err != nil {
		t.Fatal(err)
	}
	pod := netlab.NewNS(t, "pod")
	place, err := finder.Told(pod.Path)
	if err != nil {
		t.Fatal(err)
	}
	k, err := OpenKernel(finder, place)
	if err != nil {
		t.Fatal(err)
	}
	if err := k.Apply(t.Context(), full()); err != nil {
		t.Fatal(err)
	}
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	if err := k.Apply(t.Context(), full()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a closed Kernel: %v", err)
	}
	if err := pod.Unmount(); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenKernel(finder, place); !errors.Is(err, sandbox.ErrNotAPods) {
		t.Errorf("a namespace that is gone: %v", err)
	}
}

func listen(t *testing.T, pod *netlab.NS, addr string) {
	t.Helper()
	l, err := pod.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go hold(conn)
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
}

// hold keeps a connection until its peer closes it.
func hold(conn net.Conn) {
	_, _ = bufio.NewReader(conn).ReadByte()
	_ = conn.Close()
}

func packet(t *testing.T, pod *netlab.NS, addr string) {
	t.Helper()
	c, err := pod.ListenPacket(addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
}
