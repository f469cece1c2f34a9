package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/fairlead-mesh/fairlead/integration/image"
)

// The images that every node has. Pods have to say imagePullPolicy: Never, or IfNotPresent.
const (
	PauseImage = "localhost/fairlead/pause:1"
	TestImage  = "localhost/fairlead/testapp:1" // see cmd/testapp
)

// writeImages writes the archives of the images that every node has.
func (c *Cluster) writeImages() error {
	var errs []error
	for name, program := range map[string]string{PauseImage: "pause", TestImage: "testapp"} {
		_, err := c.writeImage(image.Image{
			Name: name, Entrypoint: []string{"/" + program},
			Files: map[string]image.File{"/" + program: {Source: c.path(binDir, program), Mode: 0o755}},
		})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (c *Cluster) writeImage(i image.Image) (string, error) {
	path := c.path(imagesDir, url.PathEscape(i.Name)+archive)
	file, err := os.Create(path)
	if err != nil {
		return "", err
	}
	if err := errors.Join(i.Write(file), file.Close()); err != nil {
		return "", fmt.Errorf("cannot write the image %s: %w", i.Name, err)
	}
	return path, nil
}

const archive = ".tar"

// LoadImage gives an image to all nodes; those that are switched off get it when they
// start, unless they have one of that name.
func (c *Cluster) LoadImage(ctx context.Context, i image.Image) error {
	path, err := c.writeImage(i)
	if err != nil {
		return err
	}
	return c.load(ctx, path)
}

// LoadArchive is LoadImage for one that package image has written. It returns its name.
func (c *Cluster) LoadArchive(ctx context.Context, file string) (name string, err error) {
	content, err := os.ReadFile(file)
	if err == nil {
		name, err = image.Name(bytes.NewReader(content))
	}
	if err != nil {
		return "", fmt.Errorf("cannot load the image in %s: %w", file, err)
	}
	path := c.path(imagesDir, url.PathEscape(name)+archive)
	if err := os.WriteFile(path, content, 0o644); err != nil {
		return "", err
	}
	return name, c.load(ctx, path)
}

func (c *Cluster) load(ctx context.Context, path string) error {
	for _, n := range c.Nodes {
		if _, err := n.init.Pid(ctx); err != nil {
			continue
		}
		if err := n.importImage(ctx, path); err != nil {
			return err
		}
	}
	return nil
}

func (n *Node) importImage(ctx context.Context, archive string) error {
	_, err := n.Run(ctx, "ctr", "-n", "k8s.io", "images", "import", "--local", archive)
	return err
}

// loadImages gives the node the images it lacks.
func (n *Node) loadImages(ctx context.Context) error {
	list, err := n.Run(ctx, "ctr", "-n", "k8s.io", "images", "ls", "-q")
	if err != nil {
		return err
	}
	has := strings.Fields(list)
	archives, err := filepath.Glob(n.cluster.path(imagesDir, "*"+archive))
	if err != nil {
		return err
	}
	for _, path := range archives {
		name, err := url.PathUnescape(strings.TrimSuffix(filepath.Base(path), archive))
		if err != nil {
			return err
		}
		if slices.Contains(has, name) {
			continue
		}
		if err := n.importImage(ctx, path); err != nil {
			return err
		}
	}
	return nil
}
