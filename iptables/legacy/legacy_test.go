package legacy

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func TestMain(m *testing.M) { netlab.Main(m, 4) }

func wantTables(t *testing.T, n *netlab.NS, want ...string) {
	t.Helper()
	found, err := Tables(n.Handle)
	lines := make([]string, len(found))
	for i, f := range found {
		lines[i] = f.String()
	}
	if got := strings.Join(lines, "\n"); err != nil || got != strings.Join(want, "\n") {
		t.Errorf("got %v\n%s\nwant\n%s", err, got, strings.Join(want, "\n"))
	}
}

// Every table of both families: made, filled, and emptied.
func TestTables(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	pod, other := netlab.NewNS(t, "pod"), netlab.NewNS(t, "other")
	iptables := func(line string) {
		t.Helper()
		words := strings.Fields(line)
		netlab.MustRun(t, pod, words[0], words[1:]...)
	}
	wantTables(t, pod)
	for _, table := range []string{"nat", "raw", "mangle", "filter", "security"} {
		for family, command := range map[string]string{"ip": "iptables-legacy", "ip6": "ip6tables-legacy"} {
			line := fmt.Sprintf("%s -t %s ", command, table)
			is := fmt.Sprintf("iptables-legacy table %s %s: ", family, table)
			iptables(line + "-S")
			wantTables(t, pod)
			iptables(line + "-A OUTPUT -p tcp -j ACCEPT")
			wantTables(t, pod, is+"1 entries")
			iptables(line + "-A OUTPUT -p udp -j ACCEPT")
			wantTables(t, pod, is+"2 entries")
			iptables(line + "-N ISTIO_OUTPUT")
			wantTables(t, pod, is+"4 entries")
			iptables(line + "-F")
			iptables(line + "-X")
			if table != "nat" { // which iptables gives no other policy
				iptables(line + "-P OUTPUT DROP")
				wantTables(t, pod)
			}
		}
	}
	iptables("iptables-legacy -t raw -A OUTPUT -p tcp -j NOTRACK")
	iptables("iptables-legacy -t mangle -A OUTPUT -j MARK --set-mark 0x539")
	iptables("ip6tables-legacy -t nat -A OUTPUT -p tcp -j REDIRECT --to-ports 9")
	netlab.MustRun(t, pod, "iptables-nft", "-t", "nat", "-A", "OUTPUT", "-j", "ACCEPT") // not one of these
	found, err := Tables(pod.Handle)
	if err != nil || len(found) != 3 {
		t.Errorf("%v, %v", found, err)
	}
	wantTables(t, other)
}

// Looking makes no table: the kernel makes one when it is first asked about by name.
func TestLookingMakesNoTable(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "pod")
	for range 2 {
		wantTables(t, n)
	}
	for _, f := range families {
		if names, err := n.Run("cat", "/proc/thread-self/net/"+f.names); err != nil || names != "" {
			t.Errorf("%s: %q, %v", f.names, names, err)
		}
	}
}

// By a directory in place of /proc: this kernel has iptables-legacy, and cannot be made to have none.
func TestKernelWithoutTables(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "pod")
	netlab.MustRun(t, n, "iptables-legacy", "-A", "OUTPUT", "-j", "ACCEPT")
	netlab.MustRun(t, n, "ip6tables-legacy", "-A", "OUTPUT", "-j", "ACCEPT")
	for _, tt := range []struct{ files, want string }{
		{"", "[]"},
		{"ip_tables_names", "[iptables-legacy table ip filter: 1 entries]"},
		{"ip6_tables_names", "[iptables-legacy table ip6 filter: 1 entries]"},
		{"ip_tables_names ip6_tables_names", "[iptables-legacy table ip filter: 1 entries iptables-legacy table ip6 filter: 1 entries]"},
	} {
		proc := t.TempDir()
		for _, name := range strings.Fields(tt.files) {
			if err := os.WriteFile(filepath.Join(proc, name), []byte("filter\nno-such-table\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if found, err := tables(n.Handle, proc); err != nil || fmt.Sprint(found) != tt.want {
			t.Errorf("%q: %v, %v; want %s", tt.files, found, err, tt.want)
		}
	}
}

func TestTablesFail(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "pod")
	proc := t.TempDir()
	if err := os.Mkdir(filepath.Join(proc, "ip_tables_names"), 0o700); err != nil {
		t.Fatal(err)
	}
	if found, err := tables(n.Handle, proc); !errors.Is(err, unix.EISDIR) || found != nil {
		t.Errorf("a list that cannot be read: %v, %v", found, err)
	}
	gone, err := n.Handle.Dup()
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	if found, err := Tables(gone); !errors.Is(err, os.ErrClosed) || found != nil {
		t.Errorf("a namespace that is closed: %v, %v", found, err)
	}
}

func BenchmarkTables(b *testing.B) {
	netlab.Kernel(b)
	n := netlab.NewNS(b, "pod")
	run := func(b *testing.B) {
		for b.Loop() {
			if _, err := Tables(n.Handle); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.Run("none", run)
	for _, command := range []string{"iptables-legacy", "ip6tables-legacy"} {
		for _, table := range []string{"nat", "raw"} {
			netlab.MustRun(b, n, command, "-t", table, "-A", "OUTPUT", "-j", "ACCEPT")
		}
	}
	b.Run("four", run)
	b.Run("no support", func(b *testing.B) {
		proc := b.TempDir()
		for b.Loop() {
			if _, err := tables(n.Handle, proc); err != nil {
				b.Fatal(err)
			}
		}
	})
}
