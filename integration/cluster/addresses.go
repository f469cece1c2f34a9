package cluster

import (
	"net/netip"
	"os"
	"strings"
)

// A family is the cluster's addresses of one version of IP.
type family struct {
	nodes    netip.Prefix // the network that nodes and the control plane are in
	first    byte         // the last byte of node 1's address
	pods     netip.Prefix // of all nodes
	podBits  int          // of one node
	nodeByte int          // the byte that tells one node's pods from another's
	services netip.Prefix
	anywhere netip.Prefix
}

var (
	ipv4 = family{
		nodes: netip.MustParsePrefix("172.30.0.0/24"), first: 11,
		pods: netip.MustParsePrefix("10.244.0.0/16"), podBits: 24, nodeByte: 2,
		services: netip.MustParsePrefix("10.96.0.0/16"),
		anywhere: netip.MustParsePrefix("0.0.0.0/0"),
	}
	ipv6 = family{
		nodes: netip.MustParsePrefix("fd00:172:30::/64"), first: 0x11,
		pods: netip.MustParsePrefix("fd00:10:244::/48"), podBits: 64, nodeByte: 7,
		services: netip.MustParsePrefix("fd00:10:96::/112"),
		anywhere: netip.MustParsePrefix("::/0"),
	}
)

// haveIPv6 says whether the kernel has it.
func haveIPv6() bool {
	_, err := os.Stat("/proc/net/if_inet6")
	return err == nil
}

// families are those that the cluster uses, the first one for what has one address.
func (c *Cluster) families() []family {
	if c.state.IPv6 {
		return []family{ipv4, ipv6}
	}
	return []family{ipv4}
}

// control is the address of the control plane, and of the switch.
func (f family) control() netip.Addr { return f.nodes.Addr().Next() }

func (f family) node(number int) netip.Addr {
	addr := f.nodes.Addr().AsSlice()
	addr[len(addr)-1] = f.first + byte(number-1)
	return mustAddr(addr)
}

func (f family) podsOf(number int) netip.Prefix {
	addr := f.pods.Addr().AsSlice()
	addr[f.nodeByte] = byte(number)
	return netip.PrefixFrom(mustAddr(addr), f.podBits)
}

// service is the address of the Service of that number.
func (f family) service(number byte) netip.Addr {
	addr := f.services.Addr().AsSlice()
	addr[len(addr)-1] = number
	return mustAddr(addr)
}

func mustAddr(bytes []byte) netip.Addr {
	addr, ok := netip.AddrFromSlice(bytes)
	if !ok {
		panic("no IP address has this length")
	}
	return addr
}

// list writes what a function gives for each family, with commas between.
func list[T interface{ String() string }](families []family, get func(family) T) string {
	var texts []string
	for _, f := range families {
		texts = append(texts, get(f).String())
	}
	return strings.Join(texts, ",")
}
