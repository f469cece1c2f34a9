package nlconn

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func TestMain(m *testing.M) { netlab.Main(m, 9) }

func open(t *testing.T, n *netlab.NS) *Conn {
	t.Helper()
	c, err := Open(n.Handle, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// links lists the names of the namespace's interfaces.
func links(ctx context.Context, c *Conn) (string, error) {
	var names []string
	err := c.Request(ctx, unix.RTM_GETLINK, unix.NLM_F_DUMP, make([]byte, unix.SizeofIfInfomsg), func(reply []byte) error {
		attrs, err := ParseAttrs(reply[unix.SizeofIfInfomsg:])
		for _, a := range attrs {
			if a.Kind == unix.IFLA_IFNAME {
				names = append(names, unix.ByteSliceToString(a.Value))
			}
		}
		return err
	})
	return strings.Join(names, " "), err
}

func wantLinks(t *testing.T, c *Conn, want string) {
	t.Helper()
	if got, err := links(t.Context(), c); err != nil || got != want {
		t.Errorf("interfaces %q, %v; want %q", got, err, want)
	}
}

func TestSocketIsInTheNamespace(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	a, b := netlab.NewNS(t, "a"), netlab.NewNS(t, "b")
	netlab.Connect(t, netlab.Port{NS: a, Link: "only-a"}, netlab.Port{NS: b, Link: "only-b"})
	wantLinks(t, open(t, a), "lo only-a")
	wantLinks(t, open(t, b), "lo only-b")
}

func TestSocketElsewhereIsRefused(t *testing.T) {
	netlab.Kernel(t)
	a, b := netlab.NewNS(t, "a"), netlab.NewNS(t, "b")
	var fd int
	a.Do(t, func() { fd, _ = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE) })
	defer func() { _ = unix.Close(fd) }()
	if err := prepare(fd, a.Handle.ID()); err != nil {
		t.Errorf("where it should be: %v", err)
	}
	if err := prepare(fd, b.Handle.ID()); err == nil || !strings.Contains(err.Error(), a.Handle.ID().String()) {
		t.Errorf("elsewhere: %v", err)
	}
}

func TestOpenFails(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "a")
	if _, err := Open(n.Handle, 31); !errors.Is(err, unix.EPROTONOSUPPORT) {
		t.Errorf("a protocol that does not exist: %v", err)
	}
	gone, err := n.Handle.Dup()
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(gone, unix.NETLINK_ROUTE); err == nil {
		t.Error("opened in a closed namespace")
	}
}

func TestKernelErrorIsExplained(t *testing.T) {
	netlab.Kernel(t)
	c := open(t, netlab.NewNS(t, "a"))
	request := make([]byte, unix.SizeofRtMsg)
	request[0], request[4] = unix.AF_INET, 100
	request[7] = unix.RTN_UNICAST
	request = AppendUint32(request, unix.RTA_OIF, 77)
	err := c.Request(t.Context(), unix.RTM_NEWROUTE, unix.NLM_F_ACK|unix.NLM_F_CREATE, request, nil)
	if !errors.Is(err, unix.ENODEV) {
		t.Errorf("a route by an interface that does not exist: %v", err)
	}
	request[1] = 77
	err = c.Request(t.Context(), unix.RTM_NEWROUTE, unix.NLM_F_ACK|unix.NLM_F_CREATE, request, nil)
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "(Invalid prefix length)") {
		t.Errorf("an impossible route: %v", err)
	}
	wantLinks(t, c, "lo")
}

func TestErrorOfTheCallerDoesNotSpoilTheNextRequest(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "a")
	netlab.MustRun(t, n, "ip", "link", "add", "eth0", "type", "bridge")
	c := open(t, n)
	want, calls := errors.New("boom"), 0
	err := c.Request(t.Context(), unix.RTM_GETLINK, unix.NLM_F_DUMP, make([]byte, unix.SizeofIfInfomsg), func([]byte) error {
		calls++
		return want
	})
	if !errors.Is(err, want) || calls != 1 {
		t.Errorf("got %v after %d calls, want boom after 1", err, calls)
	}
	wantLinks(t, c, "lo eth0")
}

// abandon sends a request for a dump and leaves its replies unread.
func abandon(t *testing.T, c *Conn) {
	t.Helper()
	raw, err := c.file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		c.seq++
		message := appendHeader(nil, unix.RTM_GETLINK, unix.NLM_F_REQUEST|unix.NLM_F_DUMP, c.seq, unix.SizeofIfInfomsg)
		if err := unix.Sendto(int(fd), append(message, make([]byte, unix.SizeofIfInfomsg)...), 0, nil); err != nil {
			t.Error(err)
		}
	}); err != nil {
		t.Fatal(err)
	}
	c.dirty = true
}

func TestAbandonedRequestDoesNotSpoilTheNext(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "a")
	for i := range 100 { // more than fits one datagram
		netlab.MustRun(t, n, "ip", "link", "add", fmt.Sprintf("eth%d", i), "type", "bridge")
	}
	c := open(t, n)
	want, err := links(t.Context(), c)
	if err != nil || !strings.HasSuffix(want, "eth99") {
		t.Fatalf("interfaces %q, %v", want, err)
	}
	for range 3 {
		abandon(t, c)
		wantLinks(t, c, want)
	}
	c.dirty = false // even if it did not know: by the number
	abandon(t, c)
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	netlab.Kernel(t)
	c := open(t, netlab.NewNS(t, "a"))
	raw, err := c.file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	expired, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	cancelled, cancelNow := context.WithCancel(t.Context())
	cancelNow()
	for ctx, want := range map[context.Context]error{expired: context.DeadlineExceeded, cancelled: context.Canceled} {
		if err := raw.Control(func(fd uintptr) {
			if _, err := receive(ctx, int(fd), make([]byte, 100)); !errors.Is(err, want) {
				t.Errorf("nothing came: %v, want %v", err, want)
			}
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := links(ctx, c); !errors.Is(err, want) {
			t.Errorf("request: %v, want %v", err, want)
		}
	}
}

func TestClose(t *testing.T) {
	netlab.Kernel(t)
	c := open(t, netlab.NewNS(t, "a"))
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for {
				if got, err := links(context.Background(), c); err != nil {
					if !errors.Is(err, os.ErrClosed) {
						t.Errorf("request while the socket is closed: %q, %v", got, err)
					}
					return
				}
			}
		})
	}
	wantLinks(t, c, "lo")
	for range 2 {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	busy.Wait()
}

func TestMessagesFromOthersAreNotTaken(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "a")
	c := open(t, n)
	raw, err := c.file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var own unix.Sockaddr
	if err := raw.Control(func(fd uintptr) { own, err = unix.Getsockname(int(fd)) }); err != nil {
		t.Fatal(err)
	}
	n.Do(t, func() {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
		if err != nil {
			t.Error(err)
			return
		}
		defer func() { _ = unix.Close(fd) }()
		forged := binary.NativeEndian.AppendUint32(appendHeader(nil, unix.NLMSG_ERROR, 0, 1, 4), 0)
		if err := unix.Sendto(fd, forged, 0, own); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("somebody else's message was delivered: %v", err)
		}
	})
	wantLinks(t, c, "lo")
}
