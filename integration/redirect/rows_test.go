package redirect_test

import (
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// Who asks whom, and who answers: "15001, from pod, for peer:80" is the proxy's listener on that port, which sees the
// address of the pod and is told the destination.
type row struct {
	name    string
	from    string // pod, peer, node or vm
	network string
	to      string
	mark    uint32 // of the asking socket
	source  string // its address, where that is not its namespace's
	want    string
}

// What holds in every mode.
var always = []row{
	{"nat output 1: to the probe address", "pod", "tcp", "probe:80", 0, "", "node, from pod"},
	{"nat output 4: an answer to the proxy stays on lo", "pod", "tcp", "peer:90", ruleset.ConnMark, "pod:0", "transparent, from pod"},
	{"nat output 5: the pod's own address", "pod", "tcp", "pod:80", 0, "", "app, from pod"},
	{"nat output 6: outbound", "pod", "tcp", "peer:80", 0, "", "15001, from pod, for peer:80"},
	{"nat output 6: outbound to the HBONE port", "pod", "tcp", "peer:15008", 0, "", "15001, from pod, for peer:15008"},
	{"nat output 6: the proxy's own", "pod", "tcp", "peer:80", ruleset.ProxyMark, "", "peer, from pod"},
	{"nat output 6: own, with other bits in the mark", "pod", "tcp", "peer:80", 0x7000 | ruleset.ProxyMark, "", "peer, from pod"},
	{"nat output 6: a mark like the proxy's", "pod", "tcp", "peer:80", 0x538, "", "15001, from pod, for peer:80"},
	{"nat output 6: loopback", "pod", "tcp", "loopback:80", 0, "", "app, from loopback"},
	{"nat output: the proxy -> app at the pod's address", "pod", "tcp", "pod:80", ruleset.ProxyMark, "", "app, from pod"},
	{"HBONE inbound is not redirected", "peer", "tcp", "pod:15008", 0, "", "15008, from peer"},
	{"UDP outbound", "pod", "udp", "peer:443", 0, "", "peer, from pod"},
	{"UDP inbound", "peer", "udp", "pod:443", 0, "", "app, from peer"},
	{"mangle: the proxy -> app from the client's address", "pod", "tcp", "pod:80", ruleset.ProxyMark, "peer:0", "app, from peer"},
}

var inboundCaptured = []row{
	{"nat prerouting 2: the kubelet's probe", "node", "tcp", "pod:80", 0, "probe:0", "app, from probe"},
	{"nat prerouting 3: the node without the probe's address", "node", "tcp", "pod:80", 0, "", "15006, from node, for pod:80"},
	{"nat prerouting 3: inbound", "peer", "tcp", "pod:80", 0, "", "15006, from peer, for pod:80"},
	{"nat prerouting 3: inbound to a port where nobody listens", "peer", "tcp", "pod:81", 0, "", "15006, from peer, for pod:81"},
}

var ingressMode = []row{
	{"ingress: the kubelet's probe", "node", "tcp", "pod:80", 0, "probe:0", "app, from probe"},
	{"ingress: inbound", "peer", "tcp", "pod:80", 0, "", "app, from peer"},
}

var dnsCaptured = []row{
	{"nat output 2: DNS over UDP", "pod", "udp", "peer:53", 0, "", "15053, from pod"},
	{"nat output 2: the proxy's own", "pod", "udp", "peer:53", ruleset.ProxyMark, "", "peer, from pod"},
	{"nat output 2: on lo", "pod", "udp", "pod:53", 0, "", "app, from pod"},
	{"nat output 3: DNS over TCP", "pod", "tcp", "peer:53", 0, "", "15053, from pod, for peer:53"},
	{"nat output 3: the proxy's own", "pod", "tcp", "peer:53", ruleset.ProxyMark, "", "peer, from pod"},
	{"nat output 3: the pod's own address", "pod", "tcp", "pod:53", 0, "", "15053, from pod, for pod:53"},
	{"nat output 3: loopback", "pod", "tcp", "loopback:53", 0, "", "app, from loopback"},
	{"DNS over UDP inbound", "peer", "udp", "pod:53", 0, "", "app, from peer"},
}

var dnsNotCaptured = []row{
	{"no DNS capture: DNS over UDP", "pod", "udp", "peer:53", 0, "", "peer, from pod"},
	{"no DNS capture: DNS over TCP is TCP", "pod", "tcp", "peer:53", 0, "", "15001, from pod, for peer:53"},
	{"no DNS capture: DNS over TCP to the pod's own address", "pod", "tcp", "pod:53", 0, "", "app, from pod"},
}

var virtualMachine = []row{
	{"nat prerouting 1: from behind a virtual interface", "vm", "tcp", "peer:80", 0, "", "15001, from vm, for peer:80"},
	{"nat prerouting 1: to the pod", "vm", "tcp", "pod:80", 0, "", "15001, from vm, for pod:80"},
	{"nat prerouting 1: to the HBONE port", "vm", "tcp", "pod:15008", 0, "", "15001, from vm, for pod:15008"},
}

var noVirtualMachine = []row{
	{"not declared virtual: an interface as any other", "vm", "tcp", "peer:80", 0, "", "15006, from vm, for peer:80"},
	{"not declared virtual: to the HBONE port", "vm", "tcp", "pod:15008", 0, "", "15008, from vm"},
}

// A namespace without our rules, to see that it is them who do it.
var released = []row{
	{"released: outbound", "pod", "tcp", "peer:80", 0, "", "peer, from pod"},
	{"released: inbound", "peer", "tcp", "pod:80", 0, "", "app, from peer"},
	{"released: the kubelet's probe", "node", "tcp", "pod:80", 0, "probe:0", "app, from probe"},
	{"released: DNS over UDP", "pod", "udp", "peer:53", 0, "", "peer, from pod"},
	{"released: DNS over TCP", "pod", "tcp", "peer:53", 0, "", "peer, from pod"},
}

func (s *stage) rows(t *testing.T, tables ...[]row) {
	who := map[string]*netlab.NS{"pod": s.pod, "peer": s.peer, "node": s.node, "vm": s.vm}
	for _, table := range tables {
		for _, r := range table {
			for _, f := range families {
				var options []netlab.Option
				if r.mark != 0 {
					options = append(options, netlab.Mark(int(r.mark)))
				}
				if r.source != "" {
					options = append(options, netlab.From(f.endpoint(r.source)))
				}
				if got := s.ask(who[r.from], r.network, f.endpoint(r.to), options...); got != r.want {
					t.Errorf("%s, %s: %s asks %s:\n got %s\nwant %s", f, r.name, r.from, r.to, got, r.want)
				}
			}
		}
	}
}

// Each row of the contract with real packets, in every mode and in both forms that capture, one after the other in
// the same namespace.
func TestEveryRow(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	s.serve()
	s.rows(t, released)
	vm := []string{"k6t-eth0"}
	for _, form := range []ruleset.Form{ruleset.FormSYN, ruleset.FormFull} {
		for _, mode := range []struct {
			name   string
			config ruleset.Config
			tables [][]row
		}{
			{"plain", ruleset.Config{}, [][]row{always, inboundCaptured, dnsNotCaptured, noVirtualMachine}},
			{"dns", ruleset.Config{CaptureDNS: true}, [][]row{always, inboundCaptured, dnsCaptured, noVirtualMachine}},
			{"ingress", ruleset.Config{CaptureDNS: true, Ingress: true}, [][]row{always, ingressMode, dnsCaptured}},
			{"vm", ruleset.Config{VirtualInterfaces: vm}, [][]row{always, inboundCaptured, dnsNotCaptured, virtualMachine}},
			{"vm, ingress", ruleset.Config{Ingress: true, VirtualInterfaces: vm}, [][]row{always, ingressMode, virtualMachine}},
		} {
			t.Run(form.String()+"/"+mode.name, func(t *testing.T) {
				s.capture(mode.config, form)
				s.rows(t, mode.tables...)
			})
		}
	}
	s.capture(ruleset.Config{CaptureDNS: true}, ruleset.FormMarks)
	s.rows(t, released)
	s.must(s.rules.Remove(t.Context()))
	s.rows(t, released)
}
