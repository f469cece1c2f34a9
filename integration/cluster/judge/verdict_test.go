package judge

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// at is a time of the test's, in seconds.
func at(seconds float64) time.Time {
	return time.Date(2026, 1, 2, 3, 4, 0, 0, time.UTC).Add(time.Duration(seconds * float64(time.Second)))
}

// segments are lines of "second from to what".
func segments(lines ...string) []Segment {
	var list []Segment
	for _, line := range lines {
		words := strings.SplitN(line, " ", 4)
		second, err := time.ParseDuration(words[0] + "s")
		if err != nil {
			panic(err)
		}
		list = append(list, Segment{at(second.Seconds()), netip.MustParseAddrPort(words[1]), netip.MustParseAddrPort(words[2]), words[3]})
	}
	return list
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

// A run as it should be: one bypass on purpose, of each address, on each node.
func goodRun() ([]Recording, []Pod) {
	return []Recording{
			{
				Node:     "n1",
				Untagged: segments("1 10.244.1.9:1 10.244.1.1:9 a SYN", "1.5 [fd00::1:9]:1 [fd00::1:1]:9 a SYN"),
				Tagged:   map[netip.Addr]int{netip.MustParseAddr("10.244.1.5"): 3, netip.MustParseAddr("fd00::1:5"): 4},
			},
			{
				Node:     "n2",
				Untagged: segments("2 10.244.2.9:1 10.244.2.1:9 a SYN", "3 10.244.2.7:5 10.244.1.5:80 payload"),
			},
		}, []Pod{
			{Node: "n1", Namespace: "default", Name: "client", Addrs: addrs("10.244.1.5", "fd00::1:5"), Captured: true},
			{Node: "n1", Namespace: "judge", Name: "bypasser-n1", Addrs: addrs("10.244.1.9", "fd00::1:9"), OnPurpose: true},
			{Node: "n2", Namespace: "judge", Name: "bypasser-n2", Addrs: addrs("10.244.2.9"), OnPurpose: true},
			{Node: "n2", Namespace: "default", Name: "free", Addrs: addrs("10.244.2.7")},
		}
}

func TestAGoodRun(t *testing.T) {
	v := Judge(goodRun())
	const want = `bypasses: 0
on purpose, and found: 3
  03:04:01.000000 n1 judge/bypasser-n1 10.244.1.9:1 > 10.244.1.1:9: a SYN without the proxy's tag
  03:04:01.500000 n1 judge/bypasser-n1 [fd00::1:9]:1 > [fd00::1:1]:9: a SYN without the proxy's tag
  03:04:02.000000 n2 judge/bypasser-n2 10.244.2.9:1 > 10.244.2.1:9: a SYN without the proxy's tag
tagged segments that were seen of captured pods:
  default/client 7
doubts: 0
`
	if diff := cmp.Diff(want, v.String()); diff != "" || v.Err() != nil {
		t.Errorf("error %v; -want +got:\n%s", v.Err(), diff)
	}
}

// What is added to a good run, and what is then wrong with it.
func TestVerdict(t *testing.T) {
	captured := func(change func(*Pod)) func([]Recording, []Pod) []Pod {
		return func(_ []Recording, pods []Pod) []Pod {
			p := Pod{Node: "n2", Namespace: "default", Name: "server", Addrs: addrs("10.244.2.8", "fd00::2:8"), Captured: true}
			if change != nil {
				change(&p)
			}
			return append(pods, p)
		}
	}
	exempt := func(e Exemption) func([]Recording, []Pod) []Pod {
		return captured(func(p *Pod) { p.Exempt = []Exemption{e} })
	}
	connect := segments("5 10.244.2.8:4000 10.244.1.5:80 a SYN", "5.1 10.244.2.8:4000 10.244.1.5:80 payload")
	const bypass = "captured pods bypassed the proxy:\n" +
		"  03:04:05.000000 n2 default/server 10.244.2.8:4000 > 10.244.1.5:80: a SYN without the proxy's tag, the first of 2 segments\n"
	for _, test := range []struct {
		name   string
		change func([]Recording, []Pod) []Pod
		sent   []Segment // on n2
		want   string
	}{
		{name: "a connection", change: captured(nil), sent: connect, want: bypass},
		{name: "several", change: captured(nil),
			sent: segments("8 [fd00::2:8]:8080 [fd00::1:5]:4000 payload", "7 10.244.2.8:8080 10.244.1.5:4000 a SYN that answers"),
			want: "captured pods bypassed the proxy:\n" +
				"  03:04:07.000000 n2 default/server 10.244.2.8:8080 > 10.244.1.5:4000: a SYN that answers without the proxy's tag\n" +
				"  03:04:08.000000 n2 default/server [fd00::2:8]:8080 > [fd00::1:5]:4000: payload without the proxy's tag\n"},
		{name: "answers to probes", change: captured(nil),
			sent: segments("5 10.244.2.8:8080 169.254.7.127:4000 payload", "5 [fd00::2:8]:8080 [fd16:9254:7127:1337:ffff:ffff:ffff:ffff]:4000 a SYN that answers")},
		{name: "almost answers to probes", change: captured(nil), sent: segments("5 10.244.2.8:8080 169.254.7.126:4000 payload"),
			want: "captured pods bypassed the proxy:\n  03:04:05.000000 n2 default/server 10.244.2.8:8080 > 169.254.7.126:4000: payload without the proxy's tag\n"},
		{name: "an exempt port", change: exempt(Exemption{RemotePort: 80}), sent: connect},
		{name: "another port is exempt", change: exempt(Exemption{RemotePort: 4000}), sent: connect, want: bypass},
		{name: "an exempt port of the pod's", change: exempt(Exemption{Port: 4000}), sent: connect},
		{name: "another port of the pod's is exempt", change: exempt(Exemption{Port: 80}), sent: connect, want: bypass},
		{name: "an exempt network", change: exempt(Exemption{Remote: netip.MustParsePrefix("10.244.1.0/24")}), sent: connect},
		{name: "another network is exempt", change: exempt(Exemption{Remote: netip.MustParsePrefix("10.244.2.0/24")}), sent: connect, want: bypass},
		{name: "a kept connection", change: exempt(Exemption{4000, netip.MustParsePrefix("10.244.1.5/32"), 80}), sent: connect},
		{name: "another than the kept connection", change: exempt(Exemption{4001, netip.MustParsePrefix("10.244.1.5/32"), 80}), sent: connect, want: bypass},
		{name: "a pod that is not captured", change: captured(func(p *Pod) { p.Captured = false }), sent: connect},
		{name: "a pod of another node", change: captured(func(p *Pod) { p.Node = "n1" }), sent: connect,
			want: "n2: 2 untagged segments from 10.244.2.8, which was no known pod's then"},
		{name: "nobody", sent: connect, want: "n2: 2 untagged segments from 10.244.2.8, which was no known pod's then"},
		{name: "before the pod was there", change: captured(func(p *Pod) { p.From = at(5.1) }), sent: connect,
			want: "captured pods bypassed the proxy:\n  03:04:05.100000 n2 default/server 10.244.2.8:4000 > 10.244.1.5:80: payload without the proxy's tag\n\n" +
				"n2: 1 untagged segments from 10.244.2.8, which was no known pod's then"},
		{name: "after the pod had gone", change: captured(func(p *Pod) { p.To = at(5) }), sent: connect,
			want: "n2: 2 untagged segments from 10.244.2.8, which was no known pod's then"},
		{name: "its address is another's already", sent: connect, change: func(r []Recording, pods []Pod) []Pod {
			pods = captured(func(p *Pod) { p.From = at(1) })(r, pods)
			return captured(func(p *Pod) { p.From, p.Name, p.Captured = at(4), "next", false })(r, pods)
		}},
		{name: "its address was another's before", sent: connect, change: func(r []Recording, pods []Pod) []Pod {
			pods = captured(func(p *Pod) { p.From = at(4) })(r, pods)
			return captured(func(p *Pod) { p.From, p.Name, p.Captured = at(1), "before", false })(r, pods)
		}, want: bypass},
		{name: "lost", want: "n1: 7 packets were lost before anybody looked at them", change: func(r []Recording, pods []Pod) []Pod {
			r[0].Lost = 7
			return pods
		}},
		{name: "blind", want: "n1: judge/bypasser-n1 bypassed on purpose from 10.244.1.9, and that was not found\n" +
			"n1: judge/bypasser-n1 bypassed on purpose from fd00::1:9, and that was not found",
			change: func(r []Recording, pods []Pod) []Pod {
				r[0].Untagged = nil
				return pods
			}},
		{name: "blind to IPv6", want: "n1: judge/bypasser-n1 bypassed on purpose from fd00::1:9, and that was not found",
			change: func(r []Recording, pods []Pod) []Pod {
				r[0].Untagged = r[0].Untagged[:1]
				return pods
			}},
		{name: "nobody bypassed on purpose", want: "n1: no pod bypassed on purpose, so that nobody knows whether it would have been found",
			change: func(_ []Recording, pods []Pod) []Pod {
				pods[1].OnPurpose = false
				return pods
			}},
	} {
		recordings, pods := goodRun()
		recordings[1].Untagged = append(recordings[1].Untagged, test.sent...)
		if test.change != nil {
			pods = test.change(recordings, pods)
		}
		got := ""
		if err := Judge(recordings, pods).Err(); err != nil {
			got = err.Error()
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}
