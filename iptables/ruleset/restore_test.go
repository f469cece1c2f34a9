package ruleset

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

// What iptables-restore gets stands under testdata/restore, for the configurations that show every rule.
func TestRestoreGoldenText(t *testing.T) {
	for name, config := range map[string]Config{
		"plain":      {CaptureDNS: true, IPv4: true, IPv6: true},
		"no-dns":     {IPv4: true, IPv6: true},
		"interfaces": {CaptureDNS: true, VirtualInterfaces: []string{"k6t-eth0", "tap0"}, IPv4: true, IPv6: true},
		"ingress":    {CaptureDNS: true, Ingress: true, VirtualInterfaces: []string{"tap0"}, IPv4: true, IPv6: true},
		"ipv4-only":  {CaptureDNS: true, IPv4: true},
	} {
		t.Run(name, func(t *testing.T) {
			var archive txtar.Archive
			for _, f := range forms {
				rs := mustBuild(t, config.with(f))
				for program, text := range map[string]func() (string, error){"iptables": rs.IPTables, "ip6tables": rs.IP6Tables} {
					got, err := text()
					if err != nil {
						t.Fatal(err)
					}
					archive.Files = append(archive.Files, txtar.File{Name: f.String() + "." + program, Data: []byte(got)})
				}
			}
			sortFiles(archive.Files)
			got := txtar.Format(&archive)
			path := filepath.Join("testdata/restore", name+".txtar")
			if *update {
				if err := os.WriteFile(path, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("text changed (run with -update if that is meant), -golden +now:\n%s", cmp.Diff(string(want), string(got)))
			}
		})
	}
}

// Every rule of the table is in the text of the families that it concerns, once, in the same order.
func TestRestoreLeavesNoRuleOut(t *testing.T) {
	for name, config := range matrix() {
		for _, f := range forms {
			rs := mustBuild(t, config.with(f))
			for _, ip6 := range []bool{false, true} {
				text, err := rs.restore(ip6)
				if err != nil {
					t.Fatalf("%s, form %s: %v", name, f, err)
				}
				for _, c := range rs.Chains {
					var want, got []string
					for _, r := range c.Rules {
						if concerns(r, ip6) {
							want = append(want, r.Comment)
						}
					}
					begin := "-A FAIRLEAD_" + strings.ToUpper(strings.ReplaceAll(c.Name, "-", "_")) + " "
					for line := range strings.Lines(text) {
						if rule, ok := strings.CutPrefix(line, begin); ok {
							got = append(got, strings.Split(rule, `"`)[1])
						}
					}
					if !cmp.Equal(want, got) {
						t.Errorf("%s, form %s, IPv6 %t, chain %s (-table +restore):\n%s", name, f, ip6, c.Name, cmp.Diff(want, got))
					}
				}
			}
		}
	}
}

func concerns(r Rule, ip6 bool) bool {
	for _, m := range r.Matches {
		if a, ok := m.(Addr); ok && a.Addr.Is6() != ip6 {
			return false
		}
	}
	return true
}

// A rule's words, one of each.
func TestRestoreWords(t *testing.T) {
	for _, tt := range []struct {
		rule Rule
		want string
	}{
		{rule("", Accept{}, InInterface{Name: "eth0"}, OutInterface{Name: "lo", Not: true}), "-i eth0 ! -o lo -j RETURN"},
		{rule("", Drop{}, L4{TCP}), "-p tcp -j DROP"},
		{rule("", Redirect{15053}, Port{UDP, Destination, 53, false}), "-p udp -m udp --dport 53 -j REDIRECT --to-ports 15053"},
		{rule("", SetZone{1}, Port{UDP, Source, 53, true}), "-p udp -m udp ! --sport 53 -j CT --zone 1"},
		{rule("", SetConnectionMark{0x111, 0xfff}, PacketMark{0x539, 0xfff, true}), "-m mark ! --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff"},
		{rule("", RestoreMark{}, ConnectionMark{0x111, 0xfff, false}), "-m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff"},
		{rule("", Accept{}, FirstSYN{}), "-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j RETURN"},
		{rule("", Accept{}, Reset{}), "-p tcp -m tcp --tcp-flags RST" + " RST -j RETURN"},
		{rule("", Accept{}, GoingOn{}), "-p tcp -m tcp ! --tcp-flags RST,ACK NONE -j RETURN"},
		{rule("", Accept{}, Tracked{}), "-m conntrack ! --ctstate UNTRACKED -j RETURN"},
		{rule(`a "word"`, Accept{}, Addr{Source, addr("10.0.0.1"), true}), `! -s 10.0.0.1 -m comment --comment "a 'word'" -j RETURN`},
	} {
		got, concerned, err := tt.rule.restore(false)
		if err != nil || !concerned || got != tt.want {
			t.Errorf("%s: got %q (%t, %v), want %q", tt.rule, got, concerned, err, tt.want)
		}
	}
	if _, concerned, _ := rule("", Accept{}, Addr{Source, addr("fd00::1"), false}).restore(false); concerned {
		t.Error("an IPv6 address is in IPv4's text")
	}
}

// Somebody else's rules in our table are not passed off as something to be restored.
func TestRestoreRefusesWhatIsNotOurs(t *testing.T) {
	ours := Chain{Name: "nat-output", Type: NAT, Hook: Output, Policy: PolicyAccept}
	with := func(change func(*Chain)) Ruleset {
		c := ours
		change(&c)
		return Ruleset{Chains: []Chain{c}}
	}
	for name, rs := range map[string]Ruleset{
		"a set":            {Foreign: []string{"set x\n"}, Chains: []Chain{ours}},
		"a chain's hook":   with(func(c *Chain) { c.Hook = "input" }),
		"no hook":          with(func(c *Chain) { c.Hook = "" }),
		"a chain's policy": with(func(c *Chain) { c.Policy = "drop" }),
		"a chain's type":   with(func(c *Chain) { c.Type = "other" }),
		"a match":          with(func(c *Chain) { c.Rules = []Rule{rule("", Accept{}, Foreign{"x\n"})} }),
		"a statement":      with(func(c *Chain) { c.Rules = []Rule{rule("", nil)} }),
	} {
		if text, err := rs.IPTables(); err == nil || strings.Contains(err.Error(), "\n") || !strings.HasPrefix(err.Error(), "cannot write") {
			t.Errorf("%s: got %v and\n%s", name, err, text)
		}
	}
}

func sortFiles(files []txtar.File) {
	for i := 0; i+1 < len(files); i += 2 { // pairs of one form
		if files[i].Name > files[i+1].Name {
			files[i], files[i+1] = files[i+1], files[i]
		}
	}
}
