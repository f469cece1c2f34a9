package bench

import (
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// xtables is the other side: one flavour of iptables' programs.
type xtables struct {
	name     string    // iptables-nft
	programs [2]string // for IPv4 and IPv6
}

// flavours are those that are installed.
func flavours() []xtables {
	var found []xtables
	for _, flavour := range []string{"nft", "legacy"} {
		x := xtables{"iptables-" + flavour, [2]string{"iptables-" + flavour, "ip6tables-" + flavour}}
		if _, err := exec.LookPath(x.programs[0] + "-restore"); err == nil {
			found = append(found, x)
		}
	}
	return found
}

func (x xtables) save(n *netlab.NS) error {
	for _, p := range x.programs {
		if _, err := n.Run(p + "-save"); err != nil {
			return err
		}
	}
	return nil
}

// apply restores the rules of an ordinary pod and returns how long that took; writing
// the files is not counted.
func (x xtables) apply(n *netlab.NS, dir string) (time.Duration, error) {
	rules, err := ruleset.Build(ruleset.Config{CaptureDNS: true, IPv4: true, IPv6: true, Form: ruleset.FormFull})
	if err != nil {
		return 0, err
	}
	var files [2]string
	for i, text := range []func() (string, error){rules.IPTables, rules.IP6Tables} {
		files[i] = filepath.Join(dir, x.programs[i]+".rules")
		rules, err := text()
		if err == nil {
			err = os.WriteFile(files[i], []byte(rules), 0o600)
		}
		if err != nil {
			return 0, err
		}
	}
	return timed(func() error {
		if err := x.save(n); err != nil {
			return err
		}
		for i, p := range x.programs {
			if _, err := n.Run(p+"-restore", "--noflush", files[i]); err != nil {
				return err
			}
		}
		return nil
	})
}
