package install

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// Without notifications the next poll sees what changed, and a directory that was
// exchanged too.
func TestPoll(t *testing.T) {
	p := newPlace(t)
	p.config.Poll, p.hints.dirs = time.Millisecond, nil
	p.primary("10-net.conflist", bridgeList)
	close(p.ready)
	p.run()
	p.becomes(installed)
	exchange(p)
	p.becomes(installed)
}

// A directory that is exchanged is watched from the next look on.
func TestExchangedDirectory(t *testing.T) {
	p := newPlace(t)
	p.config.Poll = 50 * time.Millisecond
	p.primary("10-net.conflist", bridgeList)
	close(p.ready)
	p.run()
	p.becomes(installed)
	exchange(p)
	p.becomes(installed)
}

func exchange(p *place) {
	p.t.Helper()
	if err := errors.Join(os.Rename(p.conf, p.conf+".old"), os.Mkdir(p.conf, 0o755)); err != nil {
		p.t.Fatal(err)
	}
	p.primary("10-net.conflist", bridgeList)
}

// While somebody writes the primary all the time, in both ways, whoever reads our list
// finds a whole one, with the plugins of one moment.
func TestWritersAtTheSameTime(t *testing.T) {
	p := newPlace(t)
	version := func(n int) string { return strings.Replace(bridgeList, "bridge", fmt.Sprintf("bridge%d", n), 1) }
	p.primary("10-net.conflist", version(0))
	close(p.ready)
	p.run()
	list := filepath.Join(p.conf, ListName)
	netlab.Eventually(t, func() error { _, err := os.Stat(list); return err })
	const last = 300
	done := make(chan error, 1)
	go func() {
		for n := range last + 1 {
			path := filepath.Join(p.conf, "10-net.conflist")
			if n%2 == 1 {
				path += ".new"
			}
			err := os.WriteFile(path, []byte(version(n)), 0o644)
			if n%2 == 1 {
				err = errors.Join(err, os.Rename(path, strings.TrimSuffix(path, ".new")))
			}
			if err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for writing := true; writing; {
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
			writing = false
		default:
		}
		content, err := os.ReadFile(list)
		if err != nil {
			t.Fatal(err)
		}
		if l, err := parseList(ListName, content); err != nil || len(l.plugins) != 2 || l.plugins[1].kind != PluginName {
			t.Fatalf("not a whole list (%v): %s", err, content)
		}
	}
	p.becomes(strings.ReplaceAll(installed, `"bridge"`, fmt.Sprintf("%q", fmt.Sprintf("bridge%d", last))))
}
