package sockets

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// Whoever is at the other end of a connection that is destroyed learns of it, although
// the redirects are there already.
func TestDestroyedAtBothEnds(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	server := listen(t, s.peer, "[::]:90")
	var apps, peers []*net.TCPConn
	for _, to := range []string{peer4, peer6, mapped} {
		app, remote := s.between(s.pod, server, to+":90")
		apps, peers = append(apps, app), append(peers, remote)
	}
	s.redirect(ruleset.FormFull)
	if n, err := s.diag.Destroy(t.Context(), s.bypassing(nil)); n != len(apps) || err != nil {
		t.Errorf("%d destroyed, %v", n, err)
	}
	for i, app := range apps {
		s.must(errors.Join(app.SetDeadline(time.Now().Add(20*time.Second)), peers[i].SetDeadline(time.Now().Add(20*time.Second))))
		if _, err := app.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNABORTED) {
			t.Errorf("the app: %v", err)
		}
		if _, err := peers[i].Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("the peer: %v", err)
		}
	}
}

// Half-open connections from before the redirects bypass, and are destroyed.
func TestHalfOpenIsDestroyed(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	netlab.MustRun(t, s.peer, "nft", `add table inet t
		add chain inet t in { type filter hook input priority 0; }
		add rule inet t in tcp dport 99 drop
		add rule inet t in tcp flags & (syn | ack) == syn | ack drop`)
	outbound := []<-chan error{s.begin(s.pod, peer4+":99"), s.begin(s.pod, peer6+":99"), s.begin(s.pod, mapped+":99")}
	for _, to := range []string{pod4 + ":80", pod6 + ":80", pod4 + ":81"} {
		s.begin(s.peer, to)
	}
	netlab.Eventually(t, func() error {
		if n := len(s.bypassing(nil)); n != 6 {
			return fmt.Errorf("%d connections bypass, want 6", n)
		}
		return nil
	})
	s.redirect(ruleset.FormFull)
	if n, err := s.diag.Destroy(t.Context(), s.bypassing(nil)); n != 6 || err != nil {
		t.Errorf("%d destroyed, %v", n, err)
	}
	for _, done := range outbound {
		if err := <-done; !errors.Is(err, unix.ECONNABORTED) {
			t.Errorf("a connection that was just being made: %v", err)
		}
	}
	netlab.MustRun(t, s.peer, "nft", "delete table inet t")
	s.redirect(ruleset.FormMarks)
	s.wantAlive(s.dial(s.peer, pod4+":80"))
}

// A connection that changes its state after it was found is destroyed; one that is
// gone, and one that another has taken the place of, are left alone.
func TestDestroyWhatHasChanged(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	from := netlab.From(pod4 + ":4000")
	first := s.dial(s.pod, peer4+":80", from)
	found := s.bypassing(nil)
	s.must(reset(first))
	if n, err := s.diag.Destroy(t.Context(), found); n != 0 || err != nil {
		t.Errorf("gone: %d destroyed, %v", n, err)
	}
	second := s.dial(s.pod, peer4+":80", from)
	if n, err := s.diag.Destroy(t.Context(), found); n != 0 || err != nil {
		t.Errorf("replaced: %d destroyed, %v", n, err)
	}
	s.wantAlive(second)

	server := listen(t, s.peer, "[::]:90")
	app, remote := s.between(s.pod, server, peer4+":90")
	found = s.bypassing(func(c Connection) bool { return c.Remote.Port() != 90 })
	s.must(app.CloseWrite())
	if n, err := s.diag.Destroy(t.Context(), found); n != 1 || err != nil {
		t.Errorf("half closed: %d destroyed, %v", n, err)
	}
	s.must(remote.SetDeadline(time.Now().Add(20 * time.Second)))
	if _, err := remote.Write([]byte("x")); err == nil {
		_, err = remote.Read(make([]byte, 1))
		if err == nil {
			t.Error("the peer's end lives")
		}
	}
	s.wantAlive(second)
}

// Not the kernel alone keeps what has to live.
func TestDestroyRefuses(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	l := s.dial(s.pod, peer4+":80")
	found := s.bypassing(nil)
	good := found[0].socket
	for name, change := range map[string]func(*socket){
		"listener":       func(c *socket) { c.state = stateListen },
		"TIME_WAIT":      func(c *socket) { c.state = 6 },
		"CLOSE":          func(c *socket) { c.state = 7 },
		"marked":         func(c *socket) { c.mark = 0x539 },
		"loopback":       func(c *socket) { c.local = netip.MustParseAddrPort("127.0.0.1:80") },
		"IPv6 loopback":  func(c *socket) { c.remote = netip.MustParseAddrPort("[::1]:80") },
		"without cookie": func(c *socket) { c.cookie = 0 },
		"made up":        func(c *socket) { *c = socket{} },
	} {
		bad := good
		change(&bad)
		if n, err := s.diag.Destroy(t.Context(), []Connection{{socket: bad}}); n != 0 || err == nil || !strings.Contains(err.Error(), "not an open connection") {
			t.Errorf("%s: %d destroyed, %v", name, n, err)
		}
	}
	s.wantAlive(l)
	bad := good
	bad.state = stateListen
	n, err := s.diag.Destroy(t.Context(), []Connection{{socket: bad}, found[0]}) // one fault does not stop the rest
	if n != 1 || err == nil {
		t.Errorf("%d destroyed, %v", n, err)
	}
	s.wantReset(l)
}

func TestExplain(t *testing.T) {
	if err := explain(unix.EOPNOTSUPP); !errors.Is(err, ErrCannotDestroy) || !strings.Contains(err.Error(), "CONFIG_INET_DIAG_DESTROY") {
		t.Error(err)
	}
	if err := explain(unix.EPERM); errors.Is(err, ErrCannotDestroy) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
		t.Error(err)
	}
	if err := explain(nil); err != nil {
		t.Error(err)
	}
}

// Without the capability the kernel leaves the marks out, and what is the proxy's
// could not be told.
func TestWithoutTheCapability(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	s.dial(s.pod, peer4+":80")
	found := s.bypassing(nil)
	s.must(s.pod.Handle.Do(func() error { // on a thread of its own
		head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var caps, fewer [2]unix.CapUserData
		if err := unix.Capget(&head, &caps[0]); err != nil {
			return err
		}
		fewer = caps
		fewer[0].Effective &^= 1 << unix.CAP_NET_ADMIN
		if err := unix.Capset(&head, &fewer[0]); err != nil {
			return err
		}
		if _, err := s.diag.Bypassing(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("Bypassing: %v", err)
		}
		if n, err := s.diag.Destroy(t.Context(), found); n != 0 || !errors.Is(err, unix.EPERM) || !strings.Contains(err.Error(), "CAP_NET_ADMIN") {
			t.Errorf("Destroy: %d, %v", n, err)
		}
		return unix.Capset(&head, &caps[0])
	}))
	if n := len(s.bypassing(nil)); n != 1 {
		t.Errorf("%d connections with the capability", n)
	}
}

func BenchmarkBypassing(b *testing.B) {
	netlab.Kernel(b)
	for _, connections := range []int{0, 1, 1000} {
		b.Run(fmt.Sprintf("old=%d", connections), func(b *testing.B) {
			s := newStage(b)
			crowd(b, s, connections)
			b.ReportAllocs()
			for b.Loop() {
				s.bypassing(nil)
			}
		})
	}
	b.Run("proxied=200", func(b *testing.B) {
		s := newStage(b)
		s.proxy()
		s.redirect(ruleset.FormSYN)
		for range 200 {
			s.dial(s.pod, peer4+":80")
		}
		b.ReportAllocs()
		for b.Loop() {
			s.bypassing(nil)
		}
	})
	b.Run("old=200,proxied=1", func(b *testing.B) { // conntrack is asked about each
		s := newStage(b)
		crowd(b, s, 200)
		s.proxy()
		s.redirect(ruleset.FormSYN)
		s.dial(s.pod, peer4+":80")
		b.ReportAllocs()
		for b.Loop() {
			s.bypassing(nil)
		}
	})
}

func BenchmarkDestroy(b *testing.B) {
	netlab.Kernel(b)
	s := newStage(b)
	server := listen(b, s.peer, "[::]:90")
	for b.Loop() {
		b.StopTimer()
		app, remote := s.between(s.pod, server, peer4+":90")
		found := s.bypassing(nil)
		b.StartTimer()
		if n, err := s.diag.Destroy(b.Context(), found); n != 1 || err != nil {
			b.Fatal(n, err)
		}
		b.StopTimer()
		s.must(errors.Join(app.Close(), remote.Close()))
		b.StartTimer()
	}
}
