package enroll

import (
	"strings"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/sockets"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// An app that binds a port of the proxy's while that is away would get what is
// redirected. The proxy that comes back cannot listen there.
func TestSquatters(t *testing.T) {
	nc := []sockets.Squatter{{Port: 15001, Protocol: ruleset.TCP, PID: 42, Command: "nc"}}
	captured(t, func(w *world, s *space) {
		w.proxySays(proxylink.NoProxy, "")
		s.set(func() { s.squatters = nc })
		w.pass(10 * time.Second)
		w.wantState("web Bypassing ProxyPortTaken", "/run/netns/c1 has full+dns", "proxy has uid-web noProxy")
		if got := w.r.Report()[0]; !strings.Contains(got.Message, "port 15001/tcp: nc (pid 42)") || got.Remedy == "" {
			t.Errorf("%s; %s", got.Message, got.Remedy)
		}
		w.proxySays(proxylink.Acked, "")
		w.pass(10 * time.Second)
		w.wantState("web Bypassing ProxyPortTaken", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		s.set(func() { s.squatters = nil })
		w.pass(10 * time.Second)
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
	running(t, func(w *world, s *space) {
		s.set(func() { s.squatters = nc })
		w.object("web", true)
		w.pass(10 * time.Second)
		w.wantState("web Bypassing ProxyPortTaken", "/run/netns/c1 has marks+dns")
	})
	inWorld(t, func(w *world) {
		w.object("web", true)
		s := w.space("c1")
		s.set(func() { s.squatters = nc })
		wantFailure(t, w.add("web", "c1"), status.PortTaken, "nc (pid 42)")
		w.wantState("web Pending ProxyPortTaken")
	})
}
