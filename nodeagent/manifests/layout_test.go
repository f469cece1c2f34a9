package manifests_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/nodeagent/manifests"
)

// A volume of Kubernetes changes by exchanging one link, which all files lead
// through; nothing else in the directory is notified.
func TestVolumeThatIsExchanged(t *testing.T) {
	d := prepare(t, time.Hour)
	version := func(name, label string) {
		t.Helper()
		dir := filepath.Join(d.path, name)
		if err := errors.Join(
			os.Mkdir(dir, 0o700),
			os.WriteFile(filepath.Join(dir, "ns.yaml"), []byte(namespace("shop", "mesh: '"+label+"'")), 0o600),
			os.Symlink(name, filepath.Join(d.path, "..data_tmp")),
			os.Rename(filepath.Join(d.path, "..data_tmp"), filepath.Join(d.path, "..data")),
		); err != nil {
			t.Fatal(err)
		}
	}
	version("..1", "one")
	if err := os.Symlink("..data/ns.yaml", filepath.Join(d.path, "ns.yaml")); err != nil {
		t.Fatal(err)
	}
	d.write("web.yaml", pod("web", ""))
	d.run()
	d.until("the first version is in force", d.knows("shop", "web", "one"))
	version("..2", "two")
	d.until("the second version is in force", d.knows("shop", "web", "two"))
}

func TestManyFilesAtOnce(t *testing.T) {
	d := start(t, time.Hour)
	const count = 500
	for i := range count {
		d.write(fmt.Sprintf("%d.yaml", i), pod(fmt.Sprintf("web%d", i), ""))
	}
	d.until("all are known", func() bool { return len(d.dir.Pods()) == count })
	for i := range count {
		d.remove(fmt.Sprintf("%d.yaml", i))
	}
	d.until("all are gone", func() bool { return len(d.dir.Pods()) == 0 })
}

// The directory may go between the check and the first reading: then nothing is
// known, which is not the same as knowing that there is nothing.
func TestDirectoryThatIsMissingAtTheStart(t *testing.T) {
	d := prepare(t, 5*time.Millisecond)
	if err := os.Remove(d.path); err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- d.dir.Run(t.Context()) }()
	t.Cleanup(func() {
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	d.until("the problem shows", d.problem("no such file or directory; what was known before stays in force"))
	if d.dir.Synced() {
		t.Error("synced without having read anything")
	}
	if err := os.Mkdir(d.path, 0o700); err != nil {
		t.Fatal(err)
	}
	d.write("web.yaml", pod("web", ""))
	d.until("web is known", d.knows("shop", "web", ""))
	if !d.dir.Synced() || len(d.dir.Problems()) != 0 {
		t.Errorf("synced %v, problems %q", d.dir.Synced(), d.dir.Problems())
	}
}

// A problem that stays is neither a change nor a new line in the log at each poll.
func TestProblemIsSaidOnce(t *testing.T) {
	d := prepare(t, time.Millisecond)
	var log netlab.Log
	var err error
	var changes atomic.Int32
	if d.dir, err = manifests.New(manifests.Config{
		Path: d.path, Poll: time.Millisecond, Changed: func() { changes.Add(1); d.changed <- struct{}{} },
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
	}); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(d.path, "first.yaml")); err != nil {
		t.Fatal(err)
	}
	d.run()
	// Each pod is a poll at the least, at which the first problem is seen again.
	for i := range 20 {
		name := fmt.Sprintf("web%d", i)
		d.write(name+".yaml", pod(name, ""))
		d.until("it is known", func() bool { return len(d.dir.Pods()) == i+1 })
	}
	if got := log.Lines("first.yaml"); len(got) != 1 {
		t.Errorf("logged: %q", got)
	}
	if n := changes.Load(); n > 21 {
		t.Errorf("%d changes, but there were the first reading and 20 pods", n)
	}
}
