package hostnet

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/iptables/watch"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); name == kubeletName || name == otherName {
		if err := daemon(os.Stdin, os.Stdout); err != nil {
			panic(err)
		}
		return
	}
	netlab.Main(m, kernelTests)
}

// The names of the processes that tests start: this program under another name.
const (
	kubeletName = "kubelet"
	otherName   = "nodelet"
)

// daemon does what it is told, line by line: opens a connection and says what address the
// peer saw, or says how the kernel counts cgroups' levels.
func daemon(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		answer, err := obey(lines.Text())
		if err != nil {
			answer = err.Error()
		}
		if _, err := fmt.Fprintln(out, answer); err != nil {
			return err
		}
	}
	return lines.Err()
}

func obey(order string) (string, error) {
	switch order {
	case "levels":
		return levels()
	case "exempt":
		return exempt(context.Background())
	}
	conn, err := net.DialTimeout("tcp", order, 10*time.Second)
	if err != nil {
		return "", err
	}
	var reply netlab.Reply
	err = json.NewDecoder(conn).Decode(&reply)
	return reply.Peer.Addr().String(), errors.Join(err, conn.Close())
}

func levels() (string, error) {
	here, err := netns.Current()
	if err != nil {
		return "", err
	}
	conn, err := nlconn.Open(here, unix.NETLINK_NETFILTER)
	if err != nil {
		return "", err
	}
	relative, err := relativeLevels(context.Background(), conn)
	return fmt.Sprintf("relative: %t", relative), err
}

// exempt plays, in cgroup and mount namespaces of its own, a node that is a container: the
// process is the kubelet, in a cgroup that is not the namespace's root, and the agent.
func exempt(ctx context.Context) (string, error) {
	mount, err := os.MkdirTemp("", "cgroup")
	if err != nil {
		return "", err
	}
	group := filepath.Join(mount, "kubelet.slice/kubelet.service")
	err = unix.Mount("none", mount, "cgroup2", 0, "")
	if err == nil {
		err = os.MkdirAll(group, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte("0"), 0)
	}
	if err != nil {
		return "", err
	}
	here, err := netns.Current()
	if err != nil {
		return "", err
	}
	e, err := New(config(&netlab.NS{Handle: here}))
	if err != nil {
		return "", err
	}
	e.turn(ctx)
	err = e.Set(ctx, "web", podOf(0))
	k := e.Status().Kubelet
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", k.Mode, k.Cgroup, k.Reason)), errors.Join(err, e.Close(), here.Close())
}

// A node is a host with a bridge, and pods on it.
type node struct {
	host *netlab.NS
	pods []*netlab.NS
}

// newNode makes a host with pods, which have the addresses 10.0.0.2 and fd00::2, and so on.
func newNode(t testing.TB, pods int) *node {
	t.Helper()
	n := &node{host: netlab.NewSwitch(t, "host")}
	netlab.MustRun(t, n.host, "ip", "address", "add", "10.0.0.1/24", "dev", "bridge")
	netlab.MustRun(t, n.host, "ip", "address", "add", "fd00::1/64", "dev", "bridge")
	for i := range pods {
		pod := netlab.NewNS(t, fmt.Sprintf("pod%d", i))
		v4, v6 := podAddrs(i)
		port := netlab.Port{NS: pod, Addrs: []netip.Prefix{netip.PrefixFrom(v4, 24), netip.PrefixFrom(v6, 64)}}
		if err := errors.Join(n.host.Plug(fmt.Sprintf("veth%d", i), port),
			pod.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("10.0.0.1")),
			pod.AddRoute(netip.MustParsePrefix("::/0"), netip.MustParseAddr("fd00::1"))); err != nil {
			t.Fatal(err)
		}
		for _, a := range []netip.Addr{v4, v6} {
			netlab.ServeEcho(t, pod, "app", "tcp", netip.AddrPortFrom(a, 80).String())
		}
		n.pods = append(n.pods, pod)
	}
	return n
}

func podAddrs(i int) (v4, v6 netip.Addr) {
	return netip.AddrFrom4([4]byte{10, 0, 0, byte(2 + i)}), netip.MustParseAddr(fmt.Sprintf("fd00::%x", 2+i))
}

// podOf is what the exemption is told of a pod.
func podOf(i int) Pod {
	v4, v6 := podAddrs(i)
	return Pod{Addrs: []netip.Addr{v4, v6}, Links: []string{fmt.Sprintf("veth%d", i)}}
}

// cgroups makes a cgroup in the unified hierarchy and returns its path there. It is
// removed, with those below it, when the test ends.
func cgroups(t testing.TB) (root, path string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	mount, ok := cgroupMount(string(mounts), "")
	if !ok {
		t.Fatal("the unified cgroup hierarchy is not mounted: this test needs it")
	}
	dir := filepath.Join(mount, fmt.Sprintf("fairlead-hostnet-%d", time.Now().UnixNano()))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		netlab.Eventually(t, func() error { return removeCgroup(dir) }) // a process's end is not seen there at once
	})
	return mount, strings.TrimPrefix(dir, mount)
}

func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		if entry.IsDir() {
			err = errors.Join(err, removeCgroup(filepath.Join(dir, entry.Name())))
		}
	}
	return errors.Join(err, os.Remove(dir))
}

// A proc is a running daemon.
type proc struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// start starts a daemon in a namespace, in a cgroup that it makes if need be.
func start(t testing.TB, n *netlab.NS, name, cgroup string, flags uintptr) *proc {
	t.Helper()
	if err := os.MkdirAll(cgroup, 0o755); err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	path := filepath.Join(t.TempDir(), name)
	if err := os.Symlink("/proc/self/exe", path); err != nil {
		t.Fatal(err)
	}
	p := &proc{cmd: exec.Command(path)}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Cloneflags: flags}
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	if err := n.Handle.Do(p.cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.end)
	return p
}

// end ends the process. It is idempotent.
func (p *proc) end() {
	_ = p.in.Close()
	_ = p.cmd.Wait() // ends when there is nothing more to read
}

func (p *proc) ask(t testing.TB, order string) string {
	t.Helper()
	if _, err := fmt.Fprintln(p.in, order); err != nil {
		t.Fatal(err)
	}
	answer, err := p.out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(answer)
}

// seen is what source addresses a pod sees of a process.
func (p *proc) seen(t testing.TB, i int) string {
	t.Helper()
	v4, v6 := podAddrs(i)
	return p.ask(t, netip.AddrPortFrom(v4, 80).String()) + " " + p.ask(t, netip.AddrPortFrom(v6, 80).String())
}

const (
	asProbe = "169.254.7.127 fd16:9254:7127:1337:ffff:ffff:ffff:ffff"
	asHost  = "10.0.0.1 fd00::1"
)

func config(n *netlab.NS) Config {
	return Config{
		Host: n.Handle, Probes: SNAT, Mark: DefaultMark, IPv4: ruleset.DefaultProbeIPv4, IPv6: ruleset.DefaultProbeIPv6,
		Look: 10 * time.Millisecond, Sweep: time.Hour,
	}
}

// open makes an Exemption that is closed with the test.
func open(t testing.TB, c Config) *Exemption {
	t.Helper()
	e, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(e.Close(), e.Close()); err != nil {
			t.Error(err)
		}
	})
	return e
}

// run runs an Exemption until the test's end, or until stop is called.
func run(t testing.TB, e *Exemption) (stop func()) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- e.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		goleak.VerifyNone(t, before)
	}
	t.Cleanup(stop)
	return stop
}

// watcher runs a Watcher until the test's end.
func watcher(t testing.TB) *watch.Watcher {
	t.Helper()
	w, err := watch.New()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w
}

func set(t testing.TB, e *Exemption, uid string, p Pod) {
	t.Helper()
	if err := e.Set(t.Context(), uid, p); err != nil {
		t.Fatal(err)
	}
}

func remove(t testing.TB, e *Exemption, uid string) {
	t.Helper()
	if err := e.Delete(t.Context(), uid); err != nil {
		t.Fatal(err)
	}
}

// members are the addresses and guards in the kernel between two changes by e, as lines.
func members(t testing.TB, e *Exemption) string {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	got, _, err := read(t.Context(), e.conn)
	if err != nil {
		t.Error(err)
		return err.Error()
	}
	return strings.Join(got.members(), "\n")
}

// asWanted fails the test unless the table comes to be the wanted one.
func asWanted(t testing.TB, e *Exemption) {
	t.Helper()
	netlab.Eventually(t, func() error {
		drift, err := e.Check(context.Background())
		if err == nil && len(drift) > 0 {
			err = errors.New(strings.Join(drift, "\n"))
		}
		return err
	})
}

// mode waits until the kubelet is recognised in a mode.
func mode(t testing.TB, e *Exemption, want Mode) {
	t.Helper()
	netlab.Eventually(t, func() error {
		if s := e.Status(); s.Kubelet.Mode != want || s.Problem != "" {
			return fmt.Errorf("status %+v, want mode %q", s, want)
		}
		return nil
	})
	asWanted(t, e)
}

func lines(all ...string) string {
	return strings.Join(slices.DeleteFunc(all, func(s string) bool { return s == "" }), "\n")
}
