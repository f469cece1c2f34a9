package nlconn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func TestMain(m *testing.M) { netlab.Main(m, 14) }

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
	fd := rawSocket(t, a)
	if err := prepare(fd, a.Handle.ID()); err != nil {
		t.Errorf("where it should be: %v", err)
	}
	if err := prepare(fd, b.Handle.ID()); err == nil || !strings.HasSuffix(err.Error(), fmt.Sprintf("is in network namespace %s, not %s: nothing was sent", a.Handle.ID(), b.Handle.ID())) {
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

// manyLinks is a namespace whose interfaces do not fit one datagram.
func manyLinks(t *testing.T) *netlab.NS {
	t.Helper()
	n := netlab.NewNS(t, "a")
	var commands strings.Builder
	for i := range 100 {
		fmt.Fprintf(&commands, "link add eth%d type bridge\n", i)
	}
	file := filepath.Join(t.TempDir(), "commands")
	if err := os.WriteFile(file, []byte(commands.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	netlab.MustRun(t, n, "ip", "-batch", file)
	return n
}

// A request that is given up costs its socket and nothing else.
func TestAbandonedRequestDoesNotSpoilTheNext(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	c := open(t, manyLinks(t))
	want, err := links(t.Context(), c)
	if err != nil || !strings.HasSuffix(want, "eth99") {
		t.Fatalf("interfaces %q, %v", want, err)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithCancel(t.Context())
	for i, tt := range []struct {
		ctx  context.Context
		each func() error
		want error
	}{
		{t.Context(), func() error { return enough }, enough},
		{ctx, func() error { cancel(); return nil }, context.Canceled},
	} {
		calls := 0
		err := c.Request(tt.ctx, unix.RTM_GETLINK, unix.NLM_F_DUMP, make([]byte, unix.SizeofIfInfomsg), func([]byte) error {
			calls++
			return tt.each()
		})
		if !errors.Is(err, tt.want) || calls != 1 {
			t.Errorf("%d: got %v after %d replies, want %v after 1", i, err, calls, tt.want)
		}
		wantLinks(t, c, want)
	}
}

// Without the namespace there is no new socket: that is an error, each time, and not a
// reason to read what the last request left.
func TestAbandonedRequestInAClosedNamespace(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "a")
	h, err := n.Handle.Dup()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Open(h, unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	wantLinks(t, c, "lo") // the socket is enough
	c.unread = true
	for range 2 {
		if got, err := links(t.Context(), c); !errors.Is(err, os.ErrClosed) {
			t.Errorf("got %q, %v", got, err)
		}
	}
}

// The socket is in order after what needs no other one.
func TestSocketIsKept(t *testing.T) {
	netlab.Kernel(t)
	c := open(t, netlab.NewNS(t, "a"))
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	each := func([]byte) error { return nil }
	for name, tt := range map[string]struct {
		ctx         context.Context
		kind, flags uint16
		link        byte
		want        error
	}{
		"a reply":           {t.Context(), unix.RTM_GETLINK, 0, 1, nil},
		"a dump":            {t.Context(), unix.RTM_GETLINK, unix.NLM_F_DUMP, 0, nil},
		"the kernel's no":   {t.Context(), unix.RTM_GETLINK, 0, 77, unix.ENODEV},
		"no to a dump":      {t.Context(), unix.RTM_GETLINK, unix.NLM_F_DUMP, 77, unix.EINVAL},
		"no such request":   {t.Context(), 999, unix.NLM_F_ACK, 0, unix.EOPNOTSUPP},
		"nothing was sent":  {cancelled, unix.RTM_GETLINK, 0, 1, context.Canceled},
		"there is no reply": {t.Context(), unix.NLMSG_NOOP, 0, 0, errNoAnswer},
	} {
		before := c.fd
		request := make([]byte, unix.SizeofIfInfomsg)
		request[4] = tt.link
		if err := c.Request(tt.ctx, tt.kind, tt.flags, request, each); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		if c.unread || c.fd != before {
			t.Errorf("%s: the socket is given up", name)
		}
	}
}

func TestList(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "a")
	netlab.MustRun(t, n, "ip", "link", "add", "eth0", "type", "bridge")
	c := open(t, n)
	list := func(parse func(index byte) (byte, bool, error)) ([]byte, error) {
		return List(t.Context(), c, unix.RTM_GETLINK, make([]byte, unix.SizeofIfInfomsg), func(reply []byte) (byte, bool, error) {
			return parse(reply[4])
		})
	}
	got, err := list(func(index byte) (byte, bool, error) { return index, index != 1, nil })
	if err != nil || !bytes.Equal(got, []byte{2}) {
		t.Errorf("without lo: %v, %v", got, err)
	}
	calls := 0
	got, err = list(func(index byte) (byte, bool, error) {
		calls++
		if calls < 4 {
			return index, true, ErrInterrupted
		}
		return index, true, nil
	})
	if !errors.Is(err, ErrInterrupted) || len(got) != 0 || calls != 3 {
		t.Errorf("interrupted for ever: %v, %v, after %d replies", got, err, calls)
	}
	got, err = list(func(index byte) (byte, bool, error) {
		calls++
		if calls == 5 {
			return 0, false, ErrInterrupted
		}
		return index, true, nil
	})
	if err != nil || !bytes.Equal(got, []byte{1, 2}) {
		t.Errorf("interrupted once: %v, %v", got, err)
	}
	boom := errors.New("boom")
	got, err = list(func(index byte) (byte, bool, error) {
		if index == 2 {
			return 0, false, boom
		}
		return index, true, nil
	})
	if !errors.Is(err, boom) || !bytes.Equal(got, []byte{1}) {
		t.Errorf("stopped half-way: %v, %v", got, err)
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

// A process in the pod with CAP_NET_ADMIN can send to any netlink socket in the pod's
// namespace. It must not be able to tell us what the pod's interfaces and rules are.
func TestNobodyButTheKernelCanAnswer(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "a")
	forger := rawSocket(t, n)
	forge := func(c *Conn) error {
		own, err := unix.Getsockname(c.fd)
		if err != nil {
			t.Fatal(err)
		}
		end := appendHeader(nil, unix.NLMSG_DONE, unix.NLM_F_MULTI, c.seq, 4)
		return unix.Sendto(forger, append(end, 0, 0, 0, 0), 0, own)
	}
	c := open(t, n)
	if err := forge(c); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("somebody else's message was delivered: %v", err)
	}
	wantLinks(t, c, "lo")

	// A socket that is not connected gets the message, and does not believe it.
	c = &Conn{fd: rawSocket(t, n)}
	if err := unix.Bind(c.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Fatal(err)
	}
	if err := forge(c); err != nil {
		t.Fatal(err)
	}
	wantLinks(t, c, "lo")
}

func rawSocket(t *testing.T, n *netlab.NS) int {
	t.Helper()
	var fd int
	var err error
	n.Do(t, func() { fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) }) // of a test that is over
	return fd
}

// No two sockets of a namespace have the same number.
func TestPort(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "a")
	c, other := open(t, n), open(t, n)
	port, err := c.Port()
	if err != nil || port == 0 {
		t.Fatalf("%d, %v", port, err)
	}
	if same, err := other.Port(); err != nil || same == port {
		t.Errorf("another socket: %d, %v; this one: %d", same, err, port)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if port, err := c.Port(); err == nil {
		t.Errorf("a closed socket: %d", port)
	}
}
