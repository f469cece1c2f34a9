package proxylink

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// dialVariable has the test binary connect sockets for a test instead of testing.
// The kernel takes who connects a socket for its peer.
const dialVariable = "FAIRLEAD_TEST_DIAL"

// dialForTest connects the descriptors from 3 on to path, one for each byte that
// comes, and says so with a byte. It ends when no more can come.
func dialForTest(path string) error {
	for fd := 3; ; fd++ {
		if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
			return err
		}
		if err := unix.Close(fd); err != nil {
			return err
		}
		if _, err := os.Stdout.Write([]byte{0}); err != nil {
			return err
		}
	}
}

// process is another process, with a number of its own, that dials.
type process struct {
	l       *link
	pid     int32
	sockets []*os.File // not yet connected
	ask     *os.File
	answer  *os.File
}

func (l *link) process(sockets int) *process {
	t := l.t
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	stdin, ask, err := os.Pipe()
	check(err)
	answer, stdout, err := os.Pipe()
	check(err)
	p := &process{l: l, ask: ask, answer: answer}
	files := []*os.File{stdin, stdout, os.Stderr}
	for range sockets {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		check(err)
		f := os.NewFile(uintptr(fd), "socket")
		p.sockets = append(p.sockets, f)
		files = append(files, f)
	}
	child, err := os.StartProcess("/proc/self/exe", []string{"dial"}, &os.ProcAttr{
		// Under the race detector a process would sleep before it ends.
		Env: append(os.Environ(), dialVariable+"="+l.cfg.Path, "GORACE=atexit_sleep_ms=0"), Files: files,
	})
	check(err)
	p.pid = int32(child.Pid)
	check(errors.Join(stdin.Close(), stdout.Close()))
	t.Cleanup(func() {
		for _, f := range p.sockets {
			_ = f.Close() // nothing was done with it
		}
		if err := errors.Join(ask.Close(), answer.Close()); err != nil {
			t.Error(err)
		}
		if state, err := child.Wait(); err != nil || !state.Success() {
			t.Errorf("the process that dials: %v, %v", state, err)
		}
	})
	return p
}

func (p *process) dial() *proxy {
	t := p.l.t
	t.Helper()
	if _, err := p.ask.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	if _, err := p.answer.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	f := p.sockets[0]
	p.sockets = p.sockets[1:]
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	conn := ztunnelproto.NewConn(c.(*net.UnixConn))
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return &proxy{t: t, conn: conn}
}

func (p *process) String() string { return fmt.Sprintf("pid %d", p.pid) }

func TestProcess(t *testing.T) {
	l := start(t, nil)
	l.Open()
	p := l.process(2)
	for range 2 {
		p.dial().hello().expect("snapshot")
	}
	for _, s := range l.Sessions() {
		if s.PID != p.pid || s.PID == int32(os.Getpid()) {
			t.Errorf("session of %d, not %v", s.PID, p)
		}
	}
}
