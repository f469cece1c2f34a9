package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// with lends fn a route socket in the namespace, and its lo.
func with(t *testing.T, n *netlab.NS, fn func(rtnl *netlink.Handle, lo netlink.Link) error) {
	t.Helper()
	var rtnl *netlink.Handle
	err := n.Handle.Do(func() (err error) {
		rtnl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer rtnl.Close()
	lo, err := rtnl.LinkByName("lo")
	if err == nil {
		err = fn(rtnl, lo)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func ipNet(text string) *net.IPNet {
	p := netip.MustParsePrefix(text)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func TestHolds(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	pod, peer := netlab.NewNS(t, "pod"), netlab.NewNS(t, "peer")
	netlab.Connect(t,
		netlab.Port{NS: pod, Addrs: netlab.Prefixes("10.0.0.1/24", "fd00::1/64")},
		netlab.Port{NS: peer, Addrs: netlab.Prefixes("10.0.0.2/24")})
	with(t, pod, func(rtnl *netlink.Handle, lo netlink.Link) error {
		eth0, err := rtnl.LinkByName("eth0")
		if err != nil {
			return err
		}
		// As Calico and AWS do it: /32, with a peer.
		return errors.Join(
			rtnl.AddrAdd(eth0, &netlink.Addr{IPNet: ipNet("10.9.0.1/32"), Peer: ipNet("10.9.0.254/32")}),
			rtnl.AddrAdd(eth0, &netlink.Addr{IPNet: ipNet("fd09::1/128"), Peer: ipNet("fd09::fe/128")}),
			rtnl.AddrAdd(lo, &netlink.Addr{IPNet: ipNet("10.8.0.1/32")}),
		)
	})
	for text, want := range map[string]bool{
		"10.0.0.1": true, "fd00::1": true, "10.9.0.1": true, "fd09::1": true, "10.8.0.1": true,
		"10.0.0.2": false, "10.9.0.254": false, "fd09::fe": false, "10.0.0.255": false,
		"127.0.0.1": false, "::1": false, "fe80::1": false,
	} {
		err := holds(t.Context(), pod.Handle, []netip.Addr{netip.MustParseAddr("10.77.0.1"), netip.MustParseAddr(text)})
		if (err == nil) != want || (err != nil && !errors.Is(err, errNone)) {
			t.Errorf("%s: %v, want %v", text, err, want)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := holds(ended, pod.Handle, nil); !errors.Is(err, context.Canceled) || errors.Is(err, errNone) {
		t.Errorf("given up: %v", err)
	}
}

// A pod with thousands of addresses is found by the last of them. One with more than
// are looked through is neither found nor ruled out.
func TestThousandsOfAddresses(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	pod := netlab.NewNS(t, "pod")
	const many = maxAddresses - 2 // and 127.0.0.1 and ::1
	var last netip.Addr
	with(t, pod, func(rtnl *netlink.Handle, lo netlink.Link) error {
		for i := range many {
			last = netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
			if err := rtnl.AddrAdd(lo, &netlink.Addr{IPNet: ipNet(last.String() + "/32")}); err != nil {
				return fmt.Errorf("%s: %w", last, err)
			}
		}
		return nil
	})
	if err := holds(t.Context(), pod.Handle, []netip.Addr{last}); err != nil {
		t.Error(err)
	}
	err := holds(t.Context(), pod.Handle, []netip.Addr{netip.MustParseAddr("10.2.0.1")})
	if !errors.Is(err, errNone) || !strings.Contains(err.Error(), fmt.Sprintf("and %d more", many-4)) {
		t.Error(err)
	}
	with(t, pod, func(rtnl *netlink.Handle, lo netlink.Link) error {
		return rtnl.AddrAdd(lo, &netlink.Addr{IPNet: ipNet("fd00::1/128")}) // a dump has IPv6 last
	})
	if err := holds(t.Context(), pod.Handle, []netip.Addr{netip.MustParseAddr("fd00::2")}); err == nil || errors.Is(err, errNone) || !strings.Contains(err.Error(), "more than 4096") {
		t.Error(err)
	}
}

func TestParseAddress(t *testing.T) {
	head := make([]byte, unix.SizeofIfAddrmsg)
	attr := func(kind byte, value ...byte) []byte {
		b := append([]byte{byte(4 + len(value)), 0, kind, 0}, value...)
		return append(b, make([]byte, -len(b)&3)...)
	}
	join := func(parts ...[]byte) (all []byte) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	for name, c := range map[string]struct {
		reply []byte
		want  string // "": none
		fails bool
	}{
		"address":            {join(head, attr(unix.IFA_ADDRESS, 10, 0, 0, 1)), "10.0.0.1", false},
		"peer and local":     {join(head, attr(unix.IFA_ADDRESS, 10, 0, 0, 2), attr(unix.IFA_LOCAL, 10, 0, 0, 1)), "10.0.0.1", false},
		"loopback":           {join(head, attr(unix.IFA_LOCAL, 127, 0, 0, 2)), "", false},
		"none":               {head, "", false},
		"of another length":  {join(head, attr(unix.IFA_LOCAL, 10, 0, 0)), "", false},
		"short":              {head[:3], "", true},
		"empty":              {nil, "", true},
		"a length that lies": {join(head, []byte{200, 0, unix.IFA_LOCAL, 0}), "", true},
	} {
		addr, wanted, err := parseAddress(c.reply)
		if (err != nil) != c.fails || wanted != (c.want != "") || (wanted && addr.String() != c.want) {
			t.Errorf("%s: %s, %v, %v; want %q", name, addr, wanted, err, c.want)
		}
	}
}

func TestList(t *testing.T) {
	var addrs []netip.Addr
	for i, want := range []string{"", "10.0.0.1", "10.0.0.1 10.0.0.2", "10.0.0.1 10.0.0.2 10.0.0.3", "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4", "10.0.0.1 10.0.0.2 10.0.0.3 10.0.0.4 and 1 more"} {
		if got := list(addrs); got != want {
			t.Errorf("%d: %q, want %q", i, got, want)
		}
		addrs = append(addrs, netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}))
	}
}

// What is read through a process's open directory is that process's. Between two
// reads it may end, and its number may be another's.
func TestProcessThatEndsWhileItIsRead(t *testing.T) {
	proc := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(proc, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"1/cgroup", "9/cgroup", "10/cgroup", "200/cgroup", "net/cgroup", "-3/cgroup", "0/cgroup"} {
		write(name, name)
	}
	var read []string
	err := processes(t.Context(), proc, func(p process) error {
		if p.pid == 9 { // it ends, another gets its number; and 10 ends before its turn
			if err := errors.Join(os.RemoveAll(filepath.Join(proc, "9")), os.RemoveAll(filepath.Join(proc, "10"))); err != nil {
				t.Error(err)
			}
			write("9/cgroup", "another's")
		}
		text, err := p.cgroup()
		if err == nil {
			read = append(read, text)
		}
		return err
	})
	if got := strings.Join(read, " "); err != nil || got != "1/cgroup 200/cgroup" {
		t.Errorf("read %q, %v", got, err)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	none := func(process) error { return nil }
	if err := processes(ended, proc, none); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	if err := processes(t.Context(), proc, func(process) error { return unix.EMFILE }); !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), "process 1") {
		t.Errorf("out of descriptors: %v", err)
	}
	if err := processes(t.Context(), filepath.Join(proc, "none"), none); err == nil {
		t.Error("no /proc, and no error")
	}
}
