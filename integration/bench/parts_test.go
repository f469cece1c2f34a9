package bench

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// The other side has to do the same job, or the comparison is worth nothing.
func TestIptablesCapturesAsWell(t *testing.T) {
	for _, x := range flavours() {
		t.Run(x.name, func(t *testing.T) {
			netlab.Kernel(t)
			app, peer := netlab.NewNS(t, "app"), netlab.NewNS(t, "peer")
			netlab.Connect(t,
				netlab.Port{NS: app, Addrs: netlab.Prefixes("10.0.0.1/24", "fd00::1/64")},
				netlab.Port{NS: peer, Addrs: netlab.Prefixes("10.0.0.2/24", "fd00::2/64")})
			if _, err := x.apply(app, t.TempDir()); err != nil {
				t.Fatal(err)
			}
			for _, family := range []struct{ loopback, app, peer string }{
				{"127.0.0.1", "10.0.0.1", "10.0.0.2"}, {"[::1]", "[fd00::1]", "[fd00::2]"},
			} {
				netlab.ServeEcho(t, peer, "peer", "tcp", family.peer+":80")
				netlab.ServeEcho(t, app, "outbound", "tcp", fmt.Sprintf("%s:%d", family.loopback, ruleset.OutboundPort))
				netlab.ServeEcho(t, app, "inbound", "tcp", fmt.Sprintf("%s:%d", family.app, ruleset.InboundPort))
				netlab.ServeEcho(t, app, "hbone", "tcp", fmt.Sprintf("%s:%d", family.app, ruleset.HBONEPort))
				for _, tt := range []struct {
					from    *netlab.NS
					to      string
					options []netlab.Option
					want    string
				}{
					{app, family.peer + ":80", nil, "outbound"},
					{app, family.peer + ":80", []netlab.Option{netlab.Mark(int(ruleset.ProxyMark))}, "peer"},
					{peer, family.app + ":80", nil, "inbound"},
					{peer, fmt.Sprintf("%s:%d", family.app, ruleset.HBONEPort), nil, "hbone"},
				} {
					if got := netlab.Ask(t, tt.from, "tcp", tt.to, tt.options...); got.Server != tt.want {
						t.Errorf("%s -> %s reached %q, want %q", tt.from.Name, tt.to, got.Server, tt.want)
					}
				}
			}
		})
	}
}

func TestIptablesThatFails(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "fails")
	if _, err := (xtables{"none", [2]string{"no-such-tables", "no-such-tables"}}).apply(n, t.TempDir()); err == nil {
		t.Error("a program that is not there has restored rules")
	}
}

// redirected has a namespace redirected until the test's end.
func redirected(t *testing.T, n *netlab.NS) *redirection {
	t.Helper()
	r, err := openRedirection(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	})
	if err := r.apply(t.Context(), ruleset.FormFull); err != nil {
		t.Fatal(err)
	}
	return r
}

// A namespace that somebody has changed is not verified in no time, it is an error.
func TestCheckSeesDrift(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "drift")
	r := redirected(t, n)
	if err := r.check(t.Context()); err != nil {
		t.Fatal(err)
	}
	netlab.MustRun(t, n, "nft", "flush", "ruleset")
	if err := r.check(t.Context()); err == nil || !strings.Contains(err.Error(), "everything") {
		t.Errorf("after a flush: %v", err)
	}
	if err := r.release(t.Context()); err == nil {
		t.Error("a release found connections to the proxy where there were none")
	}
}

func TestPeakMemory(t *testing.T) {
	// Nothing of this process's own counts, though it is larger.
	ballast := make([]byte, 64<<20)
	for i := range ballast {
		ballast[i] = 1
	}
	mib, err := peakMemory(t.Context(), exec.Command("/bin/echo", "a"))
	if err != nil || mib < 0.1 || mib > 32 {
		t.Errorf("echo takes %v MiB, %v", mib, err)
	}
	if _, err := peakMemory(t.Context(), exec.Command("/no/such/program")); err == nil {
		t.Error("a program that is not there takes memory")
	}
	if len(ballast) == 0 {
		t.Error("the ballast is gone")
	}
}

func TestUse(t *testing.T) {
	p, err := netlab.Start(t.TempDir(), "busy", "/bin/sh", "-c", "while :; do :; done")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	netlab.Eventually(t, func() error {
		spent, err := cpuTime(p)
		if err == nil && spent < 10*time.Millisecond {
			err = fmt.Errorf("it has run for %s", spent)
		}
		return err
	})
	files, err := openFiles(p)
	if err != nil || files < 3 {
		t.Errorf("%v open files, %v", files, err)
	}
	memory, err := figures.Memory(p.PID(), "VmRSS")
	if err != nil || memory <= 0 || memory > 100 {
		t.Errorf("%v MiB, %v", memory, err)
	}
	p.Kill()
	if _, err := cpuTime(p); err == nil {
		t.Error("a process that is gone has used the CPU")
	}
}

func TestUninterrupted(t *testing.T) {
	answers := []error{unix.EINTR, unix.EINTR, unix.EPIPE, nil}
	asked := 0
	if err := uninterrupted(func() error { asked++; return answers[asked-1] }); err != unix.EPIPE || asked != 3 {
		t.Errorf("got %v after %d calls", err, asked)
	}
}

func TestMiddle(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 4}, 4}, {[]float64{2, 1}, 1}} {
		if got := middle(test.values); got != test.want {
			t.Errorf("the middle of %v is %v, want %v", test.values, got, test.want)
		}
	}
}

func TestPodsAreDistinct(t *testing.T) {
	seen := map[string]bool{}
	for i := range Full().More {
		name, uid := podName(i)
		for _, word := range []string{name, uid, podAddr(i).String()} {
			if seen[word] {
				t.Fatalf("pod %d shares %s", i, word)
			}
			seen[word] = true
		}
	}
	if seen[peerAddr] {
		t.Error("a pod has the peer's address")
	}
}
