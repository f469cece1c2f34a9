package sandbox

import (
	"errors"
	"fmt"
	"testing"
)

// Which of the namespaces that may be a pod's is chosen, by what is known of each: its
// path in the cache, its process, and what its addresses say.
func TestChoose(t *testing.T) {
	no := fmt.Errorf("%w: x", errNone)
	unknown := errors.New("cannot list its addresses")
	cached := func() *candidate { return &candidate{path: "/run/netns/x"} }
	process := func(depth int) *candidate { return &candidate{process: 7, depth: depth} }
	both := func(depth int) *candidate { return &candidate{path: "/run/netns/x", process: 7, depth: depth} }
	wrong := func(c *candidate, err error) *candidate { c.checked, c.wrong = true, err; return c }
	right := func(c *candidate) *candidate { return wrong(c, nil) }
	for _, c := range []struct {
		name       string
		candidates []*candidate
		want       int // -1: none
	}{
		{"none", nil, -1},
		{"cached", []*candidate{cached()}, 0},
		{"two cached", []*candidate{cached(), cached()}, -1},
		{"two cached, one has the addresses", []*candidate{wrong(cached(), no), right(cached())}, 1},
		{"two cached, neither has", []*candidate{wrong(cached(), no), wrong(cached(), no)}, -1},
		{"two cached, both have", []*candidate{right(cached()), right(cached())}, -1},
		{"two cached, both have, one has the process", []*candidate{right(cached()), right(both(0))}, 1},
		{"two cached, one has a process", []*candidate{cached(), both(0)}, 1},
		{"two cached, one has a process, deep down", []*candidate{both(3), cached()}, 0},
		{"two cached, both have processes", []*candidate{both(0), both(0)}, -1},
		{"two cached, one has the nearer process", []*candidate{both(1), both(0)}, 1},
		{"two cached, the process is elsewhere", []*candidate{cached(), cached(), process(0)}, -1},
		{"cached, and the process elsewhere", []*candidate{cached(), process(0)}, -1},
		{"cached, but not its addresses, and a process", []*candidate{wrong(cached(), no), process(0)}, 1},
		{"cached, the addresses unknown, and a process", []*candidate{wrong(cached(), unknown), process(0)}, -1},
		{"cached, the addresses unknown, and a process with the addresses", []*candidate{wrong(cached(), unknown), right(process(0))}, 1},
		{"the addresses unknown", []*candidate{wrong(cached(), unknown)}, -1},
		{"a process", []*candidate{process(2)}, 0},
		{"two processes, one nearer", []*candidate{process(2), process(0), process(1)}, 1},
		{"two as near", []*candidate{process(1), process(2), process(1)}, -1},
		{"two, the nearer has not the addresses", []*candidate{wrong(process(0), no), right(process(1))}, 1},
		{"two, both have the addresses", []*candidate{right(process(0)), right(process(1))}, 0},
	} {
		want := (*candidate)(nil)
		if c.want >= 0 {
			want = c.candidates[c.want]
		}
		if got := (&pod{candidates: c.candidates}).choose(); got != want {
			t.Errorf("%s: chose %+v, want %+v", c.name, got, want)
		}
	}
}

func TestEntryOf(t *testing.T) {
	entries := []entry{{container: "c0", ifname: "eth0"}, {container: "c1", ifname: "net1"}, {container: "c1", ifname: "eth0"}, {ifname: "eth9"}}
	for _, c := range []struct {
		name       string
		containers []string
		want       string
	}{
		{"none", nil, ""},
		{"by the whole name", []string{"app", "c1"}, "c1/eth0"},
		{"by the end of the name", []string{"cri-containerd-c0"}, "c0/eth0"},
		{"not by any end", []string{"xc1", "-"}, ""},
	} {
		got := ""
		if e := (&pod{entries: entries}).entryOf(&candidate{containers: c.containers}); e != nil {
			got = e.container + "/" + e.ifname
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
