package ruleset

import (
	"fmt"
	"net/netip"
)

// One before the standard priorities: an ACCEPT that the app puts into its own tables comes too late.
const (
	rawPriority    int32 = -301
	manglePriority int32 = -151
	filterPriority int32 = -1

	// NATPriority is where our redirects stand.
	NATPriority int32 = -101
)

// Conditions that most rules need.
var (
	tcp       = L4{TCP}
	own       = PacketMark{Value: ProxyMark, Mask: MarkMask}
	notOwn    = PacketMark{Value: ProxyMark, Mask: MarkMask, Not: true}
	outLo     = OutInterface{Name: Loopback}
	notOutLo  = OutInterface{Name: Loopback, Not: true}
	loopback4 = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	loopback6 = netip.IPv6Loopback()
)

// Build turns a pod's configuration into the rules of its table.
func Build(config Config) (Ruleset, error) {
	c, err := config.normal()
	if err != nil {
		return Ruleset{}, fmt.Errorf("cannot build redirection rules: %w", err)
	}
	chains := []Chain{
		{Name: "raw-prerouting", Type: Filter, Hook: Prerouting, Priority: rawPriority, Rules: c.rawPrerouting()},
		{Name: "raw-output", Type: Filter, Hook: Output, Priority: rawPriority, Rules: c.rawOutput()},
		{Name: "mangle-prerouting", Type: Filter, Hook: Prerouting, Priority: manglePriority, Rules: manglePrerouting()},
		// Of type route: a packet whose mark has changed is routed again.
		{Name: "mangle-output", Type: Route, Hook: Output, Priority: manglePriority, Rules: mangleOutput()},
	}
	natOutput := Chain{Name: "nat-output", Type: NAT, Hook: Output, Priority: NATPriority}
	if c.Form == FormMarks {
		// Without a rule, and needed: the kernel translates the packets of redirected connections only while some chain of
		// type nat exists. When the last one goes they leave the pod as the app wrote them.
		chains = append(chains, natOutput)
	} else {
		natOutput.Rules = c.natOutput()
		chains = append(chains,
			Chain{Name: "nat-prerouting", Type: NAT, Hook: Prerouting, Priority: NATPriority, Rules: c.natPrerouting()},
			natOutput,
			// At the hooks of the redirects, not at input: what is forwarded to a virtual interface is redirected too.
			Chain{Name: "guard-prerouting", Type: Filter, Hook: Prerouting, Priority: filterPriority, Rules: c.guardPrerouting()},
			Chain{Name: "guard-output", Type: Filter, Hook: Output, Priority: filterPriority, Rules: c.guardOutput()})
	}
	var rs Ruleset
	for _, chain := range chains {
		if len(chain.Rules) > 0 || chain.Type == NAT && chain.Hook == Output {
			chain.Policy = PolicyAccept
			rs.Chains = append(rs.Chains, chain)
		}
	}
	return rs, nil
}

func (c Config) rawPrerouting() []Rule {
	if !c.CaptureDNS {
		return nil
	}
	// Over lo the proxy's answers to the app come by with its mark, and belong to the app's flow.
	return []Rule{rule("answers to the proxy's DNS queries: zone of their own", SetZone{DNSZone},
		Port{Protocol: UDP, Side: Source, Port: dnsServicePort}, notOwn)}
}

func (c Config) rawOutput() []Rule {
	if !c.CaptureDNS {
		return nil
	}
	return []Rule{rule("the proxy's DNS queries: zone of their own", SetZone{DNSZone},
		Port{Protocol: UDP, Side: Destination, Port: dnsServicePort}, own)}
}

func manglePrerouting() []Rule {
	// The proxy's packets to the app come by here over lo; from outside a packet enters without a mark.
	return []Rule{rule("a connection from the proxy to the app", SetConnectionMark{ConnMark, MarkMask}, tcp, own)}
}

func mangleOutput() []Rule {
	// No protocol: only TCP connections carry the mark, and an ICMP error about one of them must find the proxy too.
	return []Rule{rule("the app's answers go back to the proxy", RestoreMark{},
		ConnectionMark{Value: ConnMark, Mask: MarkMask})}
}

func (c Config) natPrerouting() []Rule {
	var rules []Rule
	for _, name := range c.VirtualInterfaces {
		rules = append(rules, c.redirect("from behind a virtual interface: outbound", OutboundPort,
			InInterface{Name: name}, tcp))
	}
	if c.Ingress {
		return rules
	}
	for _, f := range c.families() {
		rules = append(rules, rule("kubelet probe: to the app itself", Accept{}, Addr{Side: Source, Addr: f.probe}, tcp))
	}
	for _, f := range c.families() {
		rules = append(rules, c.redirect("inbound", InboundPort,
			Addr{Side: Destination, Addr: f.loopback, Not: true},
			Port{Protocol: TCP, Side: Destination, Port: HBONEPort, Not: true}, notOwn))
	}
	return rules
}

func (c Config) natOutput() []Rule {
	var rules []Rule
	for _, f := range c.families() {
		rules = append(rules, rule("answers to the kubelet's probes", Accept{},
			Addr{Side: Destination, Addr: f.probe}, tcp))
	}
	if c.CaptureDNS {
		// Every packet, also in form syn: UDP has no connections to keep, and none that end.
		rules = append(rules, rule("DNS over UDP", Redirect{DNSPort},
			notOutLo, Port{Protocol: UDP, Side: Destination, Port: dnsServicePort}, notOwn))
		for _, f := range c.families() {
			rules = append(rules, c.redirect("DNS over TCP", DNSPort,
				Addr{Side: Destination, Addr: f.loopback, Not: true},
				Port{Protocol: TCP, Side: Destination, Port: dnsServicePort}, notOwn))
		}
	}
	rules = append(rules, rule("the app's answers to the proxy", Accept{},
		tcp, PacketMark{Value: ConnMark, Mask: MarkMask}))
	for _, f := range c.families() {
		rules = append(rules, rule("a call to the pod's own address", Accept{},
			outLo, Addr{Side: Destination, Addr: f.loopback, Not: true}, tcp))
	}
	for _, f := range c.families() {
		rules = append(rules, c.redirect("outbound", OutboundPort,
			Addr{Side: Destination, Addr: f.loopback, Not: true}, tcp, notOwn))
	}
	return rules
}

// guardOutput and guardPrerouting drop what a NOTRACK of the app's would carry past the redirects, since nat sees
// tracked packets only.
//
// The first rule lets everything else out after one comparison. It names the state untracked, and not "no entry": a packet
// that conntrack cannot place (state invalid), an in-kernel RST to a stray segment for one, is none of the guard's business.
// IPv6 neighbour discovery is untracked by the kernel itself, hence TCP only. An untracked RST passes: it carries nothing,
// and without it the peer of a destroyed socket would wait for ever. The rules that let something out stand
// apart from the drop, so that a fragment too short to hold the TCP flags meets the drop. What names no address
// holds for both families, and drops IPv6 even where Config says that there is none.
//
// In FormFull nothing untracked leaves: a captured connection must not go on in the clear because a NOTRACK came later. In
// ingress mode the answers to inbound connections leave, which are not ours, so only beginnings are dropped.
func (c Config) guardOutput() []Rule {
	rules := []Rule{tracked()}
	if c.Form == FormFull && !c.Ingress {
		rules = append(rules, resets())
	} else {
		rules = append(rules, goingOn())
	}
	rules = append(rules, rule("stays in the pod", Accept{}, outLo))
	for _, f := range c.families() {
		rules = append(rules, rule("answers to the kubelet's probes", Accept{}, Addr{Side: Destination, Addr: f.probe}))
	}
	return append(rules, rule("outbound past the redirect (NOTRACK)", Drop{}, tcp, notOwn))
}

// guardPrerouting drops beginnings: what follows one that was let in has to pass, since answers to the proxy enter without its
// mark. What enters by a virtual interface is forwarded, so that no other guard sees it: of that nothing passes in FormFull.
func (c Config) guardPrerouting() []Rule {
	if c.Ingress && len(c.VirtualInterfaces) == 0 {
		return nil
	}
	rules := []Rule{tracked()}
	var virtual []Rule
	for _, name := range c.VirtualInterfaces {
		virtual = append(virtual, rule("outbound past the redirect (NOTRACK)", Drop{}, InInterface{Name: name}, tcp))
	}
	if c.Form == FormFull && len(virtual) > 0 {
		rules = append(append(rules, resets()), virtual...)
		virtual = nil
	}
	if len(virtual) > 0 || !c.Ingress {
		rules = append(append(rules, goingOn()), virtual...)
	}
	if c.Ingress {
		return rules
	}
	rules = append(rules,
		rule("stays in the pod", Accept{}, InInterface{Name: Loopback}),
		rule("HBONE: never redirected", Accept{}, Port{Protocol: TCP, Side: Destination, Port: HBONEPort}))
	for _, f := range c.families() {
		rules = append(rules, rule("kubelet probe: to the app itself", Accept{}, Addr{Side: Source, Addr: f.probe}))
	}
	return append(rules, rule("inbound past the redirect (NOTRACK)", Drop{}, tcp))
}

func tracked() Rule { return rule("the redirects have seen it", Accept{}, Tracked{}) }
func resets() Rule  { return rule("only ends a connection", Accept{}, Reset{}) }
func goingOn() Rule { return rule("begins no connection", Accept{}, GoingOn{}) }

// redirect is a rule for TCP; in FormSYN it holds for the first packet of a connection only.
func (c Config) redirect(comment string, port uint16, matches ...Match) Rule {
	if c.Form != FormSYN {
		return rule(comment, Redirect{port}, matches...)
	}
	var first []Match
	for _, m := range matches {
		if m != Match(tcp) { // FirstSYN says it
			first = append(first, m)
		}
	}
	return rule(comment, Redirect{port}, append(first, FirstSYN{})...)
}

func rule(comment string, statement Statement, matches ...Match) Rule {
	return Rule{Matches: matches, Statement: statement, Comment: comment}
}

// family is what the rules of one IP version are made of.
type family struct{ probe, loopback netip.Addr }

func (c Config) families() []family {
	var fs []family
	if c.IPv4 {
		fs = append(fs, family{probe: c.ProbeIPv4, loopback: loopback4})
	}
	if c.IPv6 {
		fs = append(fs, family{probe: c.ProbeIPv6, loopback: loopback6})
	}
	return fs
}
