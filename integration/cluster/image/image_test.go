package image_test

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/integration/cluster/image"
)

func write(t *testing.T, i image.Image) []byte {
	t.Helper()
	var archive bytes.Buffer
	if err := i.Write(&archive); err != nil {
		t.Fatal(err)
	}
	return archive.Bytes()
}

// unpack returns an archive's files by name, and a listing of it.
func unpack(t *testing.T, archive []byte) (files map[string][]byte, listing string) {
	t.Helper()
	files = map[string][]byte{}
	var lines strings.Builder
	for reader := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files, lines.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = content
		fmt.Fprintf(&lines, "%s %s %q\n", header.FileInfo().Mode(), header.Name, content)
	}
}

func program(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestImage(t *testing.T) {
	i := image.Image{
		Name:       "localhost/fairlead/app:1",
		Entrypoint: []string{"/usr/bin/app", "serve"},
		Files:      map[string]string{"/usr/bin/app": program(t, "app"), "etc/b": program(t, "b")},
	}
	archive := write(t, i)
	files, _ := unpack(t, archive)
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil || len(manifest) != 1 {
		t.Fatalf("the manifest is %s (%v)", files["manifest.json"], err)
	}
	layer, config := files[manifest[0].Layers[0]], files[manifest[0].Config]
	_, listing := unpack(t, layer)
	want := `drwxr-xr-x dev/ ""
drwxr-xr-x etc/ ""
drwxr-xr-x proc/ ""
drwxr-xr-x sys/ ""
dtrwxrwxrwx tmp/ ""
drwxr-xr-x usr/ ""
drwxr-xr-x usr/bin/ ""
-rwxr-xr-x usr/bin/app "app"
-rwxr-xr-x etc/b "b"
`
	if diff := cmp.Diff(want, listing); diff != "" {
		t.Errorf("the layer (-want +got):\n%s", diff)
	}
	if got := manifest[0].RepoTags; !cmp.Equal(got, []string{i.Name}) {
		t.Errorf("it is named %q", got)
	}
	for _, part := range []string{
		fmt.Sprintf(`"diff_ids":["sha256:%x"]`, sha256.Sum256(layer)),
		`"Entrypoint":["/usr/bin/app","serve"]`,
	} {
		if !bytes.Contains(config, []byte(part)) {
			t.Errorf("the configuration %s lacks %s", config, part)
		}
	}
	if want := fmt.Sprintf("%x.json", sha256.Sum256(config)); manifest[0].Config != want {
		t.Errorf("the configuration is named %s, want %s", manifest[0].Config, want)
	}
	if !bytes.Equal(archive, write(t, i)) {
		t.Error("the same image, written again, has other bytes")
	}
}

func TestAFileThatIsMissing(t *testing.T) {
	i := image.Image{Name: "a:1", Files: map[string]string{"/app": "/nowhere/app"}}
	err := i.Write(io.Discard)
	if want := "cannot pack /app: stat /nowhere/app: no such file or directory"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
