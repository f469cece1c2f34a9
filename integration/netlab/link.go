package netlab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Port is one end of a cable: an interface in a namespace, and its addresses.
type Port struct {
	NS    *NS
	Link  string // eth0 if empty
	Addrs []netip.Prefix
}

func (p Port) link() string {
	if p.Link == "" {
		return "eth0"
	}
	return p.Link
}

// Prefixes parses addresses with their prefix lengths, as 10.0.0.1/24. It panics
// on a malformed one.
func Prefixes(texts ...string) []netip.Prefix {
	prefixes := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		prefixes[i] = netip.MustParsePrefix(text)
	}
	return prefixes
}

// Cable joins two ports by a veth pair, which is up when it returns.
func Cable(a, b Port) error {
	err := b.NS.Handle.File(func(f *os.File) error {
		return a.NS.withRTNL(func(rtnl *netlink.Handle) error {
			return rtnl.LinkAdd(&netlink.Veth{
				LinkAttrs:     netlink.LinkAttrs{Name: a.link()},
				PeerName:      b.link(),
				PeerNamespace: netlink.NsFd(int(f.Fd())),
			})
		})
	})
	if err != nil {
		return fmt.Errorf("cannot join %s in %s and %s in %s: %w", a.link(), a.NS.Name, b.link(), b.NS.Name, err)
	}
	if err := errors.Join(a.configure(), b.configure()); err != nil {
		return err
	}
	return errors.Join(a.awaitUp(), b.awaitUp())
}

// upWait is far more than an interface needs, unless many namespaces come and go at the
// same time: they all wait for one lock of the kernel's.
const upWait = 30 * time.Second

// awaitUp waits until the interface and its addresses can be used. The kernel's own
// notice of the interface may come a second late (linkwatch), and IPv6 does not work
// until then; since Linux 6.8 asking for the interface brings it at once. Somewhat
// after an IPv6 address was added the kernel begins to answer for it.
func (p Port) awaitUp() error {
	err := p.NS.withRTNL(func(rtnl *netlink.Handle) error {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for deadline := time.Now().Add(upWait); time.Now().Before(deadline); <-tick.C {
			link, err := rtnl.LinkByName(p.link())
			if err != nil {
				return err
			}
			addrs, err := rtnl.AddrList(link, netlink.FAMILY_V6)
			if errors.Is(err, netlink.ErrDumpInterrupted) {
				continue
			}
			if err != nil {
				return err
			}
			tentative := slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.Flags&unix.IFA_F_TENTATIVE != 0 })
			if link.Attrs().OperState == netlink.OperUp && !tentative {
				return nil
			}
		}
		return fmt.Errorf("not up after %s", upWait)
	})
	if err != nil {
		return fmt.Errorf("cannot use %s in %s: %w", p.link(), p.NS.Name, err)
	}
	return nil
}

func (p Port) configure() error {
	err := p.NS.withRTNL(func(rtnl *netlink.Handle) error {
		link, err := rtnl.LinkByName(p.link())
		if err != nil {
			return err
		}
		for _, prefix := range p.Addrs {
			if err := rtnl.AddrAdd(link, &netlink.Addr{IPNet: ipNet(prefix)}); err != nil {
				return fmt.Errorf("address %s: %w", prefix, err)
			}
		}
		return setUp(rtnl, p.link())
	})
	if err != nil {
		return fmt.Errorf("cannot configure %s in %s: %w", p.link(), p.NS.Name, err)
	}
	return nil
}

// CreateSwitch makes a namespace with a bridge in it, and plugs ports in. The
// caller closes it.
func CreateSwitch(name string, ports ...Port) (*NS, error) {
	sw, err := Create(name)
	if err != nil {
		return nil, err
	}
	err = sw.withRTNL(func(rtnl *netlink.Handle) error {
		if err := rtnl.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge"}}); err != nil {
			return fmt.Errorf("cannot add a bridge in %s: %w", name, err)
		}
		return setUp(rtnl, "bridge")
	})
	for i := 0; err == nil && i < len(ports); i++ {
		err = sw.Plug(fmt.Sprintf("port%d", i), ports[i])
	}
	if err != nil {
		return nil, errors.Join(err, sw.Close())
	}
	return sw, nil
}

// Plug cables a port to a switch, where the cable's other end is called name.
func (n *NS) Plug(name string, p Port) error {
	if err := Cable(Port{NS: n, Link: name}, p); err != nil {
		return err
	}
	return n.withRTNL(func(rtnl *netlink.Handle) error {
		bridge, err := rtnl.LinkByName("bridge")
		if err != nil {
			return fmt.Errorf("%s is no switch: %w", n.Name, err)
		}
		port, err := rtnl.LinkByName(name)
		if err != nil {
			return err
		}
		return rtnl.LinkSetMaster(port, bridge)
	})
}

// AddRoute adds a route by way of a gateway.
func (n *NS) AddRoute(dst netip.Prefix, via netip.Addr) error {
	err := n.withRTNL(func(rtnl *netlink.Handle) error {
		return rtnl.RouteAdd(&netlink.Route{Dst: ipNet(dst), Gw: via.AsSlice()})
	})
	if err != nil {
		return fmt.Errorf("cannot add route to %s via %s in %s: %w", dst, via, n.Name, err)
	}
	return nil
}

// Connect is Cable for a test.
func Connect(t testing.TB, a, b Port) {
	t.Helper()
	if err := Cable(a, b); err != nil {
		t.Fatal(err)
	}
}

// NewSwitch is CreateSwitch for a test, at whose end it is closed.
func NewSwitch(t testing.TB, name string, ports ...Port) *NS {
	t.Helper()
	sw, err := CreateSwitch(name, ports...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sw.Close(); err != nil {
			t.Error(err)
		}
	})
	return sw
}

// withRTNL lends fn a route socket in the namespace.
func (n *NS) withRTNL(fn func(*netlink.Handle) error) error {
	var rtnl *netlink.Handle
	if err := n.Handle.Do(func() (err error) {
		rtnl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	}); err != nil {
		return fmt.Errorf("cannot open rtnetlink in %s: %w", n.Name, err)
	}
	defer rtnl.Close()
	return fn(rtnl)
}

func setUp(rtnl *netlink.Handle, name string) error {
	link, err := rtnl.LinkByName(name)
	if err == nil {
		err = rtnl.LinkSetUp(link)
	}
	if err != nil {
		return fmt.Errorf("cannot bring up %s: %w", name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
