package demo

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

// A process is one of the node's daemons. What it prints goes to its log.
type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{} // closed when it has ended
}

// launch starts a daemon, which appends to the log of those of its name before it.
func launch(dir, name, path string, args ...string) (*process, error) {
	p := &process{name: name, cmd: exec.Command(path, args...), log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the daemon has its own
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start the %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in ProcessState
		close(p.done)
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("cannot send %s to the %s: %w", s, p.name, err)
	}
	return nil
}

// end has the process end by a signal, and returns when it has.
func (p *process) end(ctx context.Context, s syscall.Signal) error {
	ctx, cancel := context.WithTimeout(ctx, waitPatience)
	defer cancel()
	if err := p.signal(s); err != nil {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the %s does not end on %s: %w", p.name, s, ctx.Err())
	}
}

// pause stops the process until resume is called. The signal's sender does not wait
// for the threads to stop, so we do.
func (p *process) pause() (resume func() error, err error) {
	if err := p.signal(unix.SIGSTOP); err != nil {
		return nil, err
	}
	for began := time.Now(); time.Since(began) < waitPatience; {
		if stopped, err := allStopped(p.cmd.Process.Pid); stopped || err != nil {
			return func() error { return p.signal(unix.SIGCONT) }, err
		}
	}
	return nil, fmt.Errorf("the %s does not stop", p.name)
}

// allStopped reports whether every thread of a process is in state T (proc(5)).
func allStopped(pid int) (bool, error) {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		return false, errors.Join(err, fmt.Errorf("process %d has no threads", pid))
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

// A hopeless error is one that waiting does not mend.
type hopeless struct{ error }

// alive says how the process has ended, if it has.
func (p *process) alive() error {
	select {
	case <-p.done:
		return hopeless{fmt.Errorf("the %s has ended: %s", p.name, p.cmd.ProcessState)}
	default:
		return nil
	}
}

// lastWords are the last lines of a log.
func lastWords(path string, count int) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return []string{err.Error()}
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[max(0, len(lines)-count):]
}

// await asks again and again until there is no error. When it has waited long enough
// it returns the last one.
func await(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, waitPatience)
	defer cancel()
	return every(ctx, 20*time.Millisecond, ask)
}

// every asks at intervals until there is no error, or a hopeless one. When ctx ends it
// returns the last one.
func every(ctx context.Context, interval time.Duration, ask func(context.Context) error) error {
	var last error
	for {
		err := ask(ctx)
		if err == nil || errors.As(err, new(hopeless)) {
			return err
		}
		if ctx.Err() == nil || last == nil {
			last = err // not what ctx's end has made of it
		}
		if pause(ctx, interval); ctx.Err() != nil {
			return last
		}
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
