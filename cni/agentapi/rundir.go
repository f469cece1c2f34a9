package agentapi

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// RunDir is the agent's run directory, on a tmpfs, and Socket the socket in it.
const (
	RunDir = "/run/fairlead"
	Socket = RunDir + "/agent.sock"
)

// ReadyFile holds the id of the boot in which the agent last was ready.
func ReadyFile(socket string) string { return beside(socket, "ready") }

// LockFile is held by the running agent; its modification time is the agent's
// last sign of life.
func LockFile(socket string) string { return beside(socket, "lock") }

// DrainedFile is there on a node whose pods are not to be captured, since somebody has
// asked for it.
func DrainedFile(socket string) string { return beside(socket, "drained") }

// LogFile is the plugin's log.
func LogFile(socket string) string { return beside(socket, "cni.log") }

func beside(socket, name string) string {
	return filepath.Join(filepath.Dir(socket), name)
}

// MarkReady records that the agent has been ready in this boot.
func MarkReady(socket string) error {
	id, err := bootID()
	if err != nil {
		return err
	}
	file := ReadyFile(socket)
	err = renameio.WriteFile(file, []byte(id+"\n"), 0o600, renameio.WithTempDir(filepath.Dir(file)), renameio.WithStaticPermissions(0o600))
	if err != nil {
		return fmt.Errorf("cannot write %s: %v", file, err)
	}
	return nil
}

// CheckReady tells whether an agent has been ready since the node booted; the
// error says why not.
func CheckReady(socket string) error {
	file := ReadyFile(socket)
	content, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the agent has not been ready since this node booted: there is no %s", file)
	}
	if err != nil {
		return fmt.Errorf("cannot tell whether the agent has been ready: %v", err)
	}
	id, err := bootID()
	if err != nil {
		return err
	}
	if string(bytes.TrimSpace(content)) != id {
		return fmt.Errorf("the agent has not been ready since this node booted: %s is from an earlier boot", file)
	}
	return nil
}

// LastSeen is the agent's last sign of life; zero if there was none.
func LastSeen(socket string) time.Time {
	info, err := os.Stat(LockFile(socket))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// Uptime is for how long the node has been up, as far as that is known.
func Uptime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return time.Duration(now.Nano())
}

// bootID is read once: no process outlives the boot.
var bootID = sync.OnceValues(func() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("cannot tell this boot from another: %v", err)
	}
	return strings.TrimSpace(string(id)), nil
})
