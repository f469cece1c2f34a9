package ruleset

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The text of every configuration stands under testdata, one file each with all forms, for review.
func TestGoldenText(t *testing.T) {
	const dir = "testdata/golden"
	known := make(map[string]bool)
	for name, config := range matrix() {
		known[name+".txtar"] = true
		t.Run(name, func(t *testing.T) {
			var archive txtar.Archive
			for _, f := range forms {
				text := mustBuild(t, config.with(f)).String()
				archive.Files = append(archive.Files, txtar.File{Name: f.String() + ".nft", Data: []byte(text)})
			}
			got := txtar.Format(&archive)
			path := filepath.Join(dir, name+".txtar")
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
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !known[f.Name()] {
			t.Errorf("%s belongs to no configuration", f.Name())
		}
	}
}
