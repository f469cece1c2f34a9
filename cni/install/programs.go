package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// programs knows which versions of the specification other plugins speak, which they say
// themselves. One that has said it is not executed again until it is another file.
type programs map[string]answer // by path

type answer struct {
	file   fs.FileInfo
	at     time.Time
	speaks []string
	err    error // why it has not answered
}

const (
	askTimeout = 5 * time.Second
	// askAgain is how long one that does not answer is left alone.
	askAgain = time.Minute
)

// speaks says why a program does not speak a version, or that it has not said so.
func (p programs) speaks(path, version string) error {
	file, err := os.Stat(path)
	if err != nil {
		return unsure{err}
	}
	a, known := p[path]
	same := known && os.SameFile(a.file, file) && a.file.ModTime().Equal(file.ModTime()) && a.file.Size() == file.Size()
	if !same || a.err != nil && time.Since(a.at) >= askAgain {
		a = answer{file: file, at: time.Now()}
		a.speaks, a.err = askVersions(path)
		p[path] = a
	}
	switch {
	case a.err != nil:
		return unsure{fmt.Errorf("it does not say which versions it speaks (%s, executed with CNI_COMMAND=VERSION): %w", path, a.err)}
	case !slices.Contains(a.speaks, version):
		return fmt.Errorf("it speaks %s: update %s", strings.Join(a.speaks, ", "), path)
	}
	return nil
}

// askVersions executes a plugin as a runtime does for VERSION.
func askVersions(path string) ([]string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	out, err := execute(ctx, path)
	for errors.Is(err, unix.ETXTBSY) && ctx.Err() == nil { // somebody is writing it
		select {
		case <-ctx.Done():
		case <-time.After(busyPause):
			out, err = execute(ctx, path)
		}
	}
	if err != nil {
		return nil, errors.Join(err, ctx.Err())
	}
	var says struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	if err := json.Unmarshal(out, &says); err != nil {
		return nil, fmt.Errorf("its answer is not JSON: %w", err)
	}
	return says.SupportedVersions, nil
}

const busyPause = 100 * time.Millisecond

func execute(ctx context.Context, path string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, path)
	// The rest is what old plugins insist on, though there is nothing to be done.
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"CNI_COMMAND=VERSION", "CNI_CONTAINERID=none", "CNI_NETNS=none", "CNI_IFNAME=none", "CNI_ARGS=", "CNI_PATH=" + filepath.Dir(path),
	}
	cmd.Stdin = strings.NewReader(`{"cniVersion":"` + statusVersion + `"}`)
	// What it has started ends with it, and may hold its output open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var out answered
	cmd.Stdout = &out
	err := cmd.Run()
	if len(out.text) > mostAnswered {
		return nil, errTalks
	}
	return out.text, err
}

// mostAnswered is more than any plugin says of itself.
const mostAnswered = 64 << 10

var errTalks = fmt.Errorf("its answer is longer than %d bytes", mostAnswered)

// answered is what a program writes, until that is too much.
type answered struct{ text []byte }

func (a *answered) Write(p []byte) (int, error) {
	if a.text = append(a.text, p...); len(a.text) > mostAnswered {
		return 0, errTalks
	}
	return len(p), nil
}
