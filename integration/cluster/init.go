package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/cluster/cgroup"
	"github.com/fairlead-mesh/fairlead/integration/cluster/machine"
	"github.com/fairlead-mesh/fairlead/integration/cluster/supervisor"
)

// What follows runs in the command clusterinit.

// enterCommand is the command that enters a control group; what it is to become
// follows.
func enterCommand(dir string, g cgroup.Group) []string {
	group, err := json.Marshal(g)
	if err != nil {
		panic(err) // strings can always be written
	}
	return []string{filepath.Join(dir, binDir, "clusterinit"), "enter", string(group)}
}

// Supervise is the first process of the cluster in a directory. Of its files the
// fourth is the lifeline and the fifth the directory's lock.
func Supervise(ctx context.Context, dir string) error {
	lifeline := os.NewFile(3, "lifeline")
	lock := os.NewFile(4, "lock") // held until the process ends
	if lifeline == nil || lock == nil {
		return errors.New("the lifeline and the lock are missing")
	}
	// Neither is for the services.
	unix.CloseOnExec(3)
	unix.CloseOnExec(4)
	s, err := readState(dir)
	if err != nil {
		return err
	}
	if err := errors.Join(unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""), unix.Mount("proc", "/proc", "proc", 0, "")); err != nil {
		return fmt.Errorf("cannot make its mounts private: %w", err)
	}
	err = supervisor.Run(supervisor.Config{
		Socket:   filepath.Join(dir, socketName),
		Lifeline: lifeline,
		Enter:    []string{"/proc/self/exe", "enter"},
	})
	// Its own group can only be removed from outside.
	err = errors.Join(err, s.Outside.Enter())
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return errors.Join(err, s.Cgroup.Remove(ctx), lock.Close())
}

// SuperviseNode is the first process of a node.
func SuperviseNode(file string) error {
	c, err := machine.Read(file)
	if err != nil {
		return err
	}
	if err := machine.Furnish(c); err != nil {
		return err
	}
	return supervisor.Run(supervisor.Config{Socket: c.Socket, Enter: []string{"/proc/self/exe", "enter"}})
}
