package sockets

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// A squat is a socket in the pod.
type squat struct {
	network, addr string
	options       []netlab.Option
}

// file makes the socket, of which the test keeps nothing else.
func (s squat) file(t testing.TB, n *netlab.NS) *os.File {
	t.Helper()
	var f *os.File
	var err error
	if s.network == "tcp" {
		l := listen(t, n, s.addr, s.options...)
		f, err = l.(*net.TCPListener).File()
		_ = l.Close() // f is a copy
	} else {
		c := listenUDP(t, n, s.addr, s.options...)
		f, err = c.File()
		_ = c.Close() // f is a copy
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// start starts a program in a namespace that has some files open. It has begun to run,
// under its own name, when start returns.
func start(t testing.TB, n *netlab.NS, files []*os.File, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.ExtraFiles = files
	if err := n.Handle.Do(cmd.Start); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(cmd) })
	return cmd
}

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill() // fails if it has ended
	_ = cmd.Wait()         // says that it was killed
}

// settle starts a program that lives in a namespace and has sockets in the pod, which
// nobody else has from then on.
func settle(t testing.TB, home, pod *netlab.NS, squats ...squat) *exec.Cmd {
	t.Helper()
	var files []*os.File
	for _, s := range squats {
		files = append(files, s.file(t, pod))
	}
	cmd := start(t, home, files, "sleep", "600")
	for _, f := range files {
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return cmd
}

func wantSquatters(t *testing.T, c *Conn, want ...string) {
	t.Helper()
	found, err := c.Squatters(t.Context(), NewProcesses("/proc"))
	if got := fmt.Sprint(found); err != nil || got != fmt.Sprint(want) {
		t.Errorf("squatters %s, %v; want %s", got, err, want)
	}
}

// An app that has one of the proxy's ports, whichever and however.
func TestSquatters(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "pod")
	c := open(t, n)
	for _, s := range []squat{
		{"tcp", "[::]:15001", nil}, {"tcp", "0.0.0.0:15001", nil}, {"tcp", "127.0.0.1:15001", nil}, {"tcp", "[::1]:15001", nil},
		{"tcp", "[::]:15001", []netlab.Option{v6Only}}, {"tcp", "[::]:15006", []netlab.Option{netlab.Device("lo")}},
		{"tcp", "[::]:15006", []netlab.Option{netlab.Mark(0x539), netlab.ReusePort}}, // passes itself off as the proxy's
		{"tcp", "0.0.0.0:15006", nil}, {"tcp", "[::]:15008", nil}, {"tcp", "127.0.0.2:15008", nil},
		{"tcp", "127.0.0.1:15053", nil}, {"tcp", "[::1]:15053", nil}, {"tcp", "[::]:15053", nil},
		{"udp", "127.0.0.1:15053", nil}, {"udp", "[::1]:15053", nil}, {"udp", "[::]:15053", nil}, {"udp", "0.0.0.0:15053", nil},
	} {
		wantSquatters(t, c)
		app := settle(t, n, n, s)
		port := s.addr[strings.LastIndex(s.addr, ":")+1:]
		wantSquatters(t, c, fmt.Sprintf("port %s/%s: sleep (pid %d)", port, s.network, app.Process.Pid))
		end(app)
	}
	wantSquatters(t, c)
}

// What is not at one of the proxy's ports, and who does not live in the pod.
func TestNoSquatters(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	pod, host := netlab.NewNS(t, "pod"), netlab.NewNS(t, "host")
	c := open(t, pod)
	settle(t, pod, pod, squat{"tcp", "[::]:80", nil}, squat{"tcp", "[::]:15000", nil}, squat{"tcp", "[::]:15009", nil},
		squat{"udp", "[::]:15001", nil}, squat{"udp", "[::]:15052", nil}, squat{"udp", "[::]:15054", nil})
	client, _ := accepted(t, pod, listen(t, pod, "127.0.0.1:81"), "127.0.0.1:81")
	conn, err := pod.Dial(t.Context(), "tcp", "127.0.0.1:81", netlab.From("127.0.0.1:15001"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, open := range []*net.TCPConn{client, conn.(*net.TCPConn)} {
		f, err := open.File()
		if err != nil {
			t.Fatal(err)
		}
		start(t, pod, []*os.File{f}, "sleep", "600")
		_ = f.Close() // a copy
	}
	settle(t, host, host, squat{"tcp", "[::]:15001", nil}) // on the host's own port
	settle(t, pod, host, squat{"tcp", "[::]:15006", nil})  // on the host's, though it lives in the pod
	wantSquatters(t, c)
	// A proxy, or two while one is replaced by the other: one is this process, which
	// enters the pod for each socket.
	var proxy []squat
	for _, addr := range []string{"[::]:15001", "[::]:15006", "[::]:15008", "127.0.0.1:15053", "[::1]:15053"} {
		proxy = append(proxy, squat{"tcp", addr, proxySocket()})
		listen(t, pod, addr, proxySocket()...)
	}
	for _, addr := range []string{"127.0.0.1:15053", "[::1]:15053"} {
		proxy = append(proxy, squat{"udp", addr, proxySocket()})
		listenUDP(t, pod, addr, proxySocket()...)
	}
	old := settle(t, host, pod, proxy...)
	wantSquatters(t, c)
	end(old)
	wantSquatters(t, c)
	wantListeners(t, c, Listeners{Outbound: true, Inbound: true, HBONE: true, DNS: true, DNS6: true})
	// And an app beside it.
	app := settle(t, pod, pod, squat{"tcp", "[::]:15001", proxySocket()}, squat{"tcp", "127.0.0.1:15006", proxySocket()},
		squat{"udp", "127.0.0.1:15053", proxySocket()}, squat{"udp", "[::1]:15053", proxySocket()})
	pid := app.Process.Pid
	wantSquatters(t, c, fmt.Sprintf("port 15001/tcp: sleep (pid %d)", pid),
		fmt.Sprintf("port 15006/tcp: sleep (pid %d)", pid), fmt.Sprintf("port 15053/udp: sleep (pid %d)", pid))
}

// A socket that a process has from its parent is both's: the elder is named.
func TestInheritedSocket(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "pod")
	c := open(t, n)
	f := squat{"tcp", "[::]:15001", nil}.file(t, n)
	elder := start(t, n, []*os.File{f}, "sleep", "600")
	younger := start(t, n, []*os.File{f}, "tail", "-f", "/dev/null")
	_ = f.Close() // a copy
	wantSquatters(t, c, fmt.Sprintf("port 15001/tcp: sleep (pid %d)", elder.Process.Pid))
	end(elder)
	wantSquatters(t, c, fmt.Sprintf("port 15001/tcp: tail (pid %d)", younger.Process.Pid))
}

// A process lives on without its first thread, and so do its files.
func TestSquatterWithoutItsFirstThread(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "pod")
	f := squat{"tcp", "[::]:15001", nil}.file(t, n)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(headless, "1")
	app := start(t, n, []*os.File{f}, self)
	_ = f.Close() // a copy
	c := open(t, n)
	netlab.Eventually(t, func() error {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", app.Process.Pid))
		if err == nil && !strings.Contains(string(stat), ") Z ") {
			err = errors.New("the first thread has not ended")
		}
		return err
	})
	wantSquatters(t, c, fmt.Sprintf("port 15001/tcp: %s (pid %d)", filepath.Base(self), app.Process.Pid))
}

// headless is set for a process whose first thread is to end at once.
const headless = "FAIRLEAD_TEST_HEADLESS"

var _ = endFirstThread()

func endFirstThread() struct{} { // which runs the initialisation of variables
	if os.Getenv(headless) != "" {
		_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0) // of the thread, not of the process
	}
	return struct{}{}
}

// A process can call itself anything.
func TestSquatterWithAnOddName(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "pod")
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	odd := filepath.Join(t.TempDir(), "a\x1b[2J\n\xffé")
	if err := os.Symlink(sleep, odd); err != nil {
		t.Fatal(err)
	}
	f := squat{"tcp", "[::]:15001", nil}.file(t, n)
	app := start(t, n, []*os.File{f}, odd, "600")
	_ = f.Close() // a copy
	wantSquatters(t, open(t, n), fmt.Sprintf("port 15001/tcp: a?[2J??é (pid %d)", app.Process.Pid))
}

// /proc is read when somebody has one of the ports, and only then.
func TestSquattersReadProcWhenTheyHaveTo(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "pod")
	c := open(t, n)
	nowhere := NewProcesses(filepath.Join(t.TempDir(), "proc"))
	if found, err := c.Squatters(t.Context(), nowhere); len(found) > 0 || err != nil {
		t.Errorf("nobody there: %v, %v", found, err)
	}
	listen(t, n, "[::]:15001")
	if found, err := c.Squatters(t.Context(), nowhere); len(found) > 0 || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("somebody there, and no /proc: %v, %v", found, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Squatters(ctx, NewProcesses("/proc")); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}

// An app with more sockets on a port than are looked at.
func TestTooManySocketsOnAPort(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "pod")
	c := open(t, n)
	c.max = 5
	var many []squat
	for range 2 * c.max {
		many = append(many, squat{"tcp", "[::]:15001", []netlab.Option{netlab.ReusePort}})
	}
	app := settle(t, n, n, many...)
	for range 2 { // the socket is good for more
		wantSquatters(t, c, fmt.Sprintf("port 15001/tcp: sleep (pid %d)", app.Process.Pid))
	}
}

// Many pods are looked at together, as when they are adopted.
func TestSquattersOfManyPods(t *testing.T) {
	netlab.Kernel(t)
	processes := NewProcesses("/proc")
	var work sync.WaitGroup
	for i := range 20 {
		n := netlab.NewNS(t, fmt.Sprintf("pod%d", i))
		c := open(t, n)
		squats := []squat{{"tcp", "[::]:15001", nil}, {"udp", "[::1]:15053", nil}}
		app := settle(t, n, n, squats...)
		want := fmt.Sprintf("[port 15001/tcp: sleep (pid %[1]d) port 15053/udp: sleep (pid %[1]d)]", app.Process.Pid)
		work.Go(func() {
			netlab.Eventually(t, func() error { // who has come after the last walk is not known yet
				found, err := c.Squatters(t.Context(), processes)
				if got := fmt.Sprint(found); err != nil || got != want {
					return fmt.Errorf("%s, %w; want %s", got, err, want)
				}
				return nil
			})
		})
	}
	work.Wait()
}

func BenchmarkSquatters(b *testing.B) {
	netlab.Kernel(b)
	empty, pod := netlab.NewNS(b, "empty"), netlab.NewNS(b, "pod")
	settle(b, pod, pod, squat{"tcp", "[::]:80", nil})
	for _, addr := range []string{"[::]:15001", "[::]:15006", "[::]:15008", "127.0.0.1:15053", "[::1]:15053"} {
		listen(b, pod, addr, proxySocket()...)
	}
	for name, n := range map[string]*netlab.NS{"nobody": empty, "a proxy": pod} {
		c, processes := open(b, n), NewProcesses("/proc")
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if found, err := c.Squatters(b.Context(), processes); len(found) > 0 || err != nil {
					b.Fatal(found, err)
				}
			}
		})
	}
}

func BenchmarkWalk(b *testing.B) {
	netlab.Kernel(b)
	n := netlab.NewNS(b, "pod")
	const many = 300
	for range many {
		start(b, n, nil, "sleep", "600")
	}
	processes := NewProcesses("/proc")
	for b.Loop() {
		if living, err := processes.walk(b.Context()); len(living) < 2 || err != nil {
			b.Fatal(len(living), err)
		}
	}
}
