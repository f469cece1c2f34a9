package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// killFollowers kills all of a process group but its leader, which ends when it has seen
// that. A leader that is killed with them leaves them, dead, to the first process here, and
// until that has seen it their PID namespace does not end, and so neither does the node.
func killFollowers(leader int) error {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return err
	}
	alone := true
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			continue // it has ended
		}
		var pid, parent, group int
		var state string
		if _, err := fmt.Sscan(string(text), &pid); err != nil {
			return fmt.Errorf("cannot read %s: %w", stat, err)
		}
		named := bytes.LastIndexByte(text, ')') // a program chooses its name
		if _, err := fmt.Sscan(string(text[named+1:]), &state, &parent, &group); err != nil {
			return fmt.Errorf("cannot read %s: %w", stat, err)
		}
		if group == leader && pid != leader {
			alone = false
			_ = unix.Kill(pid, unix.SIGKILL) // has perhaps ended
		}
	}
	if alone && errors.Is(unix.Kill(-leader, unix.SIGKILL), unix.ESRCH) {
		return os.ErrProcessDone
	}
	return nil
}
