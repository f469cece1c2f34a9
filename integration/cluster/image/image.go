// Package image writes container images: some files, one layer, nothing below it. The
// archive is of the kind that "docker save" writes, which every runtime imports.
//
// The same image is the same bytes each time.
//
// # Failures it survives
//
//   - A file that cannot be read: the error names it, and what was written ends in the
//     middle, which no runtime takes for an image.
//   - A link in the place of a file: what it leads to is packed.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"
)

// An Image is a container image to be.
type Image struct {
	Name       string            // as "localhost/fairlead/agent:1": whole, with a tag
	Entrypoint []string          // the command that containers run
	Files      map[string]string // the path in the image → the file it is read from
}

// directories are there in every image, for runtimes to mount on, and programs to use.
var directories = []string{"dev", "etc", "proc", "sys", "tmp"}

// Write writes the image's archive.
func (i Image) Write(w io.Writer) error {
	layer, err := i.layer()
	if err != nil {
		return err
	}
	diff := fmt.Sprintf("%x", sha256.Sum256(layer))
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": time.Unix(0, 0).UTC(),
		"config": map[string]any{"Entrypoint": i.Entrypoint, "Env": []string{"PATH=/"}, "WorkingDir": "/"},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + diff}},
	})
	if err != nil {
		return err
	}
	configName := fmt.Sprintf("%x.json", sha256.Sum256(config))
	manifest, err := json.Marshal([]map[string]any{
		{"Config": configName, "RepoTags": []string{i.Name}, "Layers": []string{diff + "/layer.tar"}},
	})
	if err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	for _, part := range []struct {
		name    string
		content []byte
	}{{configName, config}, {diff + "/layer.tar", layer}, {"manifest.json", manifest}} {
		if err := put(archive, part.name, 0o644, part.content); err != nil {
			return err
		}
	}
	return archive.Close()
}

// layer returns the archive of the image's files.
func (i Image) layer() ([]byte, error) {
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	made := map[string]bool{".": true}
	for _, dir := range directories {
		if err := putDir(archive, dir, made); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(i.Files)) {
		source := i.Files[name]
		info, err := os.Stat(source)
		if err != nil {
			return nil, fmt.Errorf("cannot pack %s: %w", name, err)
		}
		content, err := os.ReadFile(source)
		if err != nil {
			return nil, fmt.Errorf("cannot pack %s: %w", name, err)
		}
		name = strings.TrimPrefix(path.Clean("/"+name), "/")
		if err := putDir(archive, path.Dir(name), made); err != nil {
			return nil, err
		}
		if err := put(archive, name, info.Mode().Perm(), content); err != nil {
			return nil, err
		}
	}
	return layer.Bytes(), archive.Close()
}

func put(archive *tar.Writer, name string, mode os.FileMode, content []byte) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(mode), Size: int64(len(content))}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := archive.Write(content)
	return err
}

// putDir puts a directory, and those above it, unless they are made already.
func putDir(archive *tar.Writer, dir string, made map[string]bool) error {
	if made[dir] {
		return nil
	}
	if err := putDir(archive, path.Dir(dir), made); err != nil {
		return err
	}
	made[dir] = true
	var mode int64 = 0o755
	if dir == "tmp" {
		mode = 0o1777
	}
	return archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: mode})
}
