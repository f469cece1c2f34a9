package ruleset

import "testing"

func (p packet) untracked() packet { p.notrack = true; return p }

func (p packet) flagged(flags string) packet { p.flags = flags; return p }

// What a NOTRACK of the app's carries past the redirects does not leave the pod, and does not reach the app.
func TestGuard(t *testing.T) {
	everything := Config{CaptureDNS: true, VirtualInterfaces: []string{"tap0"}}
	ingress := Config{Ingress: true}
	ingressVM := Config{Ingress: true, VirtualInterfaces: []string{"tap0"}}
	out := func(a addresses) packet { return sends(TCP, to(a.pod, 4000), to(a.peer, 80), "eth0").untracked() }
	in := func(a addresses) packet { return comes(TCP, to(a.peer, 4000), to(a.pod, 80), "eth0").untracked() }
	rows := []struct {
		name      string
		config    Config
		packet    func(addresses) packet
		full, syn string
	}{
		{"outbound SYN", everything, out, "dropped", "dropped"},
		{"outbound data", everything, func(a addresses) packet { return out(a).flagged("A") }, "dropped", "passes"},
		{"outbound FIN", everything, func(a addresses) packet { return out(a).flagged("FA") }, "dropped", "passes"},
		{"answer of a handshake", everything, func(a addresses) packet { return out(a).flagged("SA") }, "dropped", "passes"},
		{"outbound RST, the kernel's or a destroyed socket's", everything, func(a addresses) packet { return out(a).flagged("RA") }, "passes", "passes"},
		{"the proxy's own", everything, func(a addresses) packet { return out(a).marked(ProxyMark) }, "passes", "passes"},
		{"the mark of answers is no excuse: nothing untracked has it by right", everything, func(a addresses) packet { return out(a).marked(ConnMark) }, "dropped", "dropped"},
		{"over lo", everything, func(a addresses) packet { return sends(TCP, to(a.pod, 4000), to(a.pod, 80), "lo").untracked() }, "passes", "passes"},
		{"to the probe address", everything, func(a addresses) packet { return sends(TCP, to(a.pod, 80), to(a.probe, 4000), "eth0").untracked() }, "passes", "passes"},
		{"from port 15008", everything, func(a addresses) packet {
			return sends(TCP, to(a.pod, HBONEPort), to(a.peer, 80), "eth0").untracked()
		}, "dropped", "dropped"},
		{"UDP, as neighbour discovery", everything, func(a addresses) packet { return sends(UDP, to(a.pod, 4000), to(a.peer, 53), "eth0").untracked() }, "passes", "passes"},
		{"ingress mode: outbound", ingress, out, "dropped", "dropped"},
		{"ingress mode: an answer to an inbound connection", ingress, func(a addresses) packet { return out(a).flagged("SA") }, "passes", "passes"},

		{"inbound SYN", everything, in, "dropped", "dropped"},
		{"inbound SYN with ECN's flags", everything, func(a addresses) packet { return in(a).flagged("SEC") }, "dropped", "dropped"},
		{"flags that cannot be read: in a fragment", everything, func(a addresses) packet { return in(a).flagged("") }, "dropped", "dropped"},
		{"inbound data", everything, func(a addresses) packet { return in(a).flagged("A") }, "passes", "passes"},
		{"the answer to the proxy's handshake", everything, func(a addresses) packet { return in(a).flagged("SA") }, "passes", "passes"},
		{"inbound RST", everything, func(a addresses) packet { return in(a).flagged("R") }, "passes", "passes"},
		{"inbound HBONE", everything, func(a addresses) packet {
			return comes(TCP, to(a.peer, 4000), to(a.pod, HBONEPort), "eth0").untracked()
		}, "passes", "passes"},
		{"the kubelet's probe", everything, func(a addresses) packet { return comes(TCP, to(a.probe, 4000), to(a.pod, 80), "eth0").untracked() }, "passes", "passes"},
		{"inbound over lo", everything, func(a addresses) packet { return comes(TCP, to(a.pod, 4000), to(a.pod, 80), "lo").untracked() }, "passes", "passes"},
		{"inbound UDP", everything, func(a addresses) packet { return comes(UDP, to(a.peer, 4000), to(a.pod, 80), "eth0").untracked() }, "passes", "passes"},
		{"ingress mode: inbound", ingress, in, "passes", "passes"},

		{"from a virtual interface", everything, func(a addresses) packet {
			return comes(TCP, to(a.peer, 4000), to(a.peer, 80), "tap0").untracked()
		}, "dropped", "dropped"},
		{"data from a virtual interface", everything, func(a addresses) packet {
			return comes(TCP, to(a.peer, 4000), to(a.peer, 80), "tap0").untracked().flagged("A")
		}, "dropped", "passes"},
		{"data from a virtual interface, ingress mode", ingressVM, func(a addresses) packet {
			return comes(TCP, to(a.peer, 4000), to(a.peer, 80), "tap0").untracked().flagged("A")
		}, "dropped", "passes"},
		{"RST from a virtual interface", everything, func(a addresses) packet {
			return comes(TCP, to(a.peer, 4000), to(a.peer, 80), "tap0").untracked().flagged("R")
		}, "passes", "passes"},
		{"from a virtual interface to 15008", everything, func(a addresses) packet {
			return comes(TCP, to(a.peer, 4000), to(a.peer, HBONEPort), "tap0").untracked()
		}, "dropped", "dropped"},
		{"from a virtual interface, ingress mode", ingressVM, func(a addresses) packet {
			return comes(TCP, to(a.peer, 4000), to(a.peer, 80), "tap0").untracked()
		}, "dropped", "dropped"},
		{"ingress mode with a virtual interface: inbound", ingressVM, in, "passes", "passes"},
	}
	for _, r := range rows {
		for family, addrs := range both {
			for form, want := range map[Form]string{FormFull: r.full, FormSYN: r.syn, FormMarks: "passes"} {
				t.Run(r.name+"/"+family+"/"+form.String(), func(t *testing.T) {
					c := r.config.with(form)
					c.IPv4, c.IPv6 = true, true
					rs := mustBuild(t, c)
					if got := (tracer{rs}).first(r.packet(addrs)); got.verdict != want {
						t.Errorf("%+v: got %s, want %s, by\n%s", r.packet(addrs), got, want, rs)
					}
				})
			}
		}
	}
}

// A packet that conntrack sees first and that is no SYN belongs to a connection whose entry is lost, or to one older than the
// capture.
func TestFormsDifferInTheMiddleOfAConnection(t *testing.T) {
	for family, a := range both {
		middle := sends(TCP, to(a.pod, 4000), to(a.peer, 80), "eth0").flagged("A")
		entering := comes(TCP, to(a.peer, 4000), to(a.pod, 80), "eth0").flagged("A")
		dns := sends(TCP, to(a.pod, 4000), to(a.peer, 53), "eth0").flagged("A")
		reset := middle.flagged("R")
		for form, want := range map[Form][4]string{
			FormFull:  {":15001", ":15006", ":15053", "passes"},
			FormSYN:   {"passes", "passes", "passes", "passes"},
			FormMarks: {"passes", "passes", "passes", "passes"},
		} {
			tr := tracer{mustBuild(t, Config{CaptureDNS: true, IPv4: true, IPv6: true, Form: form})}
			got := [4]string{tr.output(middle).verdict, tr.prerouting(entering).verdict, tr.output(dns).verdict, tr.output(reset).verdict}
			if got != want {
				t.Errorf("%s, form %s: outbound, inbound, DNS, reset: got %q, want %q", family, form, got, want)
			}
			middle.known = true
			if got := tr.output(middle).verdict; got != "passes" {
				t.Errorf("%s, form %s: a connection with an entry goes to %s", family, form, got)
			}
			middle.known = false
		}
		// ECN puts two more flags on a SYN.
		tr := tracer{mustBuild(t, Config{IPv4: true, IPv6: true, Form: FormSYN})}
		if got := tr.output(middle.flagged("SEC")).verdict; got != ":15001" {
			t.Errorf("%s: a SYN with ECN's flags: %s", family, got)
		}
	}
}
