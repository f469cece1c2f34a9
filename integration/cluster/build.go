package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// As they are in kubeone's go.mod.
	kubernetesVersion = "v1.37.2"
	containerdVersion = "v2.4.2"

	// kubeone holds these, and becomes the one whose name it is called by.
	kubeoneNames = "kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl etcd containerd ctr"
)

// buildFlags are the same for all that kubeone's module builds, so that each package
// is compiled once.
var buildFlags = []string{"-trimpath", "-buildvcs=false", "-tags=no_btrfs,no_devmapper,no_zfs", "-ldflags=-s -w" +
	" -X k8s.io/component-base/version.gitVersion=" + kubernetesVersion +
	" -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37" +
	" -X github.com/containerd/containerd/v2/version.Version=" + containerdVersion}

// Build returns the directory that holds Kubernetes, etcd, containerd and the CNI
// plugins. It builds them from the sources of this module if they are not there, and
// tells out how far it is.
func Build(ctx context.Context, source string, out io.Writer) (string, error) {
	if err := checkRoot(); err != nil { // see goCommand
		return "", err
	}
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	hash, err := hashSources(filepath.Join(source, "kubeone"))
	if err != nil {
		return "", fmt.Errorf("cannot read the sources of what a cluster runs: %w", err)
	}
	dir := filepath.Join(cache, hash)
	if isDir(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	// Whoever has the lock builds; others wait, and find it built.
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }() // nothing was written
	if err := waitForLock(ctx, lock); err != nil {
		return "", fmt.Errorf("cannot wait for another build: %w", err)
	}
	if isDir(dir) {
		return dir, nil
	}
	unfinished := filepath.Join(cache, "unfinished")
	if err := os.RemoveAll(unfinished); err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(unfinished) }() // else the next build does it
	if err := buildInto(ctx, filepath.Join(source, "kubeone"), unfinished, out); err != nil {
		return "", fmt.Errorf("cannot build Kubernetes, etcd and containerd: %w", err)
	}
	return dir, os.Rename(filepath.Join(unfinished, "bin"), dir)
}

func isDir(dir string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir()
}

// hashSources tells sources, and how they are built, from others.
func hashSources(dir string) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.Version(), runtime.GOARCH, buildFlags, kubeoneNames)
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%s %d\n%s", name, len(content), content)
	}
	return fmt.Sprintf("%.8x", hash.Sum(nil)), nil
}

func buildInto(ctx context.Context, source, dir string, out io.Writer) error {
	bin, temp := filepath.Join(dir, "bin"), filepath.Join(dir, "tmp")
	if err := errors.Join(os.MkdirAll(bin, 0o755), os.MkdirAll(temp, 0o755)); err != nil {
		return err
	}
	stop := tellProgress(out, "building Kubernetes, etcd and containerd: about 13 minutes on two cores, once")
	defer stop()
	for _, what := range []string{".", "tool"} {
		args := append(append([]string{"build"}, buildFlags...), "-o", bin+"/", what)
		if err := goCommand(ctx, source, temp, args...); err != nil {
			return err
		}
	}
	for name := range strings.FieldsSeq(kubeoneNames) {
		if err := os.Symlink("kubeone", filepath.Join(bin, name)); err != nil {
			return err
		}
	}
	return nil
}

// goCommand runs go in a PID namespace, so that its compilers end with it, however
// it ends.
func goCommand(ctx context.Context, dir, temp string, args ...string) error {
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOTMPDIR="+temp)
	cmd.Stderr = &stderr
	// Pdeathsig: the thread that starts it lives as long as this process.
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("go %s in %s: %w\n%s", args[0], dir, err, lastLines(stderr.Bytes(), 20))
	}
	return nil
}

// tellProgress prints a line now, and each half minute one with the time it has taken,
// until the function that it returns is called.
func tellProgress(out io.Writer, what string) (stop func()) {
	fmt.Fprintln(out, what)
	done, ended := make(chan struct{}), make(chan struct{})
	start := time.Now()
	go func() {
		defer close(ended)
		ticker := time.NewTicker(30 * time.Second)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				seconds := int(time.Since(start).Seconds())
				fmt.Fprintf(out, "%s; %d:%02d so far\n", what, seconds/60, seconds%60)
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

// lastLines returns the end of a text.
func lastLines(text []byte, n int) string {
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
