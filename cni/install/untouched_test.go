package install

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// In mode owned nobody else's file is written, not even with its own bytes: inode and times
// stay, for whoever watches it, until its owner writes it.
func TestOthersFilesStayAsTheyAre(t *testing.T) {
	p := newPlace(t)
	others := []string{"10-net.conflist", "20-other.conf", "net/tuning.conf"}
	put(t, filepath.Join(p.conf, "net/tuning.conf"), `{"type": "tuning"}`)
	p.primary("20-other.conf", `{"cniVersion": "0.4.0", "name": "other", "type": "ptp"}`)
	p.primary("10-net.conflist", bridgeList)
	before := p.stamps(others...)
	same := func(step string) {
		t.Helper()
		if diff := cmp.Diff(before, p.stamps(others...)); diff != "" {
			t.Errorf("%s: files of others were written (-before +after):\n%s", step, diff)
		}
	}
	p.look(t.Context())
	same("the agent is not ready")
	close(p.ready)
	for range 2 {
		p.look(t.Context())
		same("installed")
	}
	if err := os.Remove(p.list()); err != nil {
		t.Fatal(err)
	}
	p.look(t.Context())
	same("installed again")

	p.primary("10-net.conflist", strings.Replace(bridgeList, "bridge", "ptp", 1))
	before = p.stamps(others...)
	p.look(t.Context())
	same("derived again")
	if list, err := os.ReadFile(p.list()); err != nil || !strings.Contains(string(list), `"ptp"`) {
		t.Errorf("our list was not derived again: %s, %v", list, err)
	}
	for range 2 {
		if err := p.Remove(t.Context()); err != nil {
			t.Error(err)
		}
		same("removed")
	}
	if exists(p.list()) {
		t.Error("our list is still there")
	}
}

// stamps are files' inodes and times. When it returns, whatever is written gets another time.
func (p *place) stamps(names ...string) (all []string) {
	p.t.Helper()
	var last time.Time
	stat := func(path string) (text string, changed time.Time) {
		var s unix.Stat_t
		if err := unix.Stat(path, &s); err != nil {
			p.t.Fatal(err)
		}
		changed = time.Unix(s.Ctim.Unix())
		return fmt.Sprintf("%s: inode %d, written %v, changed %v", path, s.Ino, time.Unix(s.Mtim.Unix()), changed), changed
	}
	for _, name := range names {
		text, changed := stat(filepath.Join(p.conf, name))
		all = append(all, text)
		if changed.After(last) {
			last = changed
		}
	}
	tick := filepath.Join(p.t.TempDir(), "tick")
	netlab.Eventually(p.t, func() error {
		write(p.t, tick, "")
		if _, changed := stat(tick); !changed.After(last) {
			return errors.New("the file system's clock stands")
		}
		return nil
	})
	return all
}
