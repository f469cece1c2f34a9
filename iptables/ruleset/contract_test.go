package ruleset

import (
	"net/netip"
	"slices"
	"testing"
)

// The addresses of a pod and of what it talks to, in both families.
type addresses struct{ pod, peer, loopback, loopback2, probe, any netip.Addr }

var both = map[string]addresses{
	"IPv4": {addr("10.0.0.5"), addr("10.0.0.9"), addr("127.0.0.1"), addr("127.0.0.2"), DefaultProbeIPv4, addr("0.0.0.0")},
	"IPv6": {addr("fd00::5"), addr("fd00::9"), addr("::1"), addr("fd00::2"), DefaultProbeIPv6, addr("::")},
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func to(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// sends is the first packet of a connection that somebody in the pod opens.
func sends(p Protocol, from, dst netip.AddrPort, out string) packet {
	return packet{protocol: p, src: from, dst: dst, out: out, flags: "S"}
}

// comes is the first packet of a connection that reaches the pod.
func comes(p Protocol, src, dst netip.AddrPort, in string) packet {
	return packet{protocol: p, src: src, dst: dst, in: in, flags: "S"}
}

func (p packet) marked(mark uint32) packet { p.mark = mark; return p }

// Section "in-pod redirection" of the contract, row by row, as sentences about packets.
func TestContractRows(t *testing.T) {
	type row struct {
		name   string
		config Config // besides the families
		packet func(addresses) packet
		want   string
	}
	dns := Config{CaptureDNS: true}
	ingress := Config{CaptureDNS: true, Ingress: true}
	vm := Config{VirtualInterfaces: []string{"k6t-eth0"}}
	vmIngress := Config{VirtualInterfaces: []string{"k6t-eth0"}, Ingress: true}
	rows := []row{
		{"app -> peer:80 goes to 15001", dns, func(a addresses) packet { return sends(TCP, to(a.pod, 4000), to(a.peer, 80), "eth0") }, ":15001"},
		{"app -> peer:15008 goes to 15001", dns, func(a addresses) packet { return sends(TCP, to(a.pod, 4000), to(a.peer, HBONEPort), "eth0") }, ":15001"},
		{"the proxy's own -> peer:80 does not", dns, func(a addresses) packet {
			return sends(TCP, to(a.pod, 4000), to(a.peer, 80), "eth0").marked(ProxyMark)
		}, "passes"},
		{"nor with other bits beside the mark", dns, func(a addresses) packet {
			return sends(TCP, to(a.pod, 4000), to(a.peer, 80), "eth0").marked(0xabcde000 | ProxyMark)
		}, "passes"},
		{"another mark is not the proxy's", dns, func(a addresses) packet {
			return sends(TCP, to(a.pod, 4000), to(a.peer, 80), "eth0").marked(ProxyMark + 1)
		}, ":15001"},
		{"marked as an answer to the proxy: passes", dns, func(a addresses) packet {
			return sends(TCP, to(a.pod, 4000), to(a.peer, 80), "lo").marked(ConnMark)
		}, "passes"},
		{"app -> its own pod address: passes", dns, func(a addresses) packet { return sends(TCP, to(a.pod, 4000), to(a.pod, 80), "lo") }, "passes"},
		{"app -> loopback: passes", dns, func(a addresses) packet { return sends(TCP, to(a.loopback, 4000), to(a.loopback, 80), "lo") }, "passes"},
		{"app -> another local address: passes", dns, func(a addresses) packet { return sends(TCP, to(a.loopback, 4000), to(a.loopback2, 80), "lo") }, "passes"},
		{"app -> probe address: passes", dns, func(a addresses) packet { return sends(TCP, to(a.pod, 80), to(a.probe, 4000), "eth0") }, "passes"},
		{"app -> probe address: passes, ingress", ingress, func(a addresses) packet { return sends(TCP, to(a.pod, 80), to(a.probe, 4000), "eth0") }, "passes"},
		{"ingress: outbound is captured", ingress, func(a addresses) packet { return sends(TCP, to(a.pod, 4000), to(a.peer, 80), "eth0") }, ":15001"},
		{"UDP is not captured", dns, func(a addresses) packet { return sends(UDP, to(a.pod, 4000), to(a.peer, 443), "eth0") }, "passes"},

		{"DNS over UDP goes to 15053", dns, func(a addresses) packet { return sends(UDP, to(a.pod, 4000), to(a.peer, 53), "eth0") }, ":15053"},
		{"DNS over UDP goes to 15053, ingress", ingress, func(a addresses) packet { return sends(UDP, to(a.pod, 4000), to(a.peer, 53), "eth0") }, ":15053"},
		{"the proxy's own DNS does not", dns, func(a addresses) packet {
			return sends(UDP, to(a.pod, 4000), to(a.peer, 53), "eth0").marked(ProxyMark)
		}, "passes"},
		{"DNS over UDP on lo does not", dns, func(a addresses) packet { return sends(UDP, to(a.pod, 4000), to(a.pod, 53), "lo") }, "passes"},
		{"DNS over UDP, not captured", vm, func(a addresses) packet { return sends(UDP, to(a.pod, 4000), to(a.peer, 53), "eth0") }, "passes"},
		{"DNS over TCP goes to 15053", dns, func(a addresses) packet { return sends(TCP, to(a.pod, 4000), to(a.peer, 53), "eth0") }, ":15053"},
		{"DNS over TCP to the pod's own address too", dns, func(a addresses) packet { return sends(TCP, to(a.pod, 4000), to(a.pod, 53), "lo") }, ":15053"},
		{"DNS over TCP to loopback does not", dns, func(a addresses) packet { return sends(TCP, to(a.loopback, 4000), to(a.loopback, 53), "lo") }, "passes"},
		{"the proxy's own DNS over TCP does not", dns, func(a addresses) packet {
			return sends(TCP, to(a.pod, 4000), to(a.peer, 53), "eth0").marked(ProxyMark)
		}, "passes"},
		{"DNS over TCP, not captured, is TCP", vm, func(a addresses) packet { return sends(TCP, to(a.pod, 4000), to(a.peer, 53), "eth0") }, ":15001"},

		{"peer -> pod:80 goes to 15006", dns, func(a addresses) packet { return comes(TCP, to(a.peer, 4000), to(a.pod, 80), "eth0") }, ":15006"},
		{"peer -> pod:15008 does not", dns, func(a addresses) packet { return comes(TCP, to(a.peer, 4000), to(a.pod, HBONEPort), "eth0") }, "passes"},
		{"the kubelet's probe does not", dns, func(a addresses) packet { return comes(TCP, to(a.probe, 4000), to(a.pod, 80), "eth0") }, "passes"},
		{"ingress: inbound is not captured", ingress, func(a addresses) packet { return comes(TCP, to(a.peer, 4000), to(a.pod, 80), "eth0") }, "passes"},
		{"UDP inbound is not captured", dns, func(a addresses) packet { return comes(UDP, to(a.peer, 4000), to(a.pod, 80), "eth0") }, "passes"},
		{"the proxy -> app over lo is not captured", dns, func(a addresses) packet {
			return comes(TCP, to(a.peer, 4000), to(a.pod, 80), "lo").marked(ProxyMark)
		}, "passes"},
		{"to loopback is not captured", dns, func(a addresses) packet { return comes(TCP, to(a.peer, 4000), to(a.loopback, 80), "lo") }, "passes"},

		{"from a virtual interface goes to 15001", vm, func(a addresses) packet { return comes(TCP, to(a.peer, 4000), to(a.any, 80), "k6t-eth0") }, ":15001"},
		{"from a virtual interface goes to 15001, ingress", vmIngress, func(a addresses) packet { return comes(TCP, to(a.peer, 4000), to(a.any, 80), "k6t-eth0") }, ":15001"},
		{"the probe's address is no excuse there", vm, func(a addresses) packet { return comes(TCP, to(a.probe, 4000), to(a.pod, 80), "k6t-eth0") }, ":15001"},
		{"a name that begins alike is another interface", vm, func(a addresses) packet { return comes(TCP, to(a.peer, 4000), to(a.pod, 80), "k6t-eth01") }, ":15006"},
	}
	for _, r := range rows {
		for family, addrs := range both {
			for _, form := range []Form{FormSYN, FormFull} {
				t.Run(r.name+"/"+family+"/"+form.String(), func(t *testing.T) {
					c := r.config.with(form)
					c.IPv4, c.IPv6 = true, true
					rs := mustBuild(t, c)
					if got := (tracer{rs}).first(r.packet(addrs)); got.verdict != r.want {
						t.Errorf("%+v: got %s, want %s, by\n%s", r.packet(addrs), got, r.want, rs)
					}
				})
			}
		}
	}
}

func (t tracer) first(p packet) outcome {
	if p.out != "" {
		return t.output(p)
	}
	return t.prerouting(p)
}

func TestMarks(t *testing.T) {
	for family, a := range both {
		for _, form := range forms { // marks are in every form
			for _, ingress := range []bool{false, true} {
				tr := tracer{mustBuild(t, Config{IPv4: true, IPv6: true, Form: form, Ingress: ingress})}
				in := comes(TCP, to(a.peer, 4000), to(a.pod, 80), "lo").marked(ProxyMark)
				in.ctMark = 0xabcde222
				if got := tr.prerouting(in).ctMark; got != 0xabcde000|ConnMark {
					t.Errorf("%s %s: connection mark is %#x: only the bits under the mask may change", family, form, got)
				}
				if got := tr.prerouting(in.marked(0)).ctMark; got != 0xabcde222 {
					t.Errorf("%s %s: an unmarked packet set the connection mark to %#x", family, form, got)
				}
				answer := packet{protocol: TCP, src: to(a.pod, 80), dst: to(a.peer, 4000), out: "eth0", flags: "SA", known: true}
				if got := tr.output(answer).mark; got != 0 {
					t.Errorf("%s %s: an answer on another connection got mark %#x", family, form, got)
				}
				answer.ctMark = 0xabcde000 | ConnMark
				if got := tr.output(answer).mark; got != answer.ctMark {
					t.Errorf("%s %s: the answer to the proxy has mark %#x, want %#x", family, form, got, answer.ctMark)
				}
			}
		}
	}
}

func TestZones(t *testing.T) {
	for family, a := range both {
		for _, form := range forms { // zones are in every form: the proxy's flows outlive a change of form
			for _, dns := range []bool{false, true} {
				tr := tracer{mustBuild(t, Config{IPv4: true, IPv6: true, Form: form, CaptureDNS: dns})}
				wanted := uint16(0)
				if dns {
					wanted = DNSZone
				}
				check := func(what string, got outcome, want uint16) {
					t.Helper()
					if got.zone != want {
						t.Errorf("%s %s dns=%t: %s is in zone %d, want %d", family, form, dns, what, got.zone, want)
					}
				}
				query := sends(UDP, to(a.pod, 4000), to(a.peer, 53), "eth0")
				check("the app's query", tr.output(query), 0)
				check("the proxy's query", tr.output(query.marked(ProxyMark)), wanted)
				check("the proxy's other UDP", tr.output(sends(UDP, to(a.pod, 4000), to(a.peer, 54), "eth0").marked(ProxyMark)), 0)
				check("the proxy's DNS over TCP", tr.output(sends(TCP, to(a.pod, 4000), to(a.peer, 53), "eth0").marked(ProxyMark)), 0)
				answer := comes(UDP, to(a.peer, 53), to(a.pod, 4000), "eth0")
				check("the answer to the proxy", tr.prerouting(answer), wanted)
				check("the proxy's answer to the app", tr.prerouting(answer.marked(ProxyMark)), 0)
			}
		}
	}
}

// Redirected connections are translated only as long as the namespace has a chain of type nat.
func TestEveryFormHasANatChain(t *testing.T) {
	for name, config := range matrix() {
		for _, f := range forms {
			rs := mustBuild(t, config.with(f))
			if !slices.ContainsFunc(rs.Chains, func(c Chain) bool { return c.Type == NAT }) {
				t.Errorf("%s, form %s has none:\n%s", name, f, rs)
			}
		}
	}
}

func TestMarksFormCapturesNothing(t *testing.T) {
	for name, config := range matrix() {
		for _, c := range mustBuild(t, config.with(FormMarks)).Chains {
			for _, r := range c.Rules {
				switch r.Statement.(type) {
				case Redirect, Drop:
					t.Errorf("%s: %s", name, r)
				}
			}
		}
	}
}
