package hostnet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// The table as an operator sees it.
func TestTable(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 1)
	e := open(t, config(n.host))
	set(t, e, "web", podOf(0))
	const want = `table inet fairlead {
	set probed4 {
		type ipv4_addr
		size 4096
		elements = { 10.0.0.2 comment "web" }
	}

	set probed6 {
		type ipv6_addr
		size 4096
		elements = { fd00::2 comment "web" }
	}

	chain spoofed {
		ip saddr 169.254.7.127 drop comment "the probes' source is the host's alone"
		ip6 saddr fd16:9254:7127:1337:ffff:ffff:ffff:ffff drop comment "the probes' source is the host's alone"
	}

	chain prerouting {
		type filter hook prerouting priority -500; policy accept;
		jump spoofed comment "the probes' source arrives from nowhere"
	}

	chain output {
		type filter hook output priority mangle - 1; policy accept;
		ct state new meta l4proto tcp ip daddr @probed4 ct mark set ct mark | 0x00001000 comment "health probes: by any host process"
		ct state new meta l4proto tcp ip6 daddr @probed6 ct mark set ct mark | 0x00001000 comment "health probes: by any host process"
	}

	chain postrouting {
		type nat hook postrouting priority -190; policy accept;
		ip daddr @probed4 ct mark & 0x00001000 == 0x00001000 snat ip to 169.254.7.127 comment "health probes: their source"
		ip6 daddr @probed6 ct mark & 0x00001000 == 0x00001000 snat ip6 to fd16:9254:7127:1337:ffff:ffff:ffff:ffff comment "health probes: their source"
	}

	chain from-veth0 {
		type filter hook ingress device "veth0" priority -500; policy accept;
		jump spoofed comment "web"
	}
}
`
	if got := netlab.NftList(t, n.host); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	asWanted(t, e)
}

// Every way of recognising the kubelet comes back from the kernel as it was written.
func TestModesReadBack(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 0)
	e := open(t, config(n.host))
	for _, k := range []Kubelet{
		{Mode: ByCgroup, id: 1<<40 + 7, level: 2},
		{Mode: ByClass, class: 0x100001},
		{Mode: AnyHostProcess},
	} {
		e.status.Kubelet = k
		if err := e.apply(t.Context()); err != nil {
			t.Errorf("%s: %v", k.Mode, err)
		}
		if drift, err := e.Check(t.Context()); err != nil || drift != nil {
			t.Errorf("%s: %q, %v", k.Mode, drift, err)
		}
	}
}

// A new pod's Set comes before the old pod's Delete.
func TestAddressIsReused(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 2)
	e := open(t, config(n.host))
	both := Pod{Addrs: append(podOf(0).Addrs, podOf(1).Addrs...)}
	var got []string
	note := func() { got = append(got, strings.ReplaceAll(members(t, e), "\n", "; ")) }
	set(t, e, "old", both)
	note()
	set(t, e, "new", podOf(0))
	note()
	set(t, e, "old", both) // a repetition is not a new claim
	note()
	remove(t, e, "old")
	note()
	remove(t, e, "old")
	remove(t, e, "never seen")
	note()
	remove(t, e, "new")
	note()
	want := []string{
		"address 10.0.0.2 of pod old; address 10.0.0.3 of pod old; address fd00::2 of pod old; address fd00::3 of pod old",
		"address 10.0.0.2 of pod new; address 10.0.0.3 of pod old; address fd00::2 of pod new; address fd00::3 of pod old; guard at veth0 of pod new",
		"address 10.0.0.2 of pod new; address 10.0.0.3 of pod old; address fd00::2 of pod new; address fd00::3 of pod old; guard at veth0 of pod new",
		"address 10.0.0.2 of pod new; address fd00::2 of pod new; guard at veth0 of pod new",
		"address 10.0.0.2 of pod new; address fd00::2 of pod new; guard at veth0 of pod new",
		"",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Whatever is set and deleted in whatever order, also by agents that follow each other,
// the kernel holds what the newest claims are.
func TestAnyOrder(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 4)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	e := open(t, config(n.host))
	var model []claim // the newest last
	for range 300 {
		uid := fmt.Sprintf("pod-%d", r.IntN(5))
		switch r.IntN(8) {
		case 0:
			remove(t, e, uid)
			model = slices.DeleteFunc(model, func(c claim) bool { return c.uid == uid })
		case 1: // the agent is another one; the claims that were overruled are forgotten
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			e = open(t, config(n.host))
			model = owners(model)
			if err := e.KeepOnly(t.Context(), []string{"pod-0", "pod-1", "pod-2", "pod-3", "pod-4"}); err != nil {
				t.Fatal(err)
			}
		case 2: // the table is gone, or what is in it
			netlab.MustRun(t, n.host, "nft", "flush", "ruleset")
		default:
			var p Pod
			for i := range n.pods {
				if r.IntN(3) == 0 {
					p.Addrs, p.Links = append(p.Addrs, podOf(i).Addrs[:1+r.IntN(2)]...), append(p.Links, podOf(i).Links[:r.IntN(2)]...)
				}
			}
			set(t, e, uid, p)
			model = claimed(model, uid, p)
		}
		e.forgetRead("")
		if err := e.apply(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, want := members(t, e), text(model); got != want {
			t.Fatalf("got:\n%s\nwant:\n%s", got, want)
		}
	}
}

// A claim is of an address or an interface, as the table's members have it.
type claim struct{ thing, uid string }

func claimed(model []claim, uid string, p Pod) []claim {
	var things []string
	for _, a := range p.Addrs {
		things = append(things, "address "+a.String())
	}
	for _, link := range p.Links {
		things = append(things, "guard at "+link)
	}
	model = slices.DeleteFunc(model, func(c claim) bool { return c.uid == uid && !slices.Contains(things, c.thing) })
	for _, thing := range things {
		if !slices.Contains(model, claim{thing, uid}) {
			model = append(model, claim{thing, uid})
		}
	}
	return model
}

func owners(model []claim) []claim {
	var all []claim
	for i, c := range model {
		if !slices.ContainsFunc(model[i+1:], func(later claim) bool { return later.thing == c.thing }) {
			all = append(all, c)
		}
	}
	return all
}

func text(model []claim) string {
	all := table{addresses: map[netip.Addr]string{}, guards: map[string]string{}}
	for _, c := range owners(model) {
		if addr, ok := strings.CutPrefix(c.thing, "address "); ok {
			all.addresses[netip.MustParseAddr(addr)] = c.uid
		} else {
			all.guards[strings.TrimPrefix(c.thing, "guard at ")] = c.uid
		}
	}
	return strings.Join(all.members(), "\n")
}

// What cannot be a pod's is refused, and nothing is written.
func TestWhatIsRefused(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 0)
	e := open(t, config(n.host))
	var got []string
	for _, a := range []string{"127.0.0.1", "::1", "0.0.0.0", "fe80::1", "224.0.0.1", "fd00::1%eth0"} {
		if err := e.Set(t.Context(), "web", Pod{Addrs: []netip.Addr{netip.MustParseAddr(a)}}); err != nil {
			got = append(got, err.Error())
		}
	}
	if err := e.Set(t.Context(), "", Pod{}); err != nil {
		got = append(got, err.Error())
	}
	const begin = `cannot exempt the health probes of pod "web": `
	want := []string{
		begin + "127.0.0.1 cannot be a pod's address", begin + "::1 cannot be a pod's address", begin + "0.0.0.0 cannot be a pod's address",
		begin + "fe80::1 cannot be a pod's address", begin + "224.0.0.1 cannot be a pod's address", begin + "fd00::1%eth0 cannot be a pod's address",
		`cannot exempt the health probes of pod "": it has no UID`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if got := netlab.NftList(t, n.host); got != "" {
		t.Errorf("written all the same:\n%s", got)
	}
}

// A caller whose time is up learns so, and the wish stands.
func TestWishStands(t *testing.T) {
	netlab.Kernel(t)
	n := newNode(t, 1)
	e := open(t, config(n.host))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := e.Set(over, "web", podOf(0)); !errors.Is(err, context.Canceled) {
		t.Errorf("Set after the end of its context: %v", err)
	}
	run(t, e)
	mode(t, e, AnyHostProcess)
	if err := e.Delete(over, "web"); !errors.Is(err, context.Canceled) {
		t.Errorf("Delete after the end of its context: %v", err)
	}
	netlab.Eventually(t, func() error {
		if got := members(t, e); got != "" {
			return fmt.Errorf("still there: %s", got)
		}
		return nil
	})
}
