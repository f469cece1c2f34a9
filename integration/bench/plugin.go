package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// plugin executes the plugin with the command VERSION, which is its cost to a pod
// that has nothing to do with the mesh, less the question to the agent.
func (b *bencher) plugin(ctx context.Context) ([]figures.Measure, error) {
	path := filepath.Join(b.Bin, "fairlead-cni")
	programs := []string{path, filepath.Join(b.Bin, "cni/host-local")}
	wall := make([]figures.Sample, len(programs))
	for range 2 * b.Sizes.Reps {
		for i, program := range programs { // in turn, so that each has the same machine
			took, err := timed(pluginVersion(program).Run)
			if err := errors.Join(ctx.Err(), err); err != nil {
				return nil, err
			}
			wall[i] = append(wall[i], took)
		}
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	var peak float64
	for range 5 {
		mib, err := peakMemory(ctx, pluginVersion(path))
		if err != nil {
			return nil, err
		}
		peak = max(peak, mib)
	}
	return []figures.Measure{
		{What: "plugin executed (VERSION): wall, p50", Value: wall[0].Median(), Unit: "ms", Budget: figures.AtMost(5),
			Others: []figures.Other{{Name: "host-local, a reference plugin", Value: wall[1].Median()}}},
		{What: "plugin executed: peak memory", Value: peak, Unit: "MiB", Budget: figures.AtMost(10)},
		{What: "plugin: size", Value: float64(info.Size()) / 1e6, Unit: "MB", Budget: figures.AtMost(4)},
	}, nil
}

func pluginVersion(path string) *exec.Cmd {
	cmd := exec.Command(path)
	cmd.Env = append(os.Environ(), "CNI_COMMAND=VERSION")
	cmd.Stdin = strings.NewReader(`{"cniVersion": "1.0.0"}`)
	return cmd
}

// peakMemory is the most memory, in MiB, that a program held until it wrote its
// answer, the last that it does. It is stopped there by a pipe that is full, and
// asked through /proc: what wait4 reports may be the size of the process that
// started it.
func peakMemory(ctx context.Context, cmd *exec.Cmd) (float64, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer func() { _ = out.Close() }() // was only read
	cmd.Stdout = in
	size, err := fill(in)
	if err == nil {
		err = cmd.Start()
	}
	_ = in.Close() // the program has its own
	if err != nil {
		return 0, err
	}
	var mib float64
	stopped := netlab.Await(ctx, 10*time.Second, time.Millisecond, func(context.Context) (err error) {
		if err := writing(cmd.Process.Pid); err != nil {
			return err
		}
		mib, err = figures.Memory(cmd.Process.Pid, "VmHWM")
		return err
	})
	if stopped != nil {
		_ = cmd.Process.Kill() // has perhaps ended
	}
	answer := new(bytes.Buffer)
	_, err = answer.ReadFrom(out)
	err = errors.Join(stopped, err, cmd.Wait())
	if err == nil && answer.Len() <= size {
		err = fmt.Errorf("%s has written nothing", cmd.Path)
	}
	return mib, err
}

// fill makes a pipe so full that the next byte has to wait.
func fill(pipe *os.File) (size int, err error) {
	raw, err := pipe.SyscallConn()
	if err != nil {
		return 0, err
	}
	controlled := raw.Control(func(fd uintptr) {
		if size, err = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, os.Getpagesize()); err == nil {
			_, err = unix.Write(int(fd), make([]byte, size))
		}
		if err == nil {
			// Ours, as every pipe of Go's, does not block; the program's end of it has to.
			err = unix.SetNonblock(int(fd), false)
		}
	})
	return size, errors.Join(err, controlled)
}

// writing is nil once a thread of the process waits for room in a pipe.
func writing(pid int) error {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
	if err != nil {
		return err
	}
	for _, thread := range threads {
		if place, err := os.ReadFile(thread); err == nil && bytes.HasSuffix(place, []byte("pipe_write")) {
			return nil
		}
	}
	return fmt.Errorf("process %d does not write", pid)
}
