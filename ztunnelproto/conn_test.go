package ztunnelproto

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/testing/protocmp"
)

// rawPair gives a Conn and the bare other end, which can misbehave.
func rawPair(t testing.TB) (*Conn, int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	c := connOf(t, fds[0])
	t.Cleanup(func() { _ = c.Close() })
	return c, fds[1]
}

func connOf(t testing.TB, fd int) *Conn {
	t.Helper()
	f := os.NewFile(uintptr(fd), "socketpair")
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return NewConn(c.(*net.UnixConn))
}

func pair(t testing.TB) (a, b *Conn) {
	t.Helper()
	a, fd := rawPair(t)
	b = connOf(t, fd)
	t.Cleanup(func() { _ = b.Close() })
	return a, b
}

// checkFDs fails the test if fn leaves this process with other descriptors than
// before. The garbage collector, which closes forgotten files, is kept out.
func checkFDs(t testing.TB, fn func()) {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	before := openFDs(t)
	fn()
	if diff := cmp.Diff(before, openFDs(t)); diff != "" {
		t.Errorf("open descriptors (-before +after):\n%s", diff)
	}
}

func openFDs(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		// ReadDir's own descriptor is gone by now.
		if target, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name())); err == nil {
			list = append(list, e.Name()+" "+target)
		}
	}
	return list
}

func devNull(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestAMessageAndItsFileArrive(t *testing.T) {
	a, b := pair(t)
	f := devNull(t)
	want := addRequest("uid0", "name", "ns", "sa")
	if err := a.Send(want, f); err != nil {
		t.Fatal(err)
	}
	if err := a.Send(snapshotSent(), nil); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}

	var got WorkloadRequest
	received, err := b.Receive(&got)
	if err != nil {
		t.Fatal(err)
	}
	defer received.Close()
	if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	sent, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := received.Stat(); err != nil || !os.SameFile(sent, info) {
		t.Errorf("received another file: %v, %v", info, err)
	}
	if flags, err := unix.FcntlInt(received.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("descriptor flags %#x (%v): a child process would inherit it", flags, err)
	}

	if received, err := b.Receive(&got); received != nil || err != nil || got.GetSnapshotSent() == nil {
		t.Errorf("second record: %v, %v, %v", received, err, &got)
	}
	if received, err := b.Receive(&got); received != nil || err != io.EOF {
		t.Errorf("at the end: %v, %v", received, err)
	}
}

func repeat(f *os.File, n int) []int { return slices.Repeat([]int{int(f.Fd())}, n) }

func TestBadRecordsLeaveNothingOpen(t *testing.T) {
	f := devNull(t)
	snapshot := "\x1a\x00"
	for _, test := range []struct {
		name   string
		record string
		fds    []int
		err    string
	}{
		{"empty", "", nil, "EOF"},
		{"empty, with a file", "", repeat(f, 1), "EOF"},
		{"empty, with many files", "", repeat(f, 100), "EOF"},
		{"two files", snapshot, repeat(f, 2), "2 file descriptors came with it"},
		{"three files", snapshot, repeat(f, 3), "file descriptors were lost"},
		{"the most files the kernel passes", snapshot, repeat(f, 253), "file descriptors were lost"},
		{"too long", strings.Repeat("x", MaxRecord+1), nil, "longer than 1024 bytes"},
		{"too long, with files", strings.Repeat("x", 60_000), repeat(f, 2), "longer than 1024 bytes"},
		{"garbage", "\xff\xff\xff", nil, "cannot decode WorkloadRequest"},
		{"garbage, with a file", "\xff\xff\xff", repeat(f, 1), "cannot decode WorkloadRequest"},
		{"cut short, with a file", "\x0a\x16\x0a\x04", repeat(f, 1), "cannot decode WorkloadRequest"},
		{"text that is not UTF-8", "\x12\x03\x12\x01\xff", nil, "cannot decode WorkloadRequest"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, peer := rawPair(t)
			defer unix.Close(peer)
			checkFDs(t, func() {
				sendRecord(t, peer, []byte(test.record), test.fds)
				received, err := c.Receive(&WorkloadRequest{})
				if received != nil || err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, %v; want an error with %q", received, err, test.err)
				}
			})
		})
	}
}

// sendRecord is sendmsg(2) itself: unix.Sendmsg adds a byte to an empty record.
func sendRecord(t testing.TB, fd int, record []byte, fds []int) {
	t.Helper()
	var msg unix.Msghdr
	if len(record) > 0 {
		msg.Iov = &unix.Iovec{Base: &record[0]}
		msg.Iov.SetLen(len(record))
		msg.SetIovlen(1)
	}
	if len(fds) > 0 {
		control := unix.UnixRights(fds...)
		msg.Control = &control[0]
		msg.SetControllen(len(control))
	}
	if _, _, errno := unix.Syscall(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), 0); errno != 0 {
		t.Fatalf("sendmsg: %v", errno)
	}
}

func TestAFileThatCannotBeOpenedHereIsAnError(t *testing.T) {
	c, peer := rawPair(t)
	defer unix.Close(peer)
	f := devNull(t)
	sendRecord(t, peer, []byte("\x1a\x00"), repeat(f, 1))
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	low := syscall.Rlimit{Cur: 3, Max: limit.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &low); err != nil {
		t.Fatal(err)
	}
	received, err := c.Receive(&WorkloadRequest{})
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if received != nil || err == nil || !strings.Contains(err.Error(), "ulimit -n") {
		t.Errorf("got %v, %v", received, err)
	}
}

func TestSendRefuses(t *testing.T) {
	closed := devNull(t)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	a, b := pair(t)
	for _, test := range []struct {
		name string
		err  error
		want string
	}{
		{"an empty message", a.Send(&ZdsHello{}, nil),
			"cannot send an empty ZdsHello: the peer would take it for the end"},
		{"a long message", a.Send(addRequest(strings.Repeat("u", MaxRecord), "", "", ""), nil),
			"cannot send WorkloadRequest: 1032 bytes, the longest record is 1024"},
		{"text that is not UTF-8", a.Send(addRequest("\xff", "", "", ""), nil),
			"string field contains invalid UTF-8"},
		{"a closed file", a.Send(snapshotSent(), closed),
			"cannot send WorkloadRequest: /dev/null: use of closed file"},
	} {
		if test.err == nil || !strings.Contains(test.err.Error(), test.want) || !errors.Is(test.err, ErrUnsent) {
			t.Errorf("%s: error %v, want %q, unsent", test.name, test.err, test.want)
		}
	}
	// Of all that nothing was sent.
	if err := a.Send(NewResponse("boom"), nil); err != nil {
		t.Fatal(err)
	}
	var got WorkloadResponse
	if f, err := b.Receive(&got); f != nil || err != nil || got.GetAck().GetError() != "boom" {
		t.Errorf("the first record is %v, %v, %v", f, err, &got)
	}
}

func TestPeerGone(t *testing.T) {
	a, b := pair(t)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	f := devNull(t)
	checkFDs(t, func() {
		if err := a.Send(snapshotSent(), f); !errors.Is(err, unix.EPIPE) || errors.Is(err, ErrUnsent) {
			t.Errorf("Send: %v", err)
		}
		if _, err := a.Receive(&WorkloadRequest{}); err != io.EOF {
			t.Errorf("Receive: %v", err)
		}
	})
}

func TestWaitHangup(t *testing.T) {
	for name, test := range map[string]struct {
		sent   int
		before bool // the peer closes before anyone waits
	}{
		"silent":                    {},
		"after a record":            {sent: 1},
		"after many":                {sent: 5},
		"before":                    {before: true},
		"before, and after records": {sent: 2, before: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			for range test.sent {
				if err := b.Send(&ZdsHello{Version: Version_V1}, nil); err != nil {
					t.Fatal(err)
				}
			}
			if test.before {
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
			}
			waited := make(chan error)
			go func() { waited <- a.WaitHangup() }()
			if !test.before {
				select {
				case err := <-waited:
					t.Fatalf("ended while the peer is there: %v", err)
				default:
				}
				if err := b.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if err := <-waited; err != nil {
				t.Fatal(err)
			}
			for range test.sent {
				var hello ZdsHello
				if _, err := a.Receive(&hello); err != nil || hello.Version != Version_V1 {
					t.Errorf("received %v, %v", &hello, err)
				}
			}
			if _, err := a.Receive(&ZdsHello{}); !errors.Is(err, io.EOF) {
				t.Errorf("at the end: %v", err)
			}
		})
	}
}

func TestWaitHangupEnds(t *testing.T) {
	a, b := pair(t)
	if err := b.Send(&ZdsHello{Version: Version_V1}, nil); err != nil {
		t.Fatal(err)
	}
	if err := a.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if err := a.WaitHangup(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("at the deadline: %v", err)
	}
	if err := a.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Receive(&ZdsHello{}); err != nil {
		t.Errorf("what was sent meanwhile: %v", err)
	}
	waited := make(chan error)
	go func() { waited <- a.WaitHangup() }()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; !errors.Is(err, net.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
