// Package image writes container images without a container runtime or a registry: some
// files, one layer, nothing below it. The archive is an OCI image layout, which every
// runtime imports. What is in an image is said here, or by a Dockerfile (see [Read]).
//
// The same image is the same bytes each time.
//
// # Failures it survives
//
//   - A file that cannot be read: the error names it, and what was written ends in the
//     middle, which no runtime takes for an image.
//   - A link in the place of a file: what it leads to is packed.
//   - A Dockerfile that says more than is understood here, or a variable that nobody has
//     set: refused with the line, so that no builder makes more of it than we do.
package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
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
	Env        []string          // each NAME=value
	Labels     map[string]string // what people and tools are told of the image
	Files      map[string]File   // by their paths in the image
}

// A File is one of an image's. It is root's.
type File struct {
	Source string // where it is read from
	Mode   fs.FileMode
}

// The media types of an image's parts.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

const (
	indexName      = "index.json"
	nameAnnotation = "io.containerd.image.name"
)

// A blob is a part of an image, which others refer to by its descriptor.
type blob struct {
	content    []byte
	descriptor map[string]any
}

func newBlob(mediaType string, content []byte) blob {
	return blob{content, map[string]any{"mediaType": mediaType, "digest": digest(content), "size": len(content)}}
}

func digest(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// Write writes the image's archive.
func (i Image) Write(w io.Writer) error {
	colon := strings.LastIndex(i.Name, ":")
	if colon < 0 || strings.Contains(i.Name[colon:], "/") {
		return fmt.Errorf("cannot write an image: its name %q has no tag", i.Name)
	}
	blobs, err := i.blobs()
	if err != nil {
		return err
	}
	manifest := blobs[0].descriptor
	manifest["platform"] = map[string]any{"architecture": runtime.GOARCH, "os": "linux"}
	manifest["annotations"] = map[string]any{ // containerd's, which is the whole name, and everybody's
		nameAnnotation: i.Name, "org.opencontainers.image.ref.name": i.Name[colon+1:],
	}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": []any{manifest}})
	if err != nil {
		return err
	}
	archive := tar.NewWriter(w)
	parts := []struct {
		name    string
		content []byte
	}{{"oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {indexName, index}}
	for _, b := range blobs {
		name := strings.Replace(digest(b.content), ":", "/", 1)
		parts = append(parts, struct {
			name    string
			content []byte
		}{"blobs/" + name, b.content})
	}
	for _, part := range parts {
		if err := put(archive, part.name, 0o644, part.content); err != nil {
			return err
		}
	}
	return archive.Close()
}

// Name returns the name of the image that Write has written.
func Name(r io.Reader) (string, error) {
	archive := tar.NewReader(r)
	for {
		header, err := archive.Next()
		if err != nil {
			return "", fmt.Errorf("cannot find the index of an image's archive: %w", err)
		}
		if header.Name != indexName {
			continue
		}
		var index struct {
			Manifests []struct{ Annotations map[string]string }
		}
		if err := json.NewDecoder(archive).Decode(&index); err != nil {
			return "", fmt.Errorf("cannot read the index of an image's archive: %w", err)
		}
		if len(index.Manifests) != 1 || index.Manifests[0].Annotations[nameAnnotation] == "" {
			return "", errors.New("the archive is not one of a single image with a name; remedy: make image")
		}
		return index.Manifests[0].Annotations[nameAnnotation], nil
	}
}

// blobs returns the image's manifest, and what that refers to.
func (i Image) blobs() ([]blob, error) {
	layer, err := i.layer()
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	zip := gzip.NewWriter(&packed)
	if _, err := zip.Write(layer); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	settings := map[string]any{"Entrypoint": i.Entrypoint, "WorkingDir": "/"}
	if len(i.Env) > 0 {
		settings["Env"] = i.Env
	}
	if len(i.Labels) > 0 {
		settings["Labels"] = i.Labels
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": time.Unix(0, 0).UTC(), "config": settings,
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{digest(layer)}},
	})
	if err != nil {
		return nil, err
	}
	parts := []blob{newBlob(configType, config), newBlob(layerType, packed.Bytes())}
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": parts[0].descriptor, "layers": []any{parts[1].descriptor},
	})
	if err != nil {
		return nil, err
	}
	return append([]blob{newBlob(manifestType, manifest)}, parts...), nil
}

// layer returns the archive of the image's files.
func (i Image) layer() ([]byte, error) {
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	made := map[string]bool{".": true}
	for _, name := range slices.Sorted(maps.Keys(i.Files)) {
		content, err := os.ReadFile(i.Files[name].Source)
		if err != nil {
			return nil, fmt.Errorf("cannot pack %s: %w", name, err)
		}
		inside := strings.TrimPrefix(path.Clean("/"+name), "/")
		if err := putDir(archive, path.Dir(inside), made); err != nil {
			return nil, err
		}
		if err := put(archive, inside, i.Files[name].Mode, content); err != nil {
			return nil, err
		}
	}
	return layer.Bytes(), archive.Close()
}

func put(archive *tar.Writer, name string, mode fs.FileMode, content []byte) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: int64(mode.Perm()), Size: int64(len(content))}
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
	return archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755})
}
