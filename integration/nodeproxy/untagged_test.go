package nodeproxy_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/integration/nodeproxy"
)

// class has a socket send with a traffic class, of which DSCP is all but the last two bits.
func class(class int) netlab.Option {
	return func(fd int) error {
		err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TOS, class)
		if six := unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_TCLASS, class); six == nil { // else it is an IPv4 socket
			return nil
		}
		return err
	}
}

// newRefusingPod serves a pod, which has an app at port 80, from a proxy that refuses
// untagged peers, and logs why.
func newRefusingPod(t *testing.T, prepare ...func(app *netlab.NS)) (*pod, *netlab.Log) {
	t.Helper()
	log := new(netlab.Log)
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p := newPod(t, nodeproxy.Config{RefuseUntagged: true, Logger: logger}, prepare...)
	netlab.ServeEcho(t, p.app, "app", "tcp", at(podAddrs["IPv4"], 80))
	return p, log
}

// ask asks the app from the peer, and says what comes of it.
func (p *pod) ask(addr string, class netlab.Option) string {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	_, err := netlab.AskEcho(ctx, p.peer, "tcp", addr, class)
	switch {
	case errors.Is(err, unix.ECONNRESET):
		return "reset"
	case err != nil:
		p.t.Fatal(err)
	}
	return "answered"
}

func (p *pod) wantUntagged(want uint64) {
	p.t.Helper()
	p.wantIdle()
	if one, all := p.workload("uid0").Untagged, p.proxy.State().Untagged; one != want || all != want {
		p.t.Errorf("refused as untagged: %d of uid0, %d in all, want %d", one, all, want)
	}
}

func TestUntaggedPeersAreRefused(t *testing.T) {
	netlab.Kernel(t)
	p, log := newRefusingPod(t)
	netlab.ServeEcho(t, p.app, "app", "tcp", at(podAddrs["IPv6"], 80))
	const tag = dscp << 2
	var got strings.Builder
	for _, family := range []string{"IPv4", "IPv6"} {
		for _, value := range []int{0, tag, tag | 2, tag ^ 4, tag ^ 0x80} {
			fmt.Fprintf(&got, "%s class %#x: %s\n", family, value, p.ask(at(podAddrs[family], 80), class(value)))
		}
	}
	// TCP itself decides on the last two bits, and leaves them out here.
	want := `
IPv4 class 0x0: reset
IPv4 class 0xb8: answered
IPv4 class 0xba: answered
IPv4 class 0xbc: reset
IPv4 class 0x38: reset
IPv6 class 0x0: reset
IPv6 class 0xb8: answered
IPv6 class 0xba: answered
IPv6 class 0xbc: reset
IPv6 class 0x38: reset
`
	if got.String() != want[1:] {
		t.Errorf("got\n%swant%s", got.String(), want)
	}
	p.wantUntagged(6)
	p.wantRelayed(nodeproxy.Relayed{Inbound: 4})
	for _, client := range []string{"10.0.0.2", "[fd00::2]"} {
		for _, class := range []string{"0x0", "0x2f", "0xe"} {
			refused := 0
			for _, line := range log.Lines("the peer is untagged: its first packet has DSCP " + class + ", not 0x2e") {
				if strings.Contains(line, "direction=inbound") && strings.Contains(line, client+":") {
					refused++
				}
			}
			if refused != 1 {
				t.Errorf("%d lines name %s with %s, want one, in\n%s", refused, client, class, log)
			}
		}
	}
}

// Where there is no IPv6 the listener is another one.
func TestUntaggedPeersAreRefusedWithoutIPv6(t *testing.T) {
	netlab.Kernel(t)
	p, _ := newRefusingPod(t, func(app *netlab.NS) {
		if err := app.Sysctl("net/ipv6/conf/all/disable_ipv6", "1"); err != nil {
			t.Fatal(err)
		}
	})
	addr := at(podAddrs["IPv4"], 80)
	if got := p.ask(addr, class(0)) + ", " + p.ask(addr, class(dscp<<2)); got != "reset, answered" {
		t.Errorf("an untagged and a tagged peer: %s", got)
	}
	p.wantUntagged(1)
}

// With SYN cookies the kernel keeps nothing: who could be untagged is refused.
func TestPeersOfUnknownTagAreRefused(t *testing.T) {
	netlab.Kernel(t)
	p, log := newRefusingPod(t, func(app *netlab.NS) {
		if err := app.Sysctl("net/ipv4/tcp_syncookies", "2"); err != nil { // always
			t.Fatal(err)
		}
	})
	if got := p.ask(at(podAddrs["IPv4"], 80), class(dscp<<2)); got != "reset" {
		t.Errorf("a tagged peer: %s", got)
	}
	p.wantUntagged(1)
	if len(log.Lines("the kernel has not kept the first packet")) != 1 {
		t.Errorf("no cause in\n%s", log)
	}
}

// The policy is about what comes in captured: the app itself, its own calls out, and
// what comes by CONNECT from other proxies are none of its business.
func TestUntaggedElsewhere(t *testing.T) {
	netlab.Kernel(t)
	p, _ := newRefusingPod(t)
	netlab.ServeEcho(t, p.peer, "peer", "tcp", at(peerAddrs["IPv4"], 80))
	netlab.Ask(t, p.app, "tcp", at(peerAddrs["IPv4"], 80))
	netlab.Ask(t, p.app, "tcp", at(podAddrs["IPv4"], 80))
	c := p.dial(p.peer, at(podAddrs["IPv4"], 15008))
	p.connect(c, at(podAddrs["IPv4"], 80), "")
	_ = c.Close()
	p.wantUntagged(0)
	p.wantRelayed(nodeproxy.Relayed{Outbound: 1, HBONE: 1})
}

// What one proxy sends for a captured pod is what another takes.
func TestTwoPodsOfProxiesThatRefuseUntagged(t *testing.T) {
	netlab.Kernel(t)
	p, _ := newRefusingPod(t)
	redirect(t, p.peer)
	p.link.add("uid1", p.peer)
	if got := p.ask(at(podAddrs["IPv4"], 80), class(0)); got != "answered" {
		t.Errorf("a captured peer: %s", got)
	}
	p.wantUntagged(0)
	p.wantIdle()
	if got, want := p.proxy.State().Relayed, (nodeproxy.Relayed{Outbound: 1, Inbound: 1}); got != want {
		t.Errorf("relayed %+v, want %+v", got, want)
	}
}
