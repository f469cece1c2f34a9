// Package supervisor is the first process of a PID namespace: it starts services
// there, keeps them running, and ends everything with itself.
//
// Other processes talk to it through a socket, as a [Client]. The socket is also how
// it is found and how it is told from others: who answers is alive, and the kernel
// says which process that is. So no process's number is ever written down, and none
// that was given to another process meanwhile can be killed.
//
// # Failures it survives
//
//   - A service ends by itself: it is started again a second later.
//   - The one who asked for it all ends before it said [Client.Keep], however it ends:
//     the lifeline breaks, and everything ends.
//   - It is killed itself: the kernel ends all that is in its PID namespace.
//   - Processes whose parent has ended: it is their parent then, and reaps them.
package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/cluster/cgroup"
)

// A Service is a program that is kept running.
type Service struct {
	Name   string
	Args   []string
	Log    string       // the file that its output is appended to
	Cgroup cgroup.Group // made for it

	// Machine gives it PID, mount, network, UTS and IPC namespaces of its own. It is
	// not started again when it has ended.
	Machine bool
}

// A Status is what became of a service.
type Status struct {
	Name    string
	Running bool
	Ended   int    // how often it has ended by itself
	Last    string // how it ended last
}

// restartDelay is how long a service that has ended by itself stays away.
const restartDelay = time.Second

// A Config says how a supervisor works.
type Config struct {
	Socket   string
	Lifeline *os.File // its end is the supervisor's, until Keep; nil: there is none
	Enter    []string // enters the control group that follows as JSON, and becomes the command after that
}

// Run supervises until it is told to end, or has to, and has then ended every other
// process of the PID namespace.
func Run(c Config) error {
	listener, err := net.Listen("unix", c.Socket)
	if err != nil {
		return fmt.Errorf("cannot listen for requests: %w", err)
	}
	s := &server{
		enter:    c.Enter,
		services: map[string]*service{},
		requests: make(chan call),
		restarts: make(chan string),
	}
	go s.accept(listener)
	broken := make(chan struct{})
	if c.Lifeline != nil {
		go func() {
			_, _ = c.Lifeline.Read(make([]byte, 1)) // nobody writes: it returns at the end
			close(broken)
		}()
	}
	s.loop(broken)
	return endAll()
}

// A service is known to the loop alone.
type service struct {
	Service
	pid      int // 0: not running
	ended    int
	last     string
	stopped  bool // not to be started again
	stopping []chan<- reply
}

type server struct {
	enter    []string
	services map[string]*service
	order    []string
	requests chan call
	restarts chan string
	kept     bool
}

// loop owns the services and all waiting for processes.
func (s *server) loop(broken <-chan struct{}) {
	children, told := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	signal.Notify(told, unix.SIGTERM)
	for {
		select {
		case <-children:
			s.reap()
		case <-told:
			return
		case <-broken:
			if !s.kept {
				return
			}
			broken = nil
		case name := <-s.restarts:
			svc := s.services[name]
			if svc.pid == 0 && !svc.stopped && s.launch(svc) != nil {
				s.later(svc)
			}
		case c := <-s.requests:
			if c.request.Op == opEnd {
				return
			}
			s.handle(c)
		}
	}
}

func (s *server) handle(c call) {
	var err error
	switch c.request.Op {
	case opStart:
		err = s.start(c.request.Service)
	case opStop:
		svc := s.services[c.request.Name]
		if svc == nil {
			break
		}
		svc.stopped = true
		if svc.pid == 0 {
			break
		}
		if err = unix.Kill(svc.pid, unix.Signal(c.request.Signal)); err == nil {
			svc.stopping = append(svc.stopping, c.answer)
			return // answered when it has ended
		}
	case opList:
		c.answer <- reply{Services: s.list()}
		return
	case opKeep:
		s.kept = true
	default:
		err = fmt.Errorf("unknown request %q", c.request.Op)
	}
	r := reply{}
	if err != nil {
		r.Error = err.Error()
	}
	c.answer <- r
}

func (s *server) list() []Status {
	var all []Status
	for _, name := range s.order {
		svc := s.services[name]
		all = append(all, Status{Name: name, Running: svc.pid != 0, Ended: svc.ended, Last: svc.last})
	}
	return all
}

func (s *server) start(wanted Service) error {
	svc := s.services[wanted.Name]
	switch {
	case svc == nil:
		svc = &service{}
		s.services[wanted.Name] = svc
		s.order = append(s.order, wanted.Name)
	case svc.pid != 0:
		return fmt.Errorf("%s runs already", wanted.Name)
	}
	*svc = service{Service: wanted}
	return s.launch(svc)
}

// launch starts a service's process.
func (s *server) launch(svc *service) error {
	err := svc.Cgroup.Create()
	if err == nil {
		svc.pid, err = svc.spawn(s.enter)
	}
	if err != nil {
		svc.ended++
		svc.last = err.Error()
		return fmt.Errorf("cannot start %s: %w", svc.Name, err)
	}
	return nil
}

func (svc *service) spawn(enter []string) (int, error) {
	log, err := os.OpenFile(svc.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer func() { _ = log.Close() }() // the service has its own
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer func() { _ = null.Close() }() // read only
	group, err := json.Marshal(svc.Cgroup)
	if err != nil {
		return 0, err
	}
	attr := &os.ProcAttr{Dir: "/", Files: []*os.File{null, log, log}, Sys: &syscall.SysProcAttr{Setsid: true}}
	if svc.Machine {
		attr.Sys.Cloneflags = unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC
	}
	args := append(append(slices.Clone(enter), string(group)), svc.Args...)
	// Not os/exec, whose Wait would wait for the same process as reap.
	process, err := os.StartProcess(enter[0], args, attr)
	if err != nil {
		return 0, err
	}
	pid := process.Pid
	return pid, process.Release()
}

// reap waits for every process that has ended.
func (s *server) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid == 0 {
			return
		}
		for _, svc := range s.services {
			if svc.pid == pid {
				s.hasEnded(svc, status)
			}
		}
	}
}

func (s *server) hasEnded(svc *service, status unix.WaitStatus) {
	svc.pid = 0
	for _, answer := range svc.stopping {
		answer <- reply{}
	}
	svc.stopping = nil
	if svc.stopped {
		svc.last = "stopped"
		return
	}
	svc.ended++
	svc.last = describe(status)
	if !svc.Machine {
		s.later(svc)
	}
}

// later has a service started again.
func (s *server) later(svc *service) {
	time.AfterFunc(restartDelay, func() { s.restarts <- svc.Name })
}

func describe(status unix.WaitStatus) string {
	if status.Signaled() {
		return "signal: " + status.Signal().String()
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}

// endAll kills every other process of the PID namespace and waits until all are gone.
func endAll() error {
	if os.Getpid() != 1 {
		return errors.New("cannot end a PID namespace from a process that is not its first")
	}
	for {
		// Again each time: a process may have forked just before it was killed.
		_ = unix.Kill(-1, unix.SIGKILL) // fails when there is none
		if _, err := unix.Wait4(-1, nil, 0, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return nil // there is none left
		}
	}
}
