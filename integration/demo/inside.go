package demo

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// What a capture puts into a pod.
const (
	outboundPort = 15001
	inboundPort  = 15006
	hbonePort    = 15008
	dnsPort      = 15053
	tableName    = "fairlead"
	routeTable   = 100
	ruleMark     = 0x111
	rulePriority = 32764
)

// traces lists what a pod's namespace has and an untouched one has not: tables of
// netfilter, ip rules, routes in our table, listeners on the proxy's ports.
func traces(n *netlab.NS) ([]string, error) {
	var found []string
	err := n.Handle.Do(func() error {
		tables, err := (&nftables.Conn{}).ListTables()
		if err != nil {
			return fmt.Errorf("cannot list nft tables: %w", err)
		}
		for _, t := range tables {
			found = append(found, "nft table "+t.Name)
		}
		for _, family := range families() {
			routing, err := routingTraces(family)
			if err != nil {
				return err
			}
			found = append(found, routing...)
		}
		ports, err := listening()
		for _, port := range ports {
			found = append(found, fmt.Sprintf("listener on %d", port))
		}
		return err
	})
	return found, err
}

func routingTraces(family int) ([]string, error) {
	name := map[int]string{unix.AF_INET: "IPv4", unix.AF_INET6: "IPv6"}[family]
	rules, err := netlink.RuleList(family)
	if err != nil {
		return nil, fmt.Errorf("cannot list %s rules: %w", name, err)
	}
	var found []string
	for _, rule := range rules {
		if rule.Table != unix.RT_TABLE_LOCAL && rule.Table != unix.RT_TABLE_MAIN && rule.Table != unix.RT_TABLE_DEFAULT {
			found = append(found, fmt.Sprintf("%s rule %d: fwmark %#x, table %d", name, rule.Priority, rule.Mark, rule.Table))
		}
	}
	routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: routeTable}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("cannot list %s routes: %w", name, err)
	}
	for _, route := range routes {
		found = append(found, fmt.Sprintf("%s route in table %d: %s", name, routeTable, route.Dst))
	}
	return found, nil
}

// listening lists the proxy's ports on which somebody listens in the calling
// thread's namespace.
func listening() ([]int, error) {
	const listen, unconnected = "0A", "07" // of TCP, of UDP
	var ports []int
	for name, state := range map[string]string{"tcp": listen, "tcp6": listen, "udp": unconnected, "udp6": unconnected} {
		f, err := os.Open("/proc/thread-self/net/" + name)
		if errors.Is(err, os.ErrNotExist) {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() { // as "0: 00000000:3A99 00000000:0000 0A …"
			fields := strings.Fields(lines.Text())
			if len(fields) < 4 || fields[3] != state {
				continue
			}
			_, hex, _ := strings.Cut(fields[1], ":")
			port, err := strconv.ParseUint(hex, 16, 16)
			if err == nil && slices.Contains([]int{outboundPort, inboundPort, hbonePort, dnsPort}, int(port)) {
				ports = append(ports, int(port))
			}
		}
		err = lines.Err()
		_ = f.Close() // was only read
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports), nil
}

// ourRules are the rules of our table in a namespace.
func ourRules(n *netlab.NS) ([]*nftables.Rule, error) {
	var ours []*nftables.Rule
	err := n.Handle.Do(func() error {
		conn := &nftables.Conn{}
		chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
		if err != nil {
			return err
		}
		for _, chain := range chains {
			if chain.Table.Name != tableName {
				continue
			}
			rules, err := conn.GetRules(chain.Table, chain)
			if err != nil {
				return err
			}
			ours = append(ours, rules...)
		}
		return nil
	})
	return ours, err
}

// imprint is a capture in short, to see whether it is whole.
func imprint(n *netlab.NS) (string, error) {
	rules, err := ourRules(n)
	if err != nil {
		return "", err
	}
	found, err := traces(n)
	return fmt.Sprintf("%d nft rules, %q", len(rules), found), err
}
