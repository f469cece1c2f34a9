package route

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
)

// As on a kernel without IPv6.
func TestFamilyThatTheKernelDoesNotHave(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "pod")
	r, err := Open(n.Handle)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	const decnet = unix.AF_DECnet
	if rules, err := r.rules(t.Context(), decnet); err != nil || len(rules) != 0 {
		t.Errorf("rules: %v, %v", rules, err)
	}
	if routes, err := r.routes(t.Context(), decnet); err != nil || len(routes) != 0 {
		t.Errorf("routes: %v, %v", routes, err)
	}
	if err := r.remove(t.Context(), decnet); err != nil {
		t.Errorf("remove: %v", err)
	}
	if err := r.applyRule(t.Context(), decnet, 1); err == nil {
		t.Error("a rule was added")
	}
}

// message is a header, and attributes with the given lengths.
func message(header int, attrs ...nlconn.Attr) []byte {
	b := make([]byte, header)
	for _, a := range attrs {
		b = nlconn.AppendAttr(b, a.Kind, a.Value)
	}
	return b
}

func TestRepliesOfTheWrongShape(t *testing.T) {
	short := []byte{1, 2}
	for name, err := range map[string]error{
		"no rule":        second(parseRule(nil)),
		"short rule":     second(parseRule(make([]byte, ruleHeader-1))),
		"short priority": second(parseRule(message(ruleHeader, nlconn.Attr{Kind: fraPriority, Value: short}))),
		"lying rule":     second(parseRule(append(make([]byte, ruleHeader), 255, 255, 1, 0))),
		"short route":    third(parseRoute(unix.AF_INET, make([]byte, 11))),
		"short oif":      third(parseRoute(unix.AF_INET, message(unix.SizeofRtMsg, nlconn.Attr{Kind: unix.RTA_OIF, Value: short}))),
		"lying route":    third(parseRoute(unix.AF_INET, append(make([]byte, unix.SizeofRtMsg), 2, 0, 1, 0))),
		"short link":     second(parseLink(make([]byte, 15))),
		"lying families": second(parseLink(message(unix.SizeofIfInfomsg, nlconn.Attr{Kind: unix.IFLA_AF_SPEC, Value: []byte{9, 0, 10, 0}}))),
	} {
		if err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func second[T any](_ T, err error) error        { return err }
func third[T any](_ T, _ bool, err error) error { return err }

func TestInterfaceWithoutIPv6Settings(t *testing.T) {
	for name, families := range map[string][]byte{
		"no families": nil,
		"no IPv6":     message(0, nlconn.Attr{Kind: unix.AF_INET, Value: make([]byte, 8)}),
		"no settings": message(0, nlconn.Attr{Kind: unix.AF_INET6, Value: nil}),
		"few settings": message(0, nlconn.Attr{Kind: unix.AF_INET6,
			Value: message(0, nlconn.Attr{Kind: 2, Value: make([]byte, 4*26)})}),
	} {
		l, err := parseLink(message(unix.SizeofIfInfomsg, nlconn.Attr{Kind: unix.IFLA_AF_SPEC, Value: families}))
		if err != nil || l.ipv6 {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
}

func TestRuleText(t *testing.T) {
	for _, c := range []struct {
		rule rule
		want string
	}{
		{wantedRule, "32764: fwmark 0x111/0xfff lookup 100"},
		{rule{priority: 5, table: 100}, "5: fwmark 0x0/0x0 lookup 100 with other conditions"},
	} {
		if got := c.rule.String(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func FuzzReplies(f *testing.F) {
	f.Add(message(ruleHeader, nlconn.Attr{Kind: fraPriority, Value: []byte{0xfc, 0x7f, 0, 0}}))
	f.Add(message(unix.SizeofRtMsg, nlconn.Attr{Kind: unix.RTA_DST, Value: []byte{10, 0, 0, 0}}))
	f.Add(message(unix.SizeofIfInfomsg, nlconn.Attr{Kind: unix.IFLA_AF_SPEC, Value: make([]byte, 120)}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, err := parseRule(b); err == nil && r.exact() && !r.ours() {
			t.Errorf("%s is ours as it should be, and is not ours", r)
		}
		if to, _, err := parseRoute(unix.AF_INET6, b); err == nil && to.ours && !strings.HasPrefix(to.text, "default") && len(b) == unix.SizeofRtMsg {
			t.Errorf("%s is ours", to.text)
		}
		_, _ = parseLink(b) // must not panic
	})
}
