package demo

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// A Sabotage breaks one thing for the time of one check.
type Sabotage struct {
	Step   int
	Name   string
	Check  string // the check that has to notice
	How    string
	commit commit
}

// A commit breaks something and returns how it is mended.
type commit func(ctx context.Context, s *story) (mend mend, err error)

type mend func(ctx context.Context) error

// Sabotages are all there are, in the order of the story.
var Sabotages = []*Sabotage{
	{1, "captured-anyway", "it reaches the web server directly", "the pod is given the label all the same", captureAnyway},
	{1, "stray-rule", "nothing of ours is in its namespace", "an ip rule like ours is added to the pod", strayRule},
	{2, "rules-flushed", "its first connection is captured", "the agent is stopped and our table deleted from the pod", flush("client")},
	{2, "address-not-kept", "the server sees the client's address", "the server's pod rewrites its clients' address", rewriteSource},
	{2, "proxy-killed", "the proxy listens inside the pod", "the proxy is killed", killProxy},
	{2, "dns-not-redirected", "DNS to any address is answered by the proxy", "the agent is stopped and the DNS redirects deleted from the pod", dropDNSRules},
	{3, "label-misspelt", "labelled, it is captured", "the label's key has a letter too few", misspell},
	{3, "rules-flushed-later", "new connections out of it are captured", "the agent is stopped and our table deleted from the pod", flush("plain")},
	{3, "no-return-route", "new connections into it are captured", "the agent is stopped and our ip rules deleted from the pod", dropIPRules},
	{3, "connection-reset", "the connection from before lives", "the web server resets its connections", resetConnections},
	{4, "plugin-not-in-list", "late does not start", "fairlead-cni is missing from the runtime's list", dropPlugin},
	{4, "open-without-proxy", "captured pods are closed meanwhile, not open", "the agent is stopped and our table deleted from a captured pod", flush("client")},
	{4, "ack-withheld", "with the proxy back, late starts captured", "the proxy does not answer the agent", withholdAcks},
	{5, "label-put-back", "new connections are direct at once", "the pod gets its label back", putLabelBack},
	{5, "drain-cut-short", "the proxied connection is drained, not cut", "the proxy is killed", cutDrain},
	{5, "rule-left-behind", "nothing of ours is left in its namespace", "an ip rule like ours is added to the pod", strayRule},
	{6, "agent-stopped", "the rules are put back", "the agent is stopped", stopAgent},
	{6, "rules-flushed-again", "connections after that are captured", "the agent is stopped and our table deleted from the pod", flush("client")},
	{7, "past-conntrack", "while it is away pods stay captured", "a rule takes a pod's packets past conntrack", passConntrack},
	{7, "config-misspelt", "started again, it adopts all of them", "the agent's config has a field with a letter too many", misspellConfig},
	{7, "traffic-reset", "no connection was refused or reset", "the web server resets its connections", resetTraffic},
	{7, "server-resets", "the one that was open all the time lives", "the server in the pod resets its connections", resetInPod},
	{8, "killed-instead", "replaced: no connection is refused or reset", "each proxy that has been replaced is killed (-9)", killReplaced},
	{9, "pod-not-started", "every pod is as it should be", "a labelled pod exists that the runtime has not started", addGhost},
}

// FindSabotage returns the sabotage of a name, nil for the empty name.
func FindSabotage(name string) (*Sabotage, error) {
	if name == "" {
		return nil, nil
	}
	for _, s := range Sabotages {
		if s.Name == name {
			return s, nil
		}
	}
	return nil, fmt.Errorf("there is no sabotage %q; -h lists them", name)
}

func captureAnyway(ctx context.Context, s *story) (mend, error) {
	plain := s.pods["plain"]
	if err := s.write(plain, true); err != nil {
		return nil, err
	}
	if _, err := s.becomes(ctx, plain, "Captured"); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := s.write(plain, false); err != nil {
			return err
		}
		_, err := s.becomes(ctx, plain, "NotCaptured", "NotLabelled")
		return err
	}, nil
}

func putLabelBack(ctx context.Context, s *story) (mend, error) {
	plain := s.pods["plain"]
	if err := s.write(plain, true); err != nil {
		return nil, err
	}
	if _, err := s.becomes(ctx, plain, "Captured"); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		if err := s.write(plain, false); err != nil {
			return err
		}
		_, err := s.becomes(ctx, plain, "NotCaptured", "Draining")
		return err
	}, nil
}

// returnRule is the ip rule that brings an app's answers back to the proxy.
func returnRule(family int) *netlink.Rule {
	rule, mask := netlink.NewRule(), uint32(0xfff)
	rule.Family, rule.Priority, rule.Mark, rule.Mask, rule.Table = family, rulePriority, ruleMark, &mask, routeTable
	return rule
}

// strayRule adds what a capture adds, and a release has to take away.
func strayRule(_ context.Context, s *story) (mend, error) {
	plain := s.pods["plain"].net
	rule := returnRule(unix.AF_INET)
	return func(context.Context) error {
		return plain.Handle.Do(func() error { return netlink.RuleDel(rule) })
	}, plain.Handle.Do(func() error { return netlink.RuleAdd(rule) })
}

// withoutAgent changes something in a pod that the agent would put right at once. To
// mend it the agent goes on and does just that.
func withoutAgent(ctx context.Context, s *story, n *netlab.NS, change func() error) (mend, error) {
	before, err := imprint(n)
	if err != nil {
		return nil, err
	}
	if err := s.agent.Pause(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return errors.Join(s.agent.Resume(), await(ctx, func(context.Context) error {
			now, err := imprint(n)
			if err == nil && now != before {
				err = fmt.Errorf("the agent has not put the pod right: %s, before %s", now, before)
			}
			return err
		}))
	}, n.Handle.Do(change)
}

func flush(name string) commit {
	return func(ctx context.Context, s *story) (mend, error) {
		return withoutAgent(ctx, s, s.pods[name].net, func() error {
			conn := &nftables.Conn{}
			conn.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: tableName})
			return conn.Flush()
		})
	}
}

func dropDNSRules(ctx context.Context, s *story) (mend, error) {
	client := s.pods["client"].net
	rules, err := ourRules(client)
	if err != nil {
		return nil, err
	}
	port := binary.BigEndian.AppendUint16(nil, dnsPort)
	return withoutAgent(ctx, s, client, func() error {
		conn, found := &nftables.Conn{}, false
		for _, rule := range rules {
			for _, e := range rule.Exprs {
				if value, ok := e.(*expr.Immediate); ok && bytes.Equal(value.Data, port) {
					found = true
					if err := conn.DelRule(rule); err != nil {
						return err
					}
				}
			}
		}
		if !found {
			return errors.New("there is no rule that redirects DNS")
		}
		return conn.Flush()
	})
}

func dropIPRules(ctx context.Context, s *story) (mend, error) {
	return withoutAgent(ctx, s, s.pods["plain"].net, func() error {
		for _, family := range families() {
			if err := netlink.RuleDel(returnRule(family)); err != nil {
				return err
			}
		}
		return nil
	})
}

// rewriteSource has the server's pod show its app another client, as a masquerading
// rule of somebody else's would.
func rewriteSource(_ context.Context, s *story) (mend, error) {
	server := s.pods["server"].net
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: "sabotage"}
	add := func() error {
		conn := &nftables.Conn{}
		conn.AddTable(table)
		chain := conn.AddChain(&nftables.Chain{
			Name: "postrouting", Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
		})
		loopback := append([]byte("lo"), make([]byte, unix.IFNAMSIZ-2)...)
		conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
			&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: loopback},
			&expr.Immediate{Register: 1, Data: gateway4.AsSlice()},
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1},
		}})
		return conn.Flush()
	}
	return func(context.Context) error {
		return server.Handle.Do(func() error {
			conn := &nftables.Conn{}
			conn.DelTable(table)
			return conn.Flush()
		})
	}, server.Handle.Do(add)
}

func killProxy(ctx context.Context, s *story) (mend, error) {
	return s.restartProxy, s.proxy.End(ctx, unix.SIGKILL)
}

func cutDrain(ctx context.Context, s *story) (mend, error) {
	restart, err := killProxy(ctx, s)
	return func(ctx context.Context) error {
		if err := restart(ctx); err != nil {
			return err
		}
		_, err := s.becomes(ctx, s.pods["plain"], "NotCaptured", "NotLabelled")
		return err
	}, err
}

// restartProxy starts the proxy again and waits until it serves the captured pods.
func (s *story) restartProxy(ctx context.Context) error {
	if err := s.startProxy(); err != nil {
		return err
	}
	if err := s.awaitProxy(ctx); err != nil {
		return err
	}
	for _, name := range []string{"server", "client"} {
		if _, err := s.becomes(ctx, s.pods[name], "Captured"); err != nil {
			return err
		}
	}
	return nil
}

func misspell(_ context.Context, s *story) (mend, error) {
	s.labelKey = modeLabel[:len(modeLabel)-1]
	return func(ctx context.Context) error {
		s.labelKey = modeLabel
		plain := s.pods["plain"]
		if err := s.write(plain, true); err != nil {
			return err
		}
		_, err := s.becomes(ctx, plain, "Captured")
		return err
	}, nil
}

func resetConnections(_ context.Context, s *story) (mend, error) {
	s.web.reset()
	return nothing, nil
}

func dropPlugin(_ context.Context, s *story) (mend, error) {
	all := s.runtime.plugins
	s.runtime.plugins = all[:1]
	return func(context.Context) error { s.runtime.plugins = all; return nil }, nil
}

func withholdAcks(_ context.Context, s *story) (mend, error) {
	s.proxyFaults = []string{"--fault-no-ack"}
	return func(ctx context.Context) error {
		s.proxyFaults = nil
		if err := s.proxy.End(ctx, unix.SIGKILL); err != nil {
			return err
		}
		if err := s.restartProxy(ctx); err != nil {
			return err
		}
		return s.runtime.start(ctx, s.pods["late"])
	}, nil
}

func addGhost(ctx context.Context, s *story) (mend, error) {
	ghost, err := s.create("ghost", true)
	if err == nil { // the agent reads its directory in its own time
		_, err = s.becomes(ctx, ghost, "Pending")
	}
	return nothing, err
}
