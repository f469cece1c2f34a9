package enroll

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/iptables/watch"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/sockets"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { netlab.Main(m, 25) }

// opener returns an Opener whose Watcher runs.
func opener(t *testing.T) Opener {
	t.Helper()
	finder, err := sandbox.New()
	if err != nil {
		t.Fatal(err)
	}
	watcher, err := watch.New()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- watcher.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := errors.Join(watcher.Close(), <-done); err != nil {
			t.Error(err)
		}
	})
	return Opener{Finder: finder, Watcher: watcher, Processes: sockets.NewProcesses("/proc"), Exempt: []netip.Addr{ruleset.DefaultProbeIPv4}}
}

// openPod makes a namespace and opens it as the agent does.
func openPod(t *testing.T) (*netlab.NS, Kernel) {
	t.Helper()
	return openWatched(t, func(string) {})
}

func openWatched(t *testing.T, changed func(by string)) (*netlab.NS, Kernel) {
	t.Helper()
	pod := netlab.NewNS(t, "pod")
	return pod, openAt(t, pod.Path, changed)
}

func openAt(t *testing.T, path string, changed func(by string)) Kernel {
	t.Helper()
	o := opener(t)
	place, err := o.Finder.Told(path)
	if err != nil {
		t.Fatal(err)
	}
	k, err := o.Open(place, changed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
	return k
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
			if drift, err := k.Check(t.Context(), want, Changes); err != nil || drift != "" {
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
	look := func(t *testing.T, depth Depth) string {
		t.Helper()
		drift, err := k.Check(t.Context(), want, depth)
		if err != nil {
			t.Fatal(err)
		}
		return drift
	}
	for _, damage := range [][]string{
		{"nft", "flush", "ruleset"},
		{"nft", "flush", "table", "inet", "fairlead"},
		{"ip", "rule", "del", "priority", "32764"},
		{"ip", "-6", "rule", "del", "priority", "32764"},
		{"ip", "route", "flush", "table", "100"},
	} {
		t.Run(strings.Join(damage, " "), func(t *testing.T) {
			for _, depth := range []Depth{Everything, Changes} {
				if drift := look(t, depth); drift != "" {
					t.Fatalf("before the damage: %q", drift)
				}
			}
			netlab.MustRun(t, pod, damage[0], damage[1:]...)
			netlab.Eventually(t, func() error {
				if look(t, Changes) == "" {
					return errors.New("it is not seen")
				}
				return nil
			})
			for _, depth := range []Depth{Everything, Changes} { // nor forgotten before it is put right
				if look(t, depth) == "" {
					t.Errorf("not seen at depth %d", depth)
				}
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
	if drift, err := k.Check(t.Context(), full(), Changes); err != nil || drift != "" {
		t.Errorf("%q, %v", drift, err)
	}
}

// All that holds the namespace goes with Close; what cannot be opened leaves nothing.
func TestKernelHoldsNothingAfterwards(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	o := opener(t)
	pod := netlab.NewNS(t, "pod")
	place, err := o.Finder.Told(pod.Path)
	if err != nil {
		t.Fatal(err)
	}
	k, err := o.Open(place, func(string) {})
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
	if _, err := o.Open(place, func(string) {}); !errors.Is(err, sandbox.ErrNotAPods) {
		t.Errorf("a namespace that is gone: %v", err)
	}
}

// A connection that is older than the redirects is seen, and reset; in ingress mode
// one that came in is left alone.
func TestKernelResetsWhatBypasses(t *testing.T) {
	netlab.Kernel(t)
	pod, k := openPod(t)
	peer := netlab.NewNS(t, "peer")
	netlab.Connect(t, netlab.Port{NS: pod, Link: "eth0", Addrs: netlab.Prefixes("10.0.0.1/24")},
		netlab.Port{NS: peer, Link: "eth0", Addrs: netlab.Prefixes("10.0.0.2/24")})
	listen(t, pod, "10.0.0.1:80")
	listen(t, peer, "10.0.0.2:80")
	out, err := pod.Dial(t.Context(), "tcp", "10.0.0.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	in, err := peer.Dial(t.Context(), "tcp", "10.0.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	ingress := full()
	ingress.Ingress = true
	for _, want := range []struct {
		config ruleset.Config
		number int
	}{{full(), 2}, {ingress, 1}} {
		netlab.Eventually(t, func() error { // the app accepts in its own time
			bypassing, err := k.Bypassing(t.Context(), want.config)
			if err == nil && len(bypassing) != want.number {
				err = fmt.Errorf("%d connections bypass, want %d: %v", len(bypassing), want.number, bypassing)
			}
			return err
		})
	}
	bypassing, err := k.Bypassing(t.Context(), full())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := k.Destroy(t.Context(), bypassing); err != nil || n != 2 {
		t.Errorf("%d reset, %v", n, err)
	}
	for name, conn := range map[string]net.Conn{"outbound": out, "inbound": in} {
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) && !errors.Is(err, unix.ECONNABORTED) {
			t.Errorf("%s: %v, want a reset", name, err)
		}
	}
	if bypassing, err := k.Bypassing(t.Context(), full()); err != nil || len(bypassing) != 0 {
		t.Errorf("afterwards: %v, %v", bypassing, err)
	}
}

// A change by somebody else is told of with a name; ours without.
func TestKernelTellsWhoChangesThings(t *testing.T) {
	netlab.Kernel(t)
	told := make(chan string, 100)
	pod, k := openWatched(t, func(by string) { told <- by })
	for _, form := range []ruleset.Form{ruleset.FormFull, ruleset.FormSYN} { // the second is told of
		want := full()
		want.Form = form
		if err := k.Apply(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		if _, err := k.Check(t.Context(), want, Changes); err != nil {
			t.Fatal(err)
		}
	}
	if by := <-told; by != "" {
		t.Errorf("our own change is said to be by %s", by)
	}
	netlab.MustRun(t, pod, "nft", "flush", "ruleset")
	for {
		select {
		case by := <-told:
			if strings.HasPrefix(by, "nft (pid ") {
				return
			}
		case <-time.After(10 * time.Second):
			t.Fatal("nft's flush was not told of")
		}
	}
}

func listen(t *testing.T, pod *netlab.NS, addr string, options ...netlab.Option) {
	t.Helper()
	l, err := pod.Listen(addr, options...)
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
