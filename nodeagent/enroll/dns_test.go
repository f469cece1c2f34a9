package enroll

import (
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
)

func TestProxyWithoutDNS(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		s := w.space("c1")
		s.missing = "dns"
		start := time.Now()
		if err := w.add("web", "c1"); err != nil {
			t.Fatal(err)
		}
		w.wantDone("apply full+dns", "announce uid-web as shop/web of sa", "apply full")
		if got := time.Since(start); got != dnsPatience {
			t.Errorf("waited %s for the DNS listener, want %s", got, dnsPatience)
		}
		w.wantState("web Captured ProxyWithoutDNS", "/run/netns/c1 has full", "proxy has uid-web acked")
		// As soon as somebody listens there, DNS is captured.
		s.set(func() { s.missing = "" })
		w.pass(10 * time.Second)
		w.wantDone("apply full+dns", "expel")
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

// What goes directly because nobody listens for DNS is not redirected by the next agent, nor
// when DNS is switched on, before somebody does.
func TestDNSIsNotRedirectedToNobody(t *testing.T) {
	for name, test := range map[string]struct {
		off    func(*intent.Pod)
		reason string
	}{
		"agents change":   {func(*intent.Pod) {}, "ProxyWithoutDNS"},
		"it is asked for": {withoutDNS, "OK"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.object("web", true, test.off)
				s := w.space("c1")
				s.missing = "dns"
				if err := w.add("web", "c1"); err != nil {
					t.Fatal(err)
				}
				w.wantState("web Captured "+test.reason, "/run/netns/c1 has full", "proxy has uid-web acked")
				w.done()
				w.object("web", true)
				w.proxySays(proxylink.NoProxy, "")
				w.restart()
				w.pass(time.Minute)
				w.wantDone(announced)
				w.proxySays(proxylink.Acked, "")
				w.pass(10 * time.Second)
				w.wantDone()
				w.wantState("web Captured ProxyWithoutDNS", "/run/netns/c1 has full", "proxy has uid-web acked")
				s.set(func() { s.missing = "" })
				w.pass(10 * time.Second)
				w.wantDone("apply full+dns", "expel")
				w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
			})
		})
	}
}

func withoutDNS(p *intent.Pod) {
	p.Annotations = map[string]string{"ambient.istio.io/dns-capture": "false"}
}

func TestDNSListenerThatComesLater(t *testing.T) {
	inWorld(t, func(w *world) {
		w.object("web", true)
		s := w.space("c1")
		s.missing = "dns"
		answer := w.addLater(w.t.Context(), "web", "c1")
		w.pass(50 * time.Millisecond)
		s.set(func() { s.missing = "" })
		if err := <-answer; err != nil {
			t.Fatal(err)
		}
		w.wantDone("apply full+dns", "announce uid-web as shop/web of sa")
	})
}

// Of two proxies that each come to listen for DNS last, none is without it.
func TestDNSListenersThatComeLast(t *testing.T) {
	captured(t, func(w *world, s *space) {
		w.proxySays(proxylink.NoProxy, "")
		w.pass(10 * time.Second)
		for range 2 {
			s.set(func() { s.missing = "dns" })
			w.proxySays(proxylink.Acked, "")
			w.pass(dnsPatience / 2)
			w.proxySays(proxylink.NoProxy, "")
			w.pass(10 * time.Second)
		}
		w.wantDone()
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web noProxy")
	})
}
