package image_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/fairlead-mesh/fairlead/integration/image"
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
func unpack(t *testing.T, archive io.Reader) (files map[string][]byte, listing string) {
	t.Helper()
	files = map[string][]byte{}
	var lines strings.Builder
	for reader := tar.NewReader(archive); ; {
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
		fmt.Fprintf(&lines, "%s %d:%d %d %s %q\n", header.FileInfo().Mode(), header.Uid, header.Gid, header.ModTime.Unix(), header.Name, content)
	}
}

type descriptor struct {
	MediaType   string
	Digest      string
	Size        int
	Platform    map[string]string
	Annotations map[string]string
}

// show reads an archive as a runtime does, and shows what is in it.
func show(t *testing.T, archive []byte) string {
	t.Helper()
	files, _ := unpack(t, bytes.NewReader(archive))
	blob := func(d descriptor) []byte {
		content := files["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
		if len(content) != d.Size || d.Size == 0 {
			t.Errorf("of %s there are %d bytes, not %d", d.Digest, len(content), d.Size)
		}
		return content
	}
	decode := func(text []byte, into any) {
		t.Helper()
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
	}
	var index struct{ Manifests []descriptor }
	decode(files["index.json"], &index)
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	decode(blob(index.Manifests[0]), &manifest)
	zip, err := gzip.NewReader(bytes.NewReader(blob(manifest.Layers[0])))
	if err != nil {
		t.Fatal(err)
	}
	layer, err := io.ReadAll(zip)
	if err != nil {
		t.Fatal(err)
	}
	var config struct {
		Architecture, OS string
		Config           json.RawMessage
		RootFS           struct {
			DiffIDs []string `json:"diff_ids"`
		}
	}
	decode(blob(manifest.Config), &config)
	if want := digest(layer); len(config.RootFS.DiffIDs) != 1 || config.RootFS.DiffIDs[0] != want {
		t.Errorf("the configuration's layers are %q, want %s", config.RootFS.DiffIDs, want)
	}
	if config.Architecture != runtime.GOARCH || config.OS != "linux" || index.Manifests[0].Platform["architecture"] != runtime.GOARCH {
		t.Errorf("it is for %s %s, %v", config.OS, config.Architecture, index.Manifests[0].Platform)
	}
	if n := len(index.Manifests) + len(manifest.Layers); n != 2 || len(files) != 5 {
		t.Errorf("%d manifests and layers, %d files", n, len(files))
	}
	var settings bytes.Buffer
	if err := json.Indent(&settings, config.Config, "", "  "); err != nil {
		t.Fatal(err)
	}
	_, listing := unpack(t, bytes.NewReader(layer))
	types := fmt.Sprintf("%s\n%s\n%s", index.Manifests[0].MediaType, manifest.Config.MediaType, manifest.Layers[0].MediaType)
	return fmt.Sprintf("%s\n%v\n%s\n%s%s\n", files["oci-layout"], index.Manifests[0].Annotations, types, listing, &settings)
}

func program(t *testing.T, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestImage(t *testing.T) {
	i := image.Image{
		Name: "localhost:5000/fairlead/app:1", Entrypoint: []string{"/usr/bin/app", "serve"},
		Files: map[string]image.File{
			"/usr/bin/app": {Source: program(t, "app"), Mode: 0o755}, "etc/b": {Source: program(t, "b"), Mode: 0o644},
		},
	}
	archive := write(t, i)
	want := `{"imageLayoutVersion":"1.0.0"}
map[io.containerd.image.name:localhost:5000/fairlead/app:1 org.opencontainers.image.ref.name:1]
application/vnd.oci.image.manifest.v1+json
application/vnd.oci.image.config.v1+json
application/vnd.oci.image.layer.v1.tar+gzip
drwxr-xr-x 0:0 0 usr/ ""
drwxr-xr-x 0:0 0 usr/bin/ ""
-rwxr-xr-x 0:0 0 usr/bin/app "app"
drwxr-xr-x 0:0 0 etc/ ""
-rw-r--r-- 0:0 0 etc/b "b"
{
  "Entrypoint": [
    "/usr/bin/app",
    "serve"
  ],
  "WorkingDir": "/"
}
`
	if diff := cmp.Diff(want, show(t, archive)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !bytes.Equal(archive, write(t, i)) {
		t.Error("the same image, written again, has other bytes")
	}
}

func TestName(t *testing.T) {
	i := image.Image{Name: "localhost:5000/fairlead/app:1", Entrypoint: []string{"/app"}, Files: map[string]image.File{"/app": {Source: program(t, "app"), Mode: 0o755}}}
	if name, err := image.Name(bytes.NewReader(write(t, i))); err != nil || name != i.Name {
		t.Errorf("its name is %q, want %q (%v)", name, i.Name, err)
	}
	if name, err := image.Name(strings.NewReader("no archive")); err == nil {
		t.Errorf("what is no archive has the name %q", name)
	}
}

func TestImagesThatCannotBeWritten(t *testing.T) {
	for want, i := range map[string]image.Image{
		"cannot pack /app: open /nowhere/app: no such file or directory": {Name: "a:1", Files: map[string]image.File{"/app": {Source: "/nowhere/app"}}},
		`cannot write an image: its name "a" has no tag`:                 {Name: "a"},
		`cannot write an image: its name "localhost:5000/a" has no tag`:  {Name: "localhost:5000/a"},
	} {
		if err := i.Write(io.Discard); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func writeFile(path, text string) error { return os.WriteFile(path, []byte(text), 0o600) }
