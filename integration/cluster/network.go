package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// bridge is the switch that the control plane and the nodes are plugged into.
const bridge = "nodes"

// inNetns runs fn with a connection to the kernel's network of a namespace.
func inNetns(h *netns.Handle, fn func(*netlink.Handle) error) error {
	var rtnl *netlink.Handle
	err := h.Do(func() error {
		var err error
		rtnl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return err
	}
	defer rtnl.Close()
	return fn(rtnl)
}

func (c *Cluster) makeBridge() error {
	err := inNetns(c.netns, func(rtnl *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = bridge
		if err := rtnl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return err
		}
		var addrs []netip.Prefix
		for _, f := range c.families() {
			addrs = append(addrs, netip.PrefixFrom(f.control(), f.nodes.Bits()))
		}
		return errors.Join(setUp(rtnl, "lo"), setUp(rtnl, bridge, addrs...))
	})
	if err != nil {
		return fmt.Errorf("cannot make the cluster's network: %w", err)
	}
	return nil
}

// Netns opens the node's network namespace, which lasts until the node is switched off.
// The caller closes it.
func (n *Node) Netns(ctx context.Context) (*netns.Handle, error) {
	pid, err := n.init.Pid(ctx)
	if err != nil {
		return nil, err
	}
	return netns.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
}

// PodNetns opens the network namespace of the pod of this node that has an address, as
// Netns does the node's.
func (n *Node) PodNetns(ctx context.Context, addr netip.Addr) (*netns.Handle, error) {
	pid, err := n.init.Pid(ctx)
	if err != nil {
		return nil, err
	}
	paths, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/root/run/netns/*")
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		pod, err := netns.Open(path)
		if err != nil {
			continue // it has just gone, or is not there yet
		}
		var found bool
		err = inNetns(pod, func(rtnl *netlink.Handle) error {
			addrs, err := rtnl.AddrList(nil, netlink.FAMILY_ALL)
			found = slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IP.Equal(addr.AsSlice()) })
			return err
		})
		if err == nil && found {
			return pod, nil
		}
		if err := errors.Join(err, pod.Close()); err != nil {
			return nil, fmt.Errorf("cannot look for %s in %s: %w", addr, path, err)
		}
	}
	return nil, fmt.Errorf("no pod of %s has the address %s", n.Name, addr)
}

// plug connects a node that has just started to the others.
func (n *Node) plug(ctx context.Context) error {
	inside, err := n.Netns(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = inside.Close() }() // was only read
	err = inNetns(n.cluster.netns, func(rtnl *netlink.Handle) error {
		if err := n.addCard(rtnl, inside); err != nil {
			return err
		}
		if err := setUp(rtnl, n.Name); err != nil {
			return err
		}
		for _, f := range n.cluster.families() {
			nets := []netip.Prefix{f.podsOf(n.number)}
			if n.number == 1 { // some node has to know Services
				nets = append(nets, f.services)
			}
			if err := addRoutes(rtnl, f.node(n.number), nets...); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = inNetns(inside, n.configure)
	}
	if err != nil {
		return fmt.Errorf("cannot connect %s to the cluster's network: %w", n.Name, err)
	}
	return nil
}

// addCard adds a pair of cards: one in the bridge, with the node's name, and the
// node's eth0.
func (n *Node) addCard(rtnl *netlink.Handle, inside *netns.Handle) error {
	master, err := rtnl.LinkByName(bridge)
	if err != nil {
		return err
	}
	return inside.File(func(file *os.File) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex = n.Name, master.Attrs().Index
		return rtnl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(file.Fd())})
	})
}

func (n *Node) configure(rtnl *netlink.Handle) error {
	var addrs []netip.Prefix
	for _, f := range n.cluster.families() {
		addrs = append(addrs, netip.PrefixFrom(f.node(n.number), f.nodes.Bits()))
	}
	if err := errors.Join(setUp(rtnl, "lo"), setUp(rtnl, "eth0", addrs...)); err != nil {
		return err
	}
	for _, f := range n.cluster.families() {
		for i := range n.cluster.state.Nodes {
			if other := i + 1; other != n.number {
				if err := addRoutes(rtnl, f.node(other), f.podsOf(other)); err != nil {
					return err
				}
			}
		}
		if err := addRoutes(rtnl, f.control(), f.anywhere); err != nil {
			return err
		}
	}
	return nil
}

// unplug removes what plug made outside the node. The kernel would do it, some time
// after the node has ended.
func (n *Node) unplug() error {
	err := inNetns(n.cluster.netns, func(rtnl *netlink.Handle) error {
		link, err := rtnl.LinkByName(n.Name)
		if err != nil {
			return err
		}
		return rtnl.LinkDel(link)
	})
	if errors.As(err, &netlink.LinkNotFoundError{}) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}

func setUp(rtnl *netlink.Handle, name string, addrs ...netip.Prefix) error {
	link, err := rtnl.LinkByName(name)
	if err != nil {
		return err
	}
	for _, addr := range addrs {
		// Nobody else can have it: no need to ask around, and wait, before it is used.
		if err := rtnl.AddrAdd(link, &netlink.Addr{IPNet: ipNet(addr), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("address %s: %w", addr, err)
		}
	}
	return rtnl.LinkSetUp(link)
}

func addRoutes(rtnl *netlink.Handle, via netip.Addr, nets ...netip.Prefix) error {
	for _, prefix := range nets {
		if err := rtnl.RouteReplace(&netlink.Route{Dst: ipNet(prefix), Gw: via.AsSlice()}); err != nil {
			return fmt.Errorf("route to %s: %w", prefix, err)
		}
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
