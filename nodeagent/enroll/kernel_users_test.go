package enroll

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// usersPod is a pod with hostUsers: false: its network namespace is owned by a user
// namespace of its own. within has its root execute a program there.
func usersPod(t *testing.T) (pod *netlab.NS, within func(program string, args ...string) *exec.Cmd) {
	t.Helper()
	ids := []syscall.SysProcIDMap{{HostID: 100000, Size: 65536}}
	pause := exec.Command("sleep", "600")
	pause.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL,
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true, Credential: &syscall.Credential{},
	}
	startPodProcess(t, pause)
	target := strconv.Itoa(pause.Process.Pid)
	h, err := netns.Open("/proc/" + target + "/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	pod = &netlab.NS{Handle: h, Name: "pod", Path: "/run/netns/users"}
	if err := errors.Join(os.WriteFile(pod.Path, nil, 0o600), unix.Mount("/proc/"+target+"/ns/net", pod.Path, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := pod.Close(); err != nil {
			t.Error(err)
		}
	})
	within = func(program string, args ...string) *exec.Cmd {
		return exec.CommandContext(t.Context(), "nsenter", append([]string{"-t", target, "-U", "-n", program}, args...)...)
	}
	run(t, within("ip", "link", "set", "lo", "up"))
	if !ownedByOthers(t, pod.Handle) {
		t.Fatal("the pod's network namespace is owned by our own user namespace")
	}
	return pod, within
}

// startPodProcess starts a process that ends with the test.
func startPodProcess(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // fails if it has ended
		_ = cmd.Wait()         // says that it was killed
	})
}

// ownedByOthers says whether a namespace is owned by a user namespace that is not ours.
func ownedByOthers(t *testing.T, h *netns.Handle) bool {
	t.Helper()
	var owner, own unix.Stat_t
	if err := h.File(func(f *os.File) error {
		fd, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
		if err != nil {
			return err
		}
		return errors.Join(unix.Fstat(fd, &owner), unix.Close(fd), unix.Stat("/proc/self/ns/user", &own))
	}); err != nil {
		t.Fatal(err)
	}
	return owner.Ino != own.Ino
}

// serveAsProxy has the test listen where a proxy does.
func serveAsProxy(t *testing.T, pod *netlab.NS) {
	t.Helper()
	for _, addr := range []string{"[::]:15001", "[::]:15006", "[::]:15008", "127.0.0.1:15053", "[::1]:15053"} {
		netlab.ServeEcho(t, pod, "proxy", "tcp", addr, proxySocket()...)
	}
	packet(t, pod, "127.0.0.1:15053")
	packet(t, pod, "[::1]:15053")
}

func proxySocket() []netlab.Option {
	return []netlab.Option{netlab.Mark(int(ruleset.ProxyMark)), netlab.Transparent, netlab.ReusePort}
}

// A pod whose network namespace belongs to a user namespace of its own is captured, looked at,
// put right when its root undoes it, and released, as any other.
func TestKernelOfAPodWithItsOwnUsers(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	pod, within := usersPod(t)
	peer := netlab.NewNS(t, "peer")
	netlab.Connect(t, netlab.Port{NS: pod, Link: "eth0", Addrs: netlab.Prefixes("10.0.0.1/24")},
		netlab.Port{NS: peer, Link: "eth0", Addrs: netlab.Prefixes("10.0.0.2/24")})
	netlab.ServeEcho(t, peer, "peer", "tcp", "10.0.0.2:80")
	told := make(chan string, 100)
	k := openAt(t, pod.Path, func(by string) { told <- by })
	before := kernelText(t, pod)
	serveAsProxy(t, pod)
	look := func() string {
		t.Helper()
		drift, err := k.Check(t.Context(), full(), Changes)
		if err != nil {
			t.Fatal(err)
		}
		return drift
	}
	goesTo := func(want string) {
		t.Helper()
		if got := netlab.Ask(t, pod, "tcp", "10.0.0.2:80").Server; got != want {
			t.Errorf("a connection goes to the %s, want the %s", got, want)
		}
	}
	goesTo("peer")
	apply := func() {
		t.Helper()
		if err := k.Apply(t.Context(), full()); err != nil {
			t.Fatal(err)
		}
		if drift := look(); drift != "" {
			t.Errorf("after Apply: %q", drift)
		}
		goesTo("proxy")
	}
	apply()
	if got, err := k.Listeners(t.Context()); err != nil || got != (status.Listeners{Known: true, Outbound: true, Inbound: true, HBONE: true, DNS: true}) {
		t.Errorf("listeners: %s, %v", got, err)
	}
	run(t, within("nft", "flush", "ruleset"))
	run(t, within("ip", "rule", "del", "priority", "32764"))
	for by := ""; !strings.HasPrefix(by, "nft (pid "); by = <-told { // or the test's own deadline
	}
	netlab.Eventually(t, func() error {
		if drift := look(); !strings.Contains(drift, "table inet fairlead") || !strings.Contains(drift, "rule") {
			return fmt.Errorf("what the pod's root undid is not all seen: %q", drift)
		}
		return nil
	})
	goesTo("peer")
	apply()
	if err := k.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := kernelText(t, pod); after != before {
		t.Errorf("left over:\n%s\nbefore:\n%s", after, before)
	}
	goesTo("peer")
}

// Who lives in such a pod and holds a port of the proxy's is seen, beside the proxy.
func TestKernelSeesSquattersWithTheirOwnUsers(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	pod, within := usersPod(t)
	k := openAt(t, pod.Path, func(string) {})
	serveAsProxy(t, pod)
	if got, err := k.Squatters(t.Context(), Everything); err != nil || len(got) > 0 {
		t.Errorf("without any: %v, %v", got, err)
	}
	taken, err := pod.Listen("[::]:15001", proxySocket()...)
	if err != nil {
		t.Fatal(err)
	}
	file, err := taken.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	squatter := within("sleep", "600")
	squatter.ExtraFiles = []*os.File{file}
	startPodProcess(t, squatter)
	if err := errors.Join(file.Close(), taken.Close()); err != nil {
		t.Fatal(err)
	}
	netlab.Eventually(t, func() error { // it enters the pod first
		got, err := k.Squatters(t.Context(), Everything)
		if err == nil && (len(got) != 1 || got[0].PID != squatter.Process.Pid) {
			err = fmt.Errorf("squatters: %v, want process %d", got, squatter.Process.Pid)
		}
		return err
	})
}

func run(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", cmd, err, out)
	}
}
