package watch

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
)

const testPort = 77

// notification is a message as the kernel sends them.
func notification(kind uint16, payload []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(payload)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, make([]byte, 6)...)
	b = binary.NativeEndian.AppendUint32(b, testPort)
	return append(b, payload...)
}

// generation is the notification at a transaction's end.
func generation(t testing.TB, pid uint32, name string) []byte {
	t.Helper()
	payload := nlconn.AppendAttr(nlconn.NetfilterHeader(unix.AF_UNSPEC), unix.NFTA_GEN_ID, []byte{0, 0, 0, 9})
	payload = nlconn.AppendAttr(payload, unix.NFTA_GEN_PROC_PID, binary.BigEndian.AppendUint32(nil, pid))
	return notification(newGeneration, nlconn.AppendText(payload, unix.NFTA_GEN_PROC_NAME, name))
}

// hear reads datagrams as a socket does that has as much room as begin bytes.
func hear(s *source, begin int, datagrams ...[]byte) (c Change) {
	for _, d := range datagrams {
		s.take(&c, d[:min(begin, len(d))], len(d))
	}
	return c
}

func TestNotifications(t *testing.T) {
	long := func(b []byte) []byte {
		b = append(bytes.Clone(b), make([]byte, 1000)...)
		binary.NativeEndian.PutUint32(b, uint32(len(b)))
		return b
	}
	says := func(size uint32) []byte {
		b := notification(unix.RTM_NEWRULE, make([]byte, 12))
		binary.NativeEndian.PutUint32(b, size)
		return b
	}
	old := notification(newGeneration, nlconn.AppendAttr(nlconn.NetfilterHeader(0), unix.NFTA_GEN_ID, make([]byte, 4)))
	odd := notification(newGeneration, append(nlconn.NetfilterHeader(0), 200, 0, 1, 0))
	for name, tt := range map[string]struct {
		source    *source
		datagrams [][]byte
		want      Change
	}{
		"nothing":         {&rtnl, nil, Change{}},
		"rule":            {&rtnl, [][]byte{notification(unix.RTM_NEWRULE, nil)}, Change{What: Rules}},
		"no rule":         {&rtnl, [][]byte{notification(unix.RTM_DELRULE, nil)}, Change{What: Rules}},
		"route":           {&rtnl, [][]byte{notification(unix.RTM_NEWROUTE, nil)}, Change{What: Routes}},
		"no route":        {&rtnl, [][]byte{notification(unix.RTM_DELROUTE, nil)}, Change{What: Routes}},
		"link":            {&rtnl, [][]byte{long(notification(unix.RTM_NEWLINK, nil))}, Change{What: Links}},
		"no link":         {&rtnl, [][]byte{notification(unix.RTM_DELLINK, nil)}, Change{What: Links}},
		"address, link":   {&rtnl, [][]byte{notification(unix.RTM_NEWADDR, nil), notification(unix.RTM_NEWLINK, nil)}, Change{What: Addresses | Links}},
		"no address":      {&rtnl, [][]byte{notification(unix.RTM_DELADDR, nil)}, Change{What: Addresses}},
		"unknown":         {&rtnl, [][]byte{notification(unix.RTM_NEWQDISC, nil)}, Change{What: allOfRoute}},
		"overrun":         {&rtnl, [][]byte{notification(unix.NLMSG_OVERRUN, nil)}, Change{What: allOfRoute}},
		"empty":           {&rtnl, [][]byte{{}}, Change{What: allOfRoute}},
		"half a header":   {&rtnl, [][]byte{notification(unix.RTM_NEWRULE, nil)[:9]}, Change{What: allOfRoute}},
		"size 0":          {&rtnl, [][]byte{says(0)}, Change{What: allOfRoute}},
		"too small":       {&rtnl, [][]byte{says(15)}, Change{What: allOfRoute}},
		"too large":       {&rtnl, [][]byte{says(29)}, Change{What: allOfRoute}},
		"enormous":        {&rtnl, [][]byte{says(0xffffffff)}, Change{What: allOfRoute}},
		"padded":          {&rtnl, [][]byte{says(25)}, Change{What: Rules}},
		"more than one":   {&rtnl, [][]byte{says(16)}, Change{What: allOfRoute}},
		"nft":             {&nftables, [][]byte{generation(t, 5, "nft")}, Change{Ruleset, []Process{{5, "nft", testPort}}}},
		"nft twice":       {&nftables, [][]byte{generation(t, 5, "nft"), generation(t, 5, "nft")}, Change{Ruleset, []Process{{5, "nft", testPort}}}},
		"two":             {&nftables, [][]byte{generation(t, 5, "a"), generation(t, 6, "b"), generation(t, 5, "a")}, Change{Ruleset, []Process{{6, "b", testPort}, {5, "a", testPort}}}},
		"an odd name":     {&nftables, [][]byte{generation(t, 5, "a\x1b[2J\n\xff\u202eé")}, Change{Ruleset, []Process{{5, "a?[2J???é", testPort}}}},
		"no name":         {&nftables, [][]byte{old}, Change{What: Ruleset}},
		"odd attributes":  {&nftables, [][]byte{odd}, Change{What: Ruleset}},
		"no header":       {&nftables, [][]byte{notification(newGeneration, nil)}, Change{What: Ruleset}},
		"another kind":    {&nftables, [][]byte{notification(unix.NFNL_SUBSYS_NFTABLES<<8, nil)}, Change{What: Ruleset}},
		"cut nft":         {&nftables, [][]byte{long(generation(t, 5, "nft"))}, Change{What: Ruleset}},
		"half nft header": {&nftables, [][]byte{generation(t, 5, "nft")[:9]}, Change{What: Ruleset}},
	} {
		if diff := cmp.Diff(tt.want, hear(tt.source, 128, tt.datagrams...)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
}

func TestTheLatestProcessesAreNamed(t *testing.T) {
	var datagrams [][]byte
	for pid := range uint32(100) {
		datagrams = append(datagrams, generation(t, pid, "nft"))
	}
	got := hear(&nftables, 128, datagrams...).By
	if len(got) != maxProcesses || got[0].PID != 100-maxProcesses || got[maxProcesses-1].PID != 99 {
		t.Errorf("%+v", got)
	}
}

func TestWhatString(t *testing.T) {
	for what, want := range map[What]string{
		0:                       "",
		Ruleset:                 "ruleset",
		Links | Rules:           "ip rules, links",
		Ruleset | allOfRoute:    "ruleset, ip rules, routes, links, addresses",
		1 << len(whatNames):     "",
		Addresses | 1<<7 | 1<<6: "addresses",
	} {
		if got := what.String(); got != want {
			t.Errorf("%b: %q, want %q", what, got, want)
		}
	}
}

func TestPace(t *testing.T) {
	now := time.Now()
	var p pace
	served := func(after time.Duration) int { // as often as it can at one moment
		now = now.Add(after)
		for n := 1; ; n++ {
			if p.exhausted(now) {
				return n
			}
		}
	}
	const burst = int(credit/interval) + 1
	for i, want := range []int{burst, 1, 1, 1} {
		if got := served(interval); got != want {
			t.Errorf("round %d: heard %d times, want %d", i, got, want)
		}
	}
	if got := served(interval * 5 / 2); got != 2 {
		t.Errorf("after a short rest: heard %d times", got)
	}
	if got := served(time.Hour); got != burst {
		t.Errorf("after an hour: heard %d times, want %d", got, burst)
	}
}

func FuzzNotification(f *testing.F) {
	f.Add(generation(f, 5, "nft"), 128)
	f.Add(generation(f, 5, "\x00\n"), 60)
	f.Add(notification(unix.RTM_NEWLINK, make([]byte, 300)), 256)
	f.Add([]byte{}, 0)
	f.Fuzz(func(t *testing.T, d []byte, begin int) {
		for _, s := range []*source{&nftables, &rtnl} {
			c := hear(s, max(begin, 0), d)
			if c.What == 0 || c.What&^s.all != 0 || bits.OnesCount8(uint8(c.What)) > 1 && c.What != s.all {
				t.Errorf("a notification of %s stands for %q", s.all, c.What)
			}
			if len(c.By) > 1 || c.By != nil && s != &nftables {
				t.Errorf("one notification of %s is by %+v", s.all, c.By)
			}
			for _, p := range c.By {
				if strings.ContainsFunc(p.Name, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("name %q", p.Name)
				}
			}
		}
	})
}
