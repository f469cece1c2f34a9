package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/cluster/cgroup"
)

// A cluster's directory. Whoever holds its lock, which the root process does as long
// as it lives, owns all that is in it.
const (
	stateName  = "cluster.json"
	socketName = "socket"
	logDir     = "log"
	nodesDir   = "nodes"
	imagesDir  = "images"
	pkiDir     = "pki"
	binDir     = "bin" // the programs of this module
)

// state is what a cluster's directory says of it.
type state struct {
	Programs string       // the directory of what Build has built
	Outside  cgroup.Group // the starter's
	Cgroup   cgroup.Group // the cluster's
	Nodes    int
	IPv6     bool
}

func readState(dir string) (state, error) {
	var s state
	content, err := os.ReadFile(filepath.Join(dir, stateName))
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(content, &s); err != nil {
		return s, fmt.Errorf("cannot read %s: %w", filepath.Join(dir, stateName), err)
	}
	return s, nil
}

func writeJSON(file string, value any) error {
	content, err := json.MarshalIndent(value, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o600)
}

// errLocked says that somebody else has a lock.
var errLocked = errors.New("somebody else has it")

// lockDir locks a directory, which is made if it is not there.
func lockDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	file, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := tryLock(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	// It may have been removed, and made again, since it was opened.
	locked, err1 := file.Stat()
	there, err2 := os.Stat(dir)
	if err1 != nil || err2 != nil || !os.SameFile(locked, there) {
		return nil, errors.Join(errLocked, file.Close())
	}
	return file, nil
}

func tryLock(file *os.File) error {
	err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errLocked
	}
	return err
}

func waitForLock(ctx context.Context, file *os.File) error {
	return until(ctx, 100*time.Millisecond, func() (bool, error) {
		err := tryLock(file)
		if errors.Is(err, errLocked) {
			return false, nil
		}
		return true, err
	})
}

// until asks again and again, until the answer is true or an error.
func until(ctx context.Context, interval time.Duration, ask func() (bool, error)) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		done, err := ask()
		switch {
		case err != nil && ctx.Err() != nil:
			return context.Cause(ctx) // which is why
		case done || err != nil:
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// clearDir removes what a cluster that has ended left: its control groups, and what
// is in its directory but what is to be kept. The caller has the lock.
func clearDir(ctx context.Context, dir string, keep ...string) error {
	s, err := readState(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := s.Cgroup.Remove(ctx); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	kept := map[string]bool{}
	for _, name := range keep {
		kept[name] = true
	}
	for _, entry := range entries {
		if kept[entry.Name()] {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}
