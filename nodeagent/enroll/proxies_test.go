package enroll

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fairlead-mesh/fairlead/nodeagent/proxylink"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

func TestProxyGoesAway(t *testing.T) {
	captured(t, func(w *world, s *space) {
		// One that drains is not connected any more, but listens.
		w.proxySays(proxylink.NoProxy, "")
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web noProxy")
		s.set(func() { s.missing = "tcp" })
		w.pass(10 * time.Second)
		w.wantState("web Blocked NoProxy", "/run/netns/c1 has full+dns", "proxy has uid-web noProxy")
		// The rules stay: closed is better than in the clear.
		w.wantDone()
		s.set(func() { s.missing = "" })
		w.proxySays(proxylink.Acked, "")
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

func TestRefusalOutsideAnAddIsRetriedForEver(t *testing.T) {
	running(t, func(w *world, _ *space) {
		w.proxySays(proxylink.Nacked, "::1: cannot assign requested address")
		w.object("web", true)
		w.wantDone("apply marks+dns", announced, "withdraw uid-web")
		for _, pause := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
			w.pass(pause*time.Second - time.Millisecond)
			w.wantDone()
			w.pass(time.Millisecond)
			w.wantDone(announced, "withdraw uid-web")
		}
		if got := w.r.Report()[0]; got.State != status.Bypassing || got.Reason != status.ProxyRefused {
			t.Errorf("got %s (%s)", got.State, got.Reason)
		} else if !strings.Contains(got.Message, "::1: cannot assign requested address") {
			t.Errorf("the proxy's own words are gone: %s", got.Message)
		}
		w.proxySays(proxylink.Acked, "")
		w.pass(time.Minute)
		w.wantDone(announced, "apply syn+dns", "expel")
	})
}

// Two proxies: the newest refuses, the older serves. The pod is not withdrawn, and it is
// said of it, since the newest is not ready meanwhile.
func TestRefusalByOneOfTwo(t *testing.T) {
	captured(t, func(w *world, s *space) {
		w.r.config.Proxies = &twoProxies{world: w}
		w.proxySays(proxylink.Nacked, "port taken")
		w.wantDone()
		w.wantState("web Captured NewProxyRefused", "/run/netns/c1 has full+dns", "proxy has uid-web nacked")
		p := w.r.Report()[0]
		if want := "the node proxy (pid 7) refused the pod: port taken; another proxy serves it"; p.Message != want || p.Remedy == "" {
			t.Errorf("%s; remedy: %s", p.Message, p.Remedy)
		}
		var table strings.Builder
		if err := status.WriteTable(&table, status.Node{}, []status.Pod{p}, time.Now()); err != nil {
			t.Fatal(err)
		}
		if note := "\nshop/web is Captured (NewProxyRefused)\n  " + p.Message + "\n  remedy: " + p.Remedy + "\n"; !strings.Contains(table.String(), note) {
			t.Errorf("not in the table:\n%s", table.String())
		}
		if err := w.r.Check(w.t.Context(), sandboxOf("web", "c1")); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		const metric = `
# HELP fairlead_pods Pods of the node, by state and reason.
# TYPE fairlead_pods gauge
fairlead_pods{reason="NewProxyRefused",state="Captured"} 1
fairlead_pods{reason="NoProxy",state="Blocked"} 0
fairlead_pods{reason="NoProxy",state="Bypassing"} 0
`
		if err := testutil.CollectAndCompare(w.r, strings.NewReader(metric)); err != nil {
			t.Error(err)
		}
		// What may stand before our rules is said when that is over.
		s.set(func() { s.foreign = []string{"chain ip evil/out: before ours"} })
		w.pass(10 * time.Second)
		w.wantState("web Captured NewProxyRefused", "/run/netns/c1 has full+dns", "proxy has uid-web nacked")
		// That neither serves it is worse.
		s.set(func() { s.missing = "tcp" })
		w.pass(10 * time.Second)
		w.wantState("web Blocked ProxyDoesNotListen", "/run/netns/c1 has full+dns", "proxy has uid-web nacked")
		s.set(func() { s.missing, s.foreign = "", nil })
		w.proxySays(proxylink.Acked, "")
		w.wantState("web Captured OK", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
	})
}

func TestRefusalByOneOfTwoWhileRunning(t *testing.T) {
	running(t, func(w *world, s *space) {
		w.r.config.Proxies = &twoProxies{world: w}
		w.proxySays(proxylink.Nacked, "port taken")
		s.set(func() { s.missing = "tcp" })
		w.object("web", true)
		w.wantDone("apply marks+dns", announced)
		// Nobody says when the other one listens: it is looked for.
		s.set(func() { s.missing = "" })
		w.pass(listenerWatch)
		w.wantDone("apply syn+dns", "expel")
		w.wantState("web Captured NewProxyRefused", "/run/netns/c1 has syn+dns", "proxy has uid-web nacked")
	})
}

type twoProxies struct{ *world }

func (p *twoProxies) Verdict(uid string) proxylink.Verdict {
	v := p.world.Verdict(uid)
	v.Acks = append(v.Acks, proxylink.Ack{Session: 0, PID: 6, State: proxylink.Acked})
	return v
}

// slowProxy has pods queue behind a request.
type slowProxy struct {
	*world
	before proxylink.Unanswered
}

func (p *slowProxy) Verdict(uid string) proxylink.Verdict {
	v := p.world.Verdict(uid)
	p.mu.Lock()
	defer p.mu.Unlock()
	v.Before = p.before
	return v
}

func (p *slowProxy) owes(since time.Time) {
	p.mu.Lock()
	p.before = proxylink.Unanswered{PID: 7, Since: since}
	p.mu.Unlock()
	p.r.Wake("")
	synctest.Wait()
}

// behindAnother is a world with an ADD that waits for a proxy's answer for another pod.
func behindAnother(t *testing.T, story func(w *world, answer <-chan error)) {
	inWorld(t, func(w *world) {
		p := &slowProxy{world: w}
		w.r.config.Proxies = p
		w.object("web", true)
		w.proxySays(proxylink.Queued, "")
		p.owes(time.Now())
		answer := w.addLater(w.t.Context(), "web", "c1")
		story(w, answer)
	})
}

// A proxy that hangs on one pod is named to those that wait behind it.
func TestProxyThatHangsOnAnotherPod(t *testing.T) {
	behindAnother(t, func(w *world, answer <-chan error) {
		w.pass(1900 * time.Millisecond)
		w.wantState("web Pending Capturing", "/run/netns/c1 has full+dns", "proxy has uid-web queued")
		w.pass(200 * time.Millisecond)
		w.wantState("web Pending ProxyDoesNotAnswer", "/run/netns/c1 has full+dns", "proxy has uid-web queued")
		wantFailure(t, <-answer, status.NoAnswer, "the node proxy (pid 7) has not answered for another pod for 7s")
	})
}

// One that is slow, and answers for one after the other, does not hang.
func TestProxyThatIsSlowWithOtherPods(t *testing.T) {
	behindAnother(t, func(w *world, answer <-chan error) {
		w.pass(4 * time.Second)
		w.wantState("web Pending ProxyDoesNotAnswer", "/run/netns/c1 has full+dns", "proxy has uid-web queued")
		w.proxySays(proxylink.Waiting, "")
		w.pass(4 * time.Second)
		w.proxySays(proxylink.Acked, "")
		if err := <-answer; err != nil {
			t.Error(err)
		}
	})
}

// A proxy that has acknowledged a pod and does not listen is looked at, not watched
// without a pause.
func TestListenersThatDoNotComeCostLittle(t *testing.T) {
	captured(t, func(w *world, s *space) {
		s.set(func() { s.missing, s.looks = "tcp", 0 })
		w.r.Wake("uid-web")
		w.pass(10 * time.Second)
		w.wantState("web Blocked ProxyDoesNotListen", "/run/netns/c1 has full+dns", "proxy has uid-web acked")
		if s.looks < 5 || s.looks > 30 {
			t.Errorf("looked %d times in 10 s", s.looks)
		}
	})
}
