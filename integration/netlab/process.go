package netlab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Process is a program that goes on, as a node's daemons do. What it prints is
// appended to Log, after what those of its name printed before it.
type Process struct {
	Name, Log string
	cmd       *exec.Cmd
	done      chan struct{} // closed when it has ended
}

// Start starts a program, whose log is dir/name.log.
func Start(dir, name, path string, args ...string) (*Process, error) {
	return start(dir, name, exec.Command(path, args...), (*exec.Cmd).Start)
}

// Start is the function Start inside the namespace.
func (n *NS) Start(dir, name, path string, args ...string) (*Process, error) {
	return start(dir, name, exec.Command(path, args...), func(cmd *exec.Cmd) error { return n.Handle.Do(cmd.Start) })
}

func start(dir, name string, cmd *exec.Cmd, begin func(*exec.Cmd) error) (*Process, error) {
	p := &Process{Name: name, Log: filepath.Join(dir, name+".log"), cmd: cmd, done: make(chan struct{})}
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the program has its own
	cmd.Stdout, cmd.Stderr = log, log
	if err := begin(cmd); err != nil {
		return nil, fmt.Errorf("cannot start the %s: %w", name, err)
	}
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(p.done)
	}()
	return p, nil
}

// PID is the process's number.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the process at once, if it has not ended before.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// patience is how long a process may take to obey a signal.
const patience = 15 * time.Second

// End has the process end by a signal, and returns when it has.
func (p *Process) End(ctx context.Context, s syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := p.signal(s); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the %s does not end on %s: %w", p.Name, s, ctx.Err())
	}
}

// Pause stops the process until Resume. The signal's sender does not wait for the
// threads to stop, so it does.
func (p *Process) Pause(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := p.signal(unix.SIGSTOP); err != nil {
		return err
	}
	for {
		stopped, err := allStopped(p.PID())
		switch {
		case err != nil:
			return fmt.Errorf("cannot pause the %s: %w", p.Name, err)
		case stopped:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("the %s does not stop: %w", p.Name, ctx.Err())
		}
	}
}

// Resume has the process go on.
func (p *Process) Resume() error { return p.signal(unix.SIGCONT) }

func (p *Process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("cannot send %s to the %s: %w", s, p.Name, err)
	}
	return nil
}

// ErrEnded is part of what Alive says of a process that has ended.
var ErrEnded = errors.New("has ended")

// Alive says how the process has ended, if it has, and its last words.
func (p *Process) Alive() error {
	if p.State() == nil {
		return nil
	}
	return fmt.Errorf("the %s %w: %s; its last words: %s", p.Name, ErrEnded, p.State(), strings.Join(LastWords(p.Log, 3), "; "))
}

// State is how the process has ended, nil if it has not.
func (p *Process) State() *os.ProcessState {
	select {
	case <-p.done:
		return p.cmd.ProcessState
	default:
		return nil
	}
}

// allStopped reports whether every thread of a process is in state T (proc(5)).
func allStopped(pid int) (bool, error) {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err == nil && len(stats) == 0 {
		err = fmt.Errorf("process %d has no threads", pid)
	}
	if err != nil {
		return false, err
	}
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		if err != nil {
			return false, fmt.Errorf("cannot look at a thread: %w", err)
		}
		if _, after, _ := bytes.Cut(text, []byte(") ")); !bytes.HasPrefix(after, []byte("T")) {
			return false, nil
		}
	}
	return true, nil
}

// LastWords are the last lines of a log, or why it cannot be read.
func LastWords(path string, count int) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return []string{err.Error()}
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[max(0, len(lines)-count):]
}

// Await asks, with pauses, until there is no error, or one that waiting does not mend:
// ErrEnded. Out of patience, or when ctx ends, it returns the last error, though not
// one that the end of ctx has made.
func Await(ctx context.Context, patience, pause time.Duration, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(pause)
	defer tick.Stop()
	var last error
	for {
		err := ask(ctx)
		if err == nil || errors.Is(err, ErrEnded) {
			return err
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			return last
		case <-tick.C:
		}
	}
}
