package redirect_test

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// query sends a datagram over an open socket and says who answered.
func query(t *testing.T, conn net.Conn) string {
	t.Helper()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("query")); err != nil {
		return err.Error()
	}
	reply, err := netlab.ReadReply(bufio.NewReaderSize(conn, 2048))
	if err != nil {
		return err.Error()
	}
	return reply.Server
}

func (s *stage) resolver(f family, options ...netlab.Option) net.Conn {
	s.t.Helper()
	conn, err := s.pod.Dial(s.t.Context(), "udp", f.endpoint("peer:53"), options...)
	s.must(err)
	s.t.Cleanup(func() { _ = conn.Close() }) // some tests have closed it
	return conn
}

// Without zones the proxy's query would be one with the app's that has the same addresses and ports, and come
// back to the proxy; with them each has an entry of its own.
func TestProxyAndAppAskFromTheSamePort(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	s.serve()
	for _, form := range []ruleset.Form{ruleset.FormSYN, ruleset.FormFull} {
		s.capture(ruleset.Config{CaptureDNS: true}, form)
		for _, f := range families {
			app := s.resolver(f)
			from := netlab.From(app.LocalAddr().String())
			own := netlab.Mark(int(ruleset.ProxyMark))
			for _, step := range []struct {
				who     string
				options []netlab.Option
				want    string
			}{
				{"the app", []netlab.Option{from}, "15053"},
				{"the proxy", []netlab.Option{own, from}, "peer"},
				{"the app again", []netlab.Option{from}, "15053"},
				{"the proxy again", []netlab.Option{own, from}, "peer"},
			} {
				s.must(app.Close())
				app = s.resolver(f, step.options...)
				if got := query(t, app); got != step.want {
					t.Errorf("form %s, %s, %s: answered by %s, want %s", form, f, step.who, got, step.want)
				}
			}
			s.must(app.Close())
			zoned := netlab.MustRun(t, s.pod, "conntrack", "-L", "-p", "udp", "-f", map[family]string{0: "ipv4", 1: "ipv6"}[f], "--zone", "1")
			// An answer outside of the zone would be taken for another flow, and be given another source port.
			query := fmt.Sprintf("src=%s dst=%s sport=", addresses["pod"][f], addresses["peer"][f])
			if !strings.Contains(zoned, query) || strings.Contains(zoned, "15053") || strings.Contains(zoned, "UNREPLIED") {
				t.Errorf("form %s, %s: zone 1 holds\n%s", form, f, zoned)
			}
		}
		netlab.MustRun(t, s.pod, "conntrack", "-F")
	}
}

// A socket that goes on asking keeps to the way that its entry says, until the entry is deleted: at capture and at release.
func TestDNSSocketInUse(t *testing.T) {
	netlab.Kernel(t)
	s := newStage(t)
	s.serve()
	config := ruleset.Config{CaptureDNS: true}
	s.capture(ruleset.Config{}, ruleset.FormMarks) // conntrack runs
	for _, f := range families {
		app := s.resolver(f)
		for _, step := range []struct {
			name string
			do   func()
			want string
		}{
			{"before", func() {}, "peer"},
			{"captured", func() { s.capture(config, ruleset.FormFull) }, "peer"},
			{"captured, entries deleted", func() { s.entriesDeleted(s.entries.DeleteUncaptured(t.Context())) }, "15053"},
			{"released", func() { s.capture(config, ruleset.FormMarks) }, "15053"},
			{"released, entries deleted", func() { s.entriesDeleted(s.entries.DeleteCaptured(t.Context())) }, "peer"},
		} {
			step.do()
			if got := query(t, app); got != step.want {
				t.Errorf("%s, %s: answered by %s, want %s", f, step.name, got, step.want)
			}
		}
		s.capture(ruleset.Config{}, ruleset.FormMarks)
	}
}

func (s *stage) entriesDeleted(n int, err error) {
	s.t.Helper()
	s.must(err)
	if n == 0 {
		s.t.Error("no entry was deleted")
	}
}
