package route_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/route"
)

func TestMain(m *testing.M) { netlab.Main(m, 16) }

var both = route.Config{IPv4: true, IPv6: true}

// pod is a namespace, and a Router on it.
func pod(t *testing.T) (*netlab.NS, *route.Router) {
	t.Helper()
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "pod")
	return n, open(t, n)
}

func open(t *testing.T, n *netlab.NS) *route.Router {
	t.Helper()
	r, err := route.Open(n.Handle)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func apply(t *testing.T, r *route.Router, want route.Config) {
	t.Helper()
	if err := r.Apply(t.Context(), want); err != nil {
		t.Fatal(err)
	}
}

func check(t *testing.T, r *route.Router, want route.Config) route.Report {
	t.Helper()
	report, err := r.Check(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	return report
}

func ip(t *testing.T, n *netlab.NS, command string) string {
	t.Helper()
	return netlab.MustRun(t, n, "ip", strings.Fields(command)...)
}

// state is all that Apply and Remove may change, and some of what they may not.
func state(t *testing.T, n *netlab.NS) string {
	t.Helper()
	var b strings.Builder
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(ip(t, n, family+" rule")) {
			if !strings.Contains(line, "from all lookup local") && !strings.HasPrefix(line, "3276") || strings.HasPrefix(line, "32764") {
				fmt.Fprintf(&b, "%s %s\n", family, strings.Join(strings.Fields(line), " "))
			}
		}
		// A table that does not exist is an error to ip.
		if table, err := n.Run("ip", family, "route", "show", "table", "100"); err == nil {
			for line := range strings.Lines(table) {
				fmt.Fprintf(&b, "%s %s\n", family, strings.Join(strings.Fields(line), " "))
			}
		}
	}
	return b.String()
}

const (
	ours4 = "-4 32764: from all fwmark 0x111/0xfff lookup 100\n-4 local default dev lo scope host\n"
	ours6 = "-6 32764: from all fwmark 0x111/0xfff lookup 100\n-6 local default dev lo metric 1024 pref medium\n"
)

func wantState(t *testing.T, n *netlab.NS, want string) {
	t.Helper()
	if diff := cmp.Diff(want, state(t, n)); diff != "" {
		t.Errorf("rules and table 100 (-want +got):\n%s", diff)
	}
}

func TestApplyTwiceIsApplyOnce(t *testing.T) {
	netlab.Kernel(t)
	n, r := pod(t)
	for range 2 {
		apply(t, r, both)
		wantState(t, n, ours4+ours6)
		if report := check(t, r, both); len(report.Drift)+len(report.Foreign) != 0 {
			t.Errorf("after Apply: %q", report)
		}
	}
}

// What the rule and the route are for: a packet with the mark, wherever it wants to
// go, arrives here; others do not.
func TestMarkedPacketsArriveHere(t *testing.T) {
	netlab.Kernel(t)
	n, r := pod(t)
	peer := netlab.NewNS(t, "peer")
	netlab.Connect(t, netlab.Port{NS: n, Addrs: netlab.Prefixes("10.0.0.1/24", "fd00::1/64")},
		netlab.Port{NS: peer, Addrs: netlab.Prefixes("10.0.0.2/24", "fd00::2/64")})
	for _, c := range []struct{ here, from, there string }{
		{"0.0.0.0:80", "10.0.0.1:0", "10.0.0.2:80"},
		{"[::]:80", "[fd00::1]:0", "[fd00::2]:80"},
	} {
		apply(t, r, route.Config{})
		netlab.ServeEcho(t, n, "here", "tcp", c.here, netlab.ReusePort, netlab.Transparent)
		netlab.ServeEcho(t, peer, "there", "tcp", c.there)
		ask := func(want string, options ...netlab.Option) {
			t.Helper()
			if got := netlab.Ask(t, n, "tcp", c.there, append(options, netlab.From(c.from))...); got.Server != want {
				t.Errorf("%s: the server is %s, want %s", c.there, got.Server, want)
			}
		}
		ask("there", netlab.Mark(0x111))
		apply(t, r, both)
		ask("here", netlab.Mark(0x111))
		ask("here", netlab.Mark(0x5111)) // the rest of the mark is the app's own
		ask("there", netlab.Mark(0x539))
		ask("there")
	}
}

// drifts are ways in which somebody else can change what is ours.
var drifts = map[string]struct {
	commands string // run after Apply, one a line; %s is the family
	drift    string // what Check must mention
}{
	"rule deleted":    {"%s rule del pref 32764", "is missing"},
	"mask changed":    {"%s rule del pref 32764\n%s rule add fwmark 0x111/0xffff lookup 100 pref 32764", "rule 32764: fwmark 0x111/0xffff lookup 100 should not be there"},
	"no mask":         {"%s rule del pref 32764\n%s rule add fwmark 0x111 lookup 100 pref 32764", "0x111/0xffffffff"},
	"mark changed":    {"%s rule del pref 32764\n%s rule add fwmark 0x222/0xfff lookup 100 pref 32764", "fwmark 0x222/0xfff"},
	"mark gone":       {"%s rule del pref 32764\n%s rule add lookup 100 pref 32764", "fwmark 0x0/0x0"},
	"mark gone, too":  {"%s rule add lookup 100 pref 32764", "fwmark 0x0/0x0"},
	"priority moved":  {"%s rule del pref 32764\n%s rule add fwmark 0x111/0xfff lookup 100 pref 40000", "rule 40000"},
	"other priority":  {"%s rule add fwmark 0x111/0xfff lookup 100 pref 5", "rule 5: "},
	"table changed":   {"%s rule del pref 32764\n%s rule add fwmark 0x111/0xfff lookup 200 pref 32764", "lookup 200"},
	"blackhole":       {"%s rule del pref 32764\n%s rule add blackhole fwmark 0x111/0xfff pref 32764", "lookup 0 with other conditions"},
	"condition added": {"%s rule del pref 32764\n%s rule add iif lo fwmark 0x111/0xfff lookup 100 pref 32764", "with other conditions"},
	"inverted":        {"%s rule del pref 32764\n%s rule add not fwmark 0x111/0xfff lookup 100 pref 32764", "with other conditions"},
	"uid range":       {"%s rule del pref 32764\n%s rule add uidrange 0-0 fwmark 0x111/0xfff lookup 100 pref 32764", "with other conditions"},
	"suppressed":      {"%s rule del pref 32764\n%s rule add fwmark 0x111/0xfff lookup 100 suppress_prefixlength 0 pref 32764", "with other conditions"},
	"route deleted":   {"%s route flush table 100", "local default dev lo scope host table 100 is missing"},
	"all deleted":     {"%s rule del pref 32764\n%s route flush table 100", "is missing"},
}

func TestDriftIsSeenAndHealed(t *testing.T) {
	netlab.Kernel(t)
	n, r := pod(t)
	for name, drift := range drifts {
		for _, family := range []string{"-4", "-6"} {
			apply(t, r, both)
			for command := range strings.Lines(strings.ReplaceAll(drift.commands, "%s", family)) {
				ip(t, n, command)
			}
			report := check(t, r, both)
			if got := strings.Join(report.Drift, "\n"); !strings.Contains(got, drift.drift) {
				t.Errorf("%s, %s: Check says %q, want %q in it", name, family, got, drift.drift)
			}
			prefix := map[string]string{"-4": "IPv4: ", "-6": "IPv6: "}[family]
			for _, line := range report.Drift {
				if !strings.HasPrefix(line, prefix) {
					t.Errorf("%s, %s: Check says %q", name, family, line)
				}
			}
			apply(t, r, both)
			wantState(t, n, ours4+ours6)
			if report := check(t, r, both); len(report.Drift) != 0 {
				t.Errorf("%s, %s: after Apply: %q", name, family, report.Drift)
			}
		}
	}
}

// The kernel takes a rule twice if only its origin differs.
func TestDoubledRuleIsSeenAndHealed(t *testing.T) {
	netlab.Kernel(t)
	n, r := pod(t)
	apply(t, r, both)
	ip(t, n, "rule add fwmark 0x111/0xfff lookup 100 pref 32764 protocol 99")
	if report := check(t, r, both); len(report.Drift) != 1 || !strings.Contains(report.Drift[0], "should not be there") {
		t.Errorf("Check says %q", report.Drift)
	}
	apply(t, r, both)
	if got := strings.Count(state(t, n), "-4 32764"); got != 1 {
		t.Errorf("%d rules are left", got)
	}
}

func TestRemove(t *testing.T) {
	netlab.Kernel(t)
	n, r := pod(t)
	for range 2 { // the first time there is nothing
		if err := r.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		wantState(t, n, "")
		apply(t, r, both)
		if err := r.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		wantState(t, n, "")
	}
	apply(t, r, both)
	ip(t, n, "rule add fwmark 0x111/0xff lookup 100 pref 77")
	if err := r.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	wantState(t, n, "")
}

func TestOneFamilyOnly(t *testing.T) {
	netlab.Kernel(t)
	n, r := pod(t)
	apply(t, r, both)
	if report := check(t, r, route.Config{IPv4: true}); len(report.Drift) != 2 {
		t.Errorf("IPv6 that is not wanted: %q, want its rule and its route", report.Drift)
	}
	apply(t, r, route.Config{IPv4: true})
	wantState(t, n, ours4)
	if report := check(t, r, both); len(report.Drift) != 2 {
		t.Errorf("IPv6 that is wanted: %q, want its rule and its route", report.Drift)
	}
	apply(t, r, route.Config{IPv6: true})
	wantState(t, n, ours6)
}

// foreign are entries that are not ours, and what Check has to say about each.
var foreign = map[string]string{
	"rule add fwmark 0x1/0xfff lookup 200 pref 100":           "",
	"rule add lookup 100 from 10.9.0.0/16 pref 40000":         "",
	"rule add fwmark 0x111/0xfff lookup 300 pref 40001":       "",
	"rule add from 10.8.0.0/16 lookup 200 pref 101":           "IPv4: rule 101: fwmark 0x0/0x0 lookup 200 with other conditions stands before ours",
	"-6 rule add fwmark 0x11/0xff lookup 300 pref 32763":      "IPv6: rule 32763: fwmark 0x11/0xff lookup 300 stands before ours",
	"rule add from 10.7.0.0/16 lookup 200 pref 32764":         "IPv4: rule 32764: fwmark 0x0/0x0 lookup 200 with other conditions stands before ours",
	"route add 192.0.2.0/24 dev dummy table 100":              "IPv4: table 100: 192.0.2.0/24, type 1, interface 2, metric 0 is not ours",
	"route add default dev dummy table 100":                   "IPv4: table 100: default, type 1, interface 2, metric 0 is not ours",
	"route add local default dev lo metric 7 table 100":       "IPv4: table 100: default, type 2, interface 1, metric 7 is not ours",
	"-6 route add fd01::/64 dev dummy metric 9 table 100":     "IPv6: table 100: fd01::/64, type 1, interface 2, metric 9 is not ours",
	"-6 route add blackhole default metric 4000 table 100":    "IPv6: table 100: default, type 6, interface 1, metric 4000 is not ours",
	"route add default dev dummy table 200":                   "",
	"-6 route add local default dev lo scope host table 1000": "",
}

func TestWhatIsNotOursStaysAndIsReported(t *testing.T) {
	netlab.Kernel(t)
	n, r := pod(t)
	ip(t, n, "link add dummy type bridge")
	ip(t, n, "link set dummy up")
	var want []string
	for command, reported := range foreign {
		ip(t, n, command)
		if reported != "" {
			want = append(want, reported)
		}
	}
	before := state(t, n)
	apply(t, r, both)
	if table := ip(t, n, "route show table 100"); !strings.HasPrefix(table, "local default dev lo scope host") {
		t.Errorf("ours is not the first of its kind:\n%s", table)
	}
	report := check(t, r, both)
	if len(report.Drift) != 0 {
		t.Errorf("after Apply: %q", report.Drift)
	}
	slices.Sort(want)
	slices.Sort(report.Foreign)
	if diff := cmp.Diff(want, report.Foreign); diff != "" {
		t.Errorf("foreign entries (-want +got):\n%s", diff)
	}
	if err := r.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantState(t, n, before)
	for _, table := range []string{"-4 route show table 200", "-6 route show table 1000"} {
		if ip(t, n, table) == "" {
			t.Errorf("ip %s is empty now", table)
		}
	}
}

// Every state from every state, with drift in between.
func TestEveryStateFromEveryState(t *testing.T) {
	netlab.Kernel(t)
	n, r := pod(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	names := make([]string, 0, len(drifts))
	for name := range drifts {
		names = append(names, name)
	}
	for step := range 100 {
		if random.IntN(2) == 0 {
			commands := strings.ReplaceAll(drifts[names[random.IntN(len(names))]].commands, "%s", []string{"-4", "-6"}[random.IntN(2)])
			for command := range strings.Lines(commands) {
				_, _ = n.Run("ip", strings.Fields(command)...) // not every drift is possible in every state
			}
		}
		want := route.Config{IPv4: random.IntN(2) == 0, IPv6: random.IntN(2) == 0}
		apply(t, r, want)
		text := ""
		if want.IPv4 {
			text += ours4
		}
		if want.IPv6 {
			text += ours6
		}
		if got := state(t, n); got != text {
			t.Fatalf("seed %d, step %d, %+v: got\n%swant\n%s", seed, step, want, got, text)
		}
	}
}

func TestSomebodyElseKeepsChangingRules(t *testing.T) {
	netlab.Kernel(t)
	n, r := pod(t)
	other := open(t, n)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_ = other.Apply(context.Background(), both) // they fight: any outcome will do
				_ = other.Remove(context.Background())
			}
		}
	}()
	for range 200 {
		if err := r.Apply(t.Context(), both); err != nil && !strings.Contains(err.Error(), "somebody else keeps changing") {
			t.Errorf("Apply: %v", err)
		}
		if _, err := r.Check(t.Context(), both); err != nil {
			t.Errorf("Check: %v", err)
		}
	}
	close(stop)
	<-stopped
	apply(t, r, both)
	wantState(t, n, ours4+ours6)
}

func TestContextAndClose(t *testing.T) {
	netlab.Kernel(t)
	_, r := pod(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.Apply(ctx, both); !errors.Is(err, context.Canceled) {
		t.Errorf("Apply with an ended context: %v", err)
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := r.Check(t.Context(), both); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Check after Close: %v", err)
	}
}
