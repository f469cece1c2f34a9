package ruleset

import "net/netip"

// Ports the node proxy listens on inside a captured pod.
const (
	OutboundPort uint16 = 15001 // captured outbound TCP
	InboundPort  uint16 = 15006 // captured inbound TCP that did not come as HBONE
	HBONEPort    uint16 = 15008 // never redirected: the proxy needs the real destination address
	DNSPort      uint16 = 15053 // captured DNS, UDP and TCP, on loopback only
)

// Marks. Both are compared under MarkMask, so that the other bits stay free for the pod.
const (
	ProxyMark uint32 = 0x539 // on every packet of every socket that the proxy opens in the pod
	ConnMark  uint32 = 0x111 // on a connection that the proxy opened to the app, and on the app's replies
	MarkMask  uint32 = 0xfff
)

// Policy routing of the packets that carry ConnMark, for both families. The proxy dials the app from its
// client's address, so the app's replies have to be led back to the proxy instead of out of the pod.
const (
	RouteTable    = 100
	RoutePriority = 32764
)

// DNSZone is the conntrack zone of the proxy's own DNS flows. Without it the proxy's query and the app's
// query that caused it could have the same addresses and ports, and be one entry.
const DNSZone uint16 = 1

// Table is the name of our nftables table, of family inet, in pods and on the host.
const Table = "fairlead"

// Source addresses that the kubelet's health probes are given on their way into a pod.
var (
	DefaultProbeIPv4 = netip.MustParseAddr("169.254.7.127")
	DefaultProbeIPv6 = netip.MustParseAddr("fd16:9254:7127:1337:ffff:ffff:ffff:ffff")
)

// dnsServicePort is where apps expect a name server.
const dnsServicePort uint16 = 53
