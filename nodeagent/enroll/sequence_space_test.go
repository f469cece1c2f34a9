package enroll_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/nft"
	"github.com/fairlead-mesh/fairlead/iptables/route"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/sockets"
)

// A space is the network namespace of a sandbox, as its runtime makes it, and an app
// in it.
type space struct {
	uid, container string
	pod, outside   *netlab.NS
	app            *netlab.Echo
	there, here    string // where a server outside and the app are reached
	addr           netip.Addr
}

// newSpace makes a namespace whose eth0 leads outside. number is its own.
func newSpace(outside *netlab.NS, number int, uid, container string) (space, error) {
	pod, err := netlab.Create(container)
	if err != nil {
		return space{}, err
	}
	s := space{uid: uid, container: container, pod: pod, outside: outside}
	net4 := func(host byte) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(number >> 8), byte(number), host}), 24)
	}
	err = netlab.Cable(
		netlab.Port{NS: outside, Link: fmt.Sprintf("pod%d", number), Addrs: []netip.Prefix{net4(1)}},
		netlab.Port{NS: pod, Addrs: []netip.Prefix{net4(2)}})
	if err == nil {
		s.app, err = netlab.StartEcho(pod, container, "tcp", fmt.Sprintf("0.0.0.0:%d", echoPort))
	}
	if err != nil {
		return space{}, errors.Join(err, pod.Close())
	}
	s.there = netip.AddrPortFrom(net4(1).Addr(), echoPort).String()
	s.addr = net4(2).Addr()
	s.here = netip.AddrPortFrom(net4(2).Addr(), echoPort).String()
	return s, nil
}

// echoPort is where the app and a server outside echo.
const echoPort = 7

// attachment is what the runtime says of the sandbox.
func (s space) attachment(name string) agentapi.Attachment {
	return agentapi.Attachment{
		Namespace: "shop", Name: name, UID: s.uid, ContainerID: s.container, Netns: s.pod.Path, Interface: "eth0",
		IPs: []netip.Addr{s.addr},
	}
}

// A held connection is one that the app and somebody outside keep open.
type held struct {
	conn    net.Conn
	proxied bool
	reader  *bufio.Reader
}

// connect connects the app to the server outside, or a client there to the app, and
// sees that there is an answer.
func (s space) connect(inbound, proxied bool) (*held, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	from, to := s.pod, s.there
	if inbound {
		from, to = s.outside, s.here
	}
	conn, err := from.Dial(ctx, "tcp", to)
	if err != nil {
		return nil, err
	}
	h := &held{conn, proxied, bufio.NewReader(conn)}
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if _, err := h.reader.ReadString('\n'); err != nil { // who answers
		return nil, errors.Join(fmt.Errorf("the server does not answer: %w", err), conn.Close())
	}
	return h, nil
}

// ping says why the connection is not alive, or nil.
func (h *held) ping(within time.Duration) error {
	if err := h.conn.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err := h.conn.Write([]byte("ping\n")); err != nil {
		return err
	}
	_, err := h.reader.ReadString('\n')
	return err
}

// rtnl runs work with a route socket in a namespace.
func rtnl(h *netns.Handle, work func(*netlink.Handle) error) error {
	var nl *netlink.Handle
	if err := h.Do(func() (err error) {
		nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	}); err != nil {
		return err
	}
	defer nl.Close()
	return work(nl)
}

// What somebody in the pod may do.

func (s space) flushRules() error {
	return nfTables(s.pod.Handle, func(conn *nftables.Conn) error {
		conn.FlushRuleset()
		return conn.Flush()
	})
}

var families = []int{unix.AF_INET, unix.AF_INET6}

func (s space) deleteRules() error {
	return rtnl(s.pod.Handle, func(nl *netlink.Handle) error {
		return ours(nl, nl.RuleDel, nil)
	})
}

func (s space) deleteRoutes() error {
	return rtnl(s.pod.Handle, func(nl *netlink.Handle) error {
		return ours(nl, nil, nl.RouteDel)
	})
}

// ours calls rule for each ip rule that is not the kernel's own, and each for each
// route of table 100. What is gone meanwhile is fine.
func ours(nl *netlink.Handle, rule func(*netlink.Rule) error, each func(*netlink.Route) error) error {
	for _, family := range families {
		rules, err := nl.RuleList(family)
		if err != nil {
			return err
		}
		for _, r := range rules {
			if rule != nil && r.Table == ruleset.RouteTable {
				r.Family = family
				if err := rule(&r); err != nil && !errors.Is(err, unix.ENOENT) {
					return err
				}
			}
		}
		routes, err := nl.RouteListFiltered(family, &netlink.Route{Table: ruleset.RouteTable}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return err
		}
		for _, r := range routes {
			if each != nil {
				if err := each(&r); err != nil && !errors.Is(err, unix.ESRCH) {
					return err
				}
			}
		}
	}
	return nil
}

// setLink brings an interface up or down.
func (s space) setLink(name string, up bool) error {
	return rtnl(s.pod.Handle, func(nl *netlink.Handle) error {
		link, err := nl.LinkByName(name)
		if err != nil {
			return err
		}
		if up {
			return nl.LinkSetUp(link)
		}
		return nl.LinkSetDown(link)
	})
}

// look describes what of ours is in the namespace. Its rules are compared with a form.
func (s space) look(form string) (string, error) {
	rules, err := s.rules(form)
	if err != nil {
		return "", err
	}
	routing, lo, err := s.routing()
	if err != nil {
		return "", err
	}
	listeners, err := s.listeners()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s: rules %s, routing %s, lo %s, listeners %s", s.container, rules, routing, lo, listeners), nil
}

func (s space) rules(form string) (string, error) {
	tables, err := tableNames(s.pod.Handle)
	if err != nil || len(tables) == 0 {
		return "none", err
	}
	if form == "none" || len(tables) > 1 {
		return strings.Join(tables, " and "), nil
	}
	var want ruleset.Form
	if err := want.UnmarshalText([]byte(form)); err != nil {
		return "", err
	}
	rules, err := ruleset.Build(ruleset.Config{CaptureDNS: true, Form: want, IPv4: true, IPv6: true})
	if err != nil {
		return "", err
	}
	table, err := nft.Open(s.pod.Handle)
	if err != nil {
		return "", err
	}
	diff, err := table.Check(context.Background(), rules)
	if len(diff) > 0 {
		form = "not " + form + ": " + diff.String()
	}
	return form, errors.Join(err, table.Close())
}

// nfTables lends a connection to nf_tables in a namespace.
func nfTables(h *netns.Handle, work func(*nftables.Conn) error) error {
	var conn *nftables.Conn
	if err := h.Do(func() (err error) {
		conn, err = nftables.New(nftables.AsLasting())
		return err
	}); err != nil {
		return err
	}
	return errors.Join(work(conn), conn.CloseLasting())
}

func tableNames(h *netns.Handle) (names []string, err error) {
	err = nfTables(h, func(conn *nftables.Conn) error {
		tables, err := conn.ListTables()
		for _, t := range tables {
			names = append(names, fmt.Sprintf("table %d %s", t.Family, t.Name))
		}
		return err
	})
	return names, err
}

// routing is "none", "ours", or what is wrong with ours.
func (s space) routing() (found, lo string, err error) {
	err = rtnl(s.pod.Handle, func(nl *netlink.Handle) error {
		link, err := nl.LinkByName("lo")
		if err != nil {
			return err
		}
		lo = map[bool]string{true: "up", false: "down"}[link.Attrs().Flags&net.FlagUp != 0]
		found = "none"
		return ours(nl,
			func(*netlink.Rule) error { found = ""; return nil },
			func(*netlink.Route) error { found = ""; return nil })
	})
	if err != nil || found == "none" {
		return found, lo, err
	}
	router, err := route.Open(s.pod.Handle)
	if err != nil {
		return "", lo, err
	}
	report, err := router.Check(context.Background(), route.Config{IPv4: true, IPv6: true})
	found = "ours"
	if wrong := slices.Concat(report.Drift, report.Foreign); len(wrong) > 0 {
		found = strings.Join(wrong, ", ")
	}
	return found, lo, errors.Join(err, router.Close())
}

func (s space) listeners() (string, error) {
	diag, err := sockets.Open(s.pod.Handle)
	if err != nil {
		return "", err
	}
	l, err := diag.Listeners(context.Background())
	if err = errors.Join(err, diag.Close()); err != nil {
		return "", err
	}
	l.Identity = sockets.Listeners{}.Identity // which they are is no matter
	switch l {
	case sockets.Listeners{}:
		return "none", nil
	case sockets.Listeners{Outbound: true, Inbound: true, HBONE: true, DNS: true, DNS6: true}:
		return "all", nil
	}
	return fmt.Sprintf("%+v", l), nil
}

// destroy ends the sandbox as its runtime does.
func (b *box) destroy() error {
	var err error
	if b.conn != nil {
		err = b.conn.conn.Close()
		b.conn = nil
	}
	return errors.Join(err, b.app.Close(), b.pod.Close())
}
