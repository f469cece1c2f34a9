package hostnet

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// full is an exemption of 250 pods of two addresses, with guards.
func full(b *testing.B) *Exemption {
	netlab.Kernel(b)
	n := newNode(b, 0)
	e := open(b, config(n.host))
	var commands strings.Builder
	for i := range 250 {
		fmt.Fprintf(&commands, "link add veth%d type bridge\n", i)
	}
	script := filepath.Join(b.TempDir(), "links")
	if err := os.WriteFile(script, []byte(commands.String()), 0o600); err != nil {
		b.Fatal(err)
	}
	netlab.MustRun(b, n.host, "ip", "-batch", script)
	for i := range 250 {
		set(b, e, fmt.Sprintf("pod-%d", i), many(i))
	}
	if err := e.KeepOnly(b.Context(), nil); err != nil {
		b.Fatal(err)
	}
	return e
}

func many(i int) Pod {
	v6 := netip.MustParseAddr("fd00::").As16()
	v6[15] = byte(i)
	return Pod{
		Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), netip.AddrFrom16(v6)},
		Links: []string{fmt.Sprintf("veth%d", i)},
	}
}

// One pod more and one pod less, beside 249 others.
func BenchmarkSetDelete(b *testing.B) {
	e := full(b)
	for b.Loop() {
		remove(b, e, "pod-7")
		set(b, e, "pod-7", many(7))
	}
}

// The same without the guard at the interface.
func BenchmarkSetDeleteAddresses(b *testing.B) {
	e := full(b)
	pod := many(7)
	pod.Links = nil
	for b.Loop() {
		remove(b, e, "pod-7")
		set(b, e, "pod-7", pod)
	}
}

// A sweep that finds the ruleset's number changed, and the table as it should be.
func BenchmarkRead(b *testing.B) {
	e := full(b)
	for b.Loop() {
		e.forgetRead("")
		e.turn(b.Context())
	}
}

// A sweep that finds the number as it was.
func BenchmarkUnchanged(b *testing.B) {
	e := full(b)
	e.forgetRead("")
	e.turn(b.Context())
	for b.Loop() {
		e.forgetChanged(b.Context())
	}
}

// The kubelet is where it was; none is there and all processes are looked at.
func BenchmarkLook(b *testing.B) {
	e := full(b)
	for b.Loop() {
		e.turn(b.Context())
	}
}

// Everything is put back, as after somebody's flush of the ruleset.
func BenchmarkRestore(b *testing.B) {
	e := full(b)
	for b.Loop() {
		if err := e.remove(b.Context()); err != nil {
			b.Fatal(err)
		}
		e.turn(b.Context())
	}
}
