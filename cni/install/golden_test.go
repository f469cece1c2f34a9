package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write the golden files anew")

var modes = []Mode{Owned, Chained, DropIn}

// Each file under testdata holds a directory of network configurations, and for each
// mode the file that is written, whatever is refused, and the plugins that a runtime then
// executes for a pod.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatal("no golden files", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := txtar.Format(archive)
			archive.Files = slices.DeleteFunc(archive.Files, func(f txtar.File) bool {
				return slices.ContainsFunc(modes, func(m Mode) bool { return strings.HasPrefix(f.Name, string(m)+": ") })
			})
			given := slices.Clone(archive.Files)
			for _, mode := range modes {
				archive.Files = append(archive.Files, outcome(t, mode, given))
			}
			got := txtar.Format(archive)
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			} else if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("it changed (run with -update if that is meant), -golden +now:\n%s", diff)
			}
		})
	}
}

// outcome installs in a mode, and shows what was written and is executed; what Remove
// leaves is what was given.
func outcome(t *testing.T, mode Mode, given []txtar.File) txtar.File {
	t.Helper()
	dir := t.TempDir()
	for _, f := range given {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, f.Name)), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, f.Name), string(f.Data))
	}
	before := tree(t, dir)
	i := &Installer{config: Config{ConfDir: dir, Mode: mode, Logger: slog.New(slog.DiscardHandler)}, entry: testEntry(t)}
	p, err := i.plan()
	if err == nil {
		err = errors.Join(i.put(p), i.tidy(p))
	}
	if err != nil {
		if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
			t.Errorf("%s: refused, and yet something changed:\n%s", mode, diff)
		}
		return txtar.File{Name: string(mode) + ": refused", Data: []byte(strings.ReplaceAll(err.Error(), dir, "DIR") + "\n")}
	}
	content, err := os.ReadFile(p.path)
	if err != nil {
		t.Fatal(err)
	}
	name, _ := filepath.Rel(dir, p.path) // it is below it
	out := txtar.File{Name: fmt.Sprintf("%s: %s, by which %s is executed", mode, name, executed(t, dir)), Data: content}
	if err := i.Remove(t.Context()); err != nil {
		t.Errorf("%s: %v", mode, err)
	}
	if !bytes.Contains([]byte(before), []byte(PluginName)) {
		if diff := cmp.Diff(before, tree(t, dir)); diff != "" {
			t.Errorf("%s: not as it was before (-before +after):\n%s", mode, diff)
		}
	}
	return out
}

// tree is all of a directory.
func tree(t *testing.T, dir string) string {
	t.Helper()
	archive := &txtar.Archive{}
	if err := fs.WalkDir(os.DirFS(dir), ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(filepath.Join(dir, path))
		info, statErr := entry.Info()
		if err = errors.Join(err, statErr); err == nil {
			archive.Files = append(archive.Files, txtar.File{Name: fmt.Sprintf("%s %s", info.Mode(), path), Data: content})
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return string(txtar.Format(archive))
}

// executed are the plugins that a runtime executes for a pod, as libcni loads them.
func executed(t *testing.T, dir string) string {
	t.Helper()
	files, err := libcni.ConfFiles(dir, []string{".conf", ".conflist", ".json"})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(files)
	if filepath.Ext(files[0]) != ".conflist" { // one plugin, of which a runtime makes a list
		var one struct{ Type string }
		text, err := os.ReadFile(files[0])
		if err = errors.Join(err, json.Unmarshal(text, &one)); err != nil {
			t.Fatal(err)
		}
		return one.Type
	}
	list, err := libcni.NetworkConfFromFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, plugin := range list.Plugins {
		kinds = append(kinds, plugin.Network.Type)
	}
	return strings.Join(kinds, "→")
}
