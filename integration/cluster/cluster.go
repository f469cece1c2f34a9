package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/cluster/cgroup"
	"github.com/fairlead-mesh/fairlead/integration/cluster/supervisor"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// A Cluster is one that runs.
type Cluster struct {
	Nodes []*Node

	dir   string
	state state
	out   io.Writer
	start time.Time

	root     supervisor.Client
	lifeline *os.File      // nil: somebody else has started it
	ended    chan struct{} // closed when the root process has been waited for; nil with lifeline
	netns    *netns.Handle
	api      *http.Client
}

// Start starts a cluster and returns when its nodes are ready. It lives until Close,
// or, after Keep, until Down. If Start fails, nothing of it is left but its logs.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	if err := errors.Join(config.complete(), config.check()); err != nil {
		return nil, err
	}
	programs, err := Build(ctx, config.Source, config.Out)
	if err != nil {
		return nil, err
	}
	lock, err := lockDir(config.Dir)
	if errors.Is(err, errLocked) {
		return nil, fmt.Errorf("a cluster runs in %s already; remedy: make cluster-down, or another directory", config.Dir)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot keep a cluster in %s: %w", config.Dir, err)
	}
	c := &Cluster{dir: config.Dir, out: config.Out, start: time.Now(), state: state{Programs: programs, Nodes: config.Nodes, IPv6: haveIPv6()}}
	err = c.prepare(ctx, config.Source)
	if err == nil {
		err = c.startRoot(ctx, lock)
	}
	_ = lock.Close() // the root has it too; without one it is given up here
	if err == nil {
		err = c.startAll(ctx)
	}
	if err != nil {
		if errors.Is(ctx.Err(), context.Canceled) {
			err = context.Cause(ctx) // whatever it was that could not go on
		}
		return nil, errors.Join(fmt.Errorf("cannot start the cluster: %w", err), c.abandon())
	}
	return c, nil
}

// prepare makes the directory's content, and the control groups.
func (c *Cluster) prepare(ctx context.Context, source string) error {
	if err := clearDir(ctx, c.dir); err != nil {
		return err
	}
	outside, err := cgroup.Own()
	if err != nil {
		return err
	}
	c.state.Outside, c.state.Cgroup = outside, outside.Child(groupName(c.dir))
	// Before they are made, so that whoever comes later knows of them.
	if err := writeJSON(c.path(stateName), c.state); err != nil {
		return err
	}
	for _, dir := range []string{logDir, nodesDir, imagesDir, binDir} {
		if err := os.MkdirAll(c.path(dir), 0o755); err != nil {
			return err
		}
	}
	err = goCommand(ctx, source, os.TempDir(), "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", c.path(binDir)+"/",
		"./cmd/clusterinit", "./cmd/pause", "./cmd/testapp")
	if err != nil {
		return err
	}
	if err := c.makeIdentities(); err != nil {
		return err
	}
	if err := errors.Join(c.writeImages(), c.writeContainers(ctx)); err != nil {
		return err
	}
	first := c.state.Cgroup.Child(rootGroup)
	return errors.Join(outside.Delegate(), c.state.Cgroup.Create(), c.state.Cgroup.Delegate(), first.Create())
}

// rootGroup is the control group of the root process.
const rootGroup = "init"

// startRoot starts the first process, and waits until it takes requests.
func (c *Cluster) startRoot(ctx context.Context, lock *os.File) error {
	inside, outside, err := os.Pipe()
	if err != nil {
		return err
	}
	defer func() { _ = inside.Close() }() // the root has its own
	c.lifeline = outside
	log, err := os.Create(c.path(logDir, "init.log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the root has its own
	c.root.Socket = c.path(socketName)
	command := append(enterCommand(c.dir, c.state.Cgroup.Child(rootGroup)), c.path(binDir, "clusterinit"), "cluster", c.dir)
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Dir = "/"
	cmd.Env = c.environ()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{inside, lock} // see Supervise
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot make the cluster's namespaces: %w", err)
	}
	c.ended = make(chan struct{})
	go func() {
		defer close(c.ended)
		_ = cmd.Wait() // its log says more
	}()
	err = until(ctx, 10*time.Millisecond, func() (bool, error) {
		select {
		case <-c.ended:
			return false, fmt.Errorf("its first process ended: %s\n%s", cmd.ProcessState, c.logEnd("init.log"))
		default:
			_, err := c.root.List(ctx)
			return err == nil, nil
		}
	})
	if err != nil {
		return err
	}
	return c.enterNetns(ctx)
}

// environ is the environment of all that runs in the cluster. The starter's own names
// what is not there, as a directory for temporary files.
func (c *Cluster) environ() []string {
	return []string{"HOME=/root", "PATH=" + c.state.Programs + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
}

// enterNetns opens the door to the cluster's network namespace.
func (c *Cluster) enterNetns(ctx context.Context) error {
	pid, err := c.root.Pid(ctx)
	if err != nil {
		return err
	}
	c.netns, err = netns.Open("/proc/" + strconv.Itoa(pid) + "/ns/net")
	return err
}

// startAll starts everything at once where it can.
func (c *Cluster) startAll(ctx context.Context) error {
	if err := c.makeBridge(); err != nil {
		return err
	}
	apiReady := make(chan struct{})
	all, ctx := errgroup.WithContext(ctx)
	all.Go(func() error {
		defer close(apiReady)
		return c.startControlPlane(ctx)
	})
	for i := range c.state.Nodes {
		n := c.node(i + 1)
		c.Nodes = append(c.Nodes, n)
		all.Go(func() error {
			if err := n.Boot(ctx); err != nil {
				return err
			}
			select {
			case <-apiReady:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			return n.Join(ctx)
		})
	}
	if err := all.Wait(); err != nil {
		return err
	}
	c.say("%s ready", count(len(c.Nodes), "node"))
	return nil
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// Open returns the cluster that runs in a directory.
func Open(ctx context.Context, dir string) (*Cluster, error) {
	s, err := readState(dir)
	c := &Cluster{dir: dir, state: s, out: io.Discard, start: time.Now(), root: supervisor.Client{Socket: filepath.Join(dir, socketName)}}
	if err == nil {
		err = errors.Join(c.enterNetns(ctx), c.connectAPI())
	}
	if err != nil {
		return nil, fmt.Errorf("no cluster runs in %s (%w); remedy: make cluster-up", dir, err)
	}
	for i := range s.Nodes {
		c.Nodes = append(c.Nodes, c.node(i+1))
	}
	return c, nil
}

// Keep lets the cluster go on after this process.
func (c *Cluster) Keep(ctx context.Context) error {
	return c.root.Keep(ctx)
}

// Close ends the cluster; nothing of it is left.
func (c *Cluster) Close() error {
	c.letGo()
	return errors.Join(Down(context.Background(), c.dir), c.reap())
}

// abandon is Close for a start that failed: the logs are left.
func (c *Cluster) abandon() error {
	c.letGo()
	if err := errors.Join(end(context.Background(), c.dir, logDir), c.reap()); err != nil {
		return err
	}
	fmt.Fprintf(c.out, "its logs are in %s\n", c.path(logDir))
	return nil
}

func (c *Cluster) letGo() {
	if c.lifeline != nil {
		_ = c.lifeline.Close() // the pipe's other end is told, whatever this says
	}
	if c.netns != nil {
		_ = c.netns.Close() // was only read
	}
}

// reap waits until not even a name is left of a root process that has ended.
func (c *Cluster) reap() error {
	if c.ended == nil {
		return nil
	}
	select {
	case <-c.ended:
		return nil
	case <-time.After(patience):
		return errors.New("cannot see the end of the cluster's first process")
	}
}

// Down ends the cluster that runs in a directory, whoever started it, and removes
// what it left, also if it has ended already.
func Down(ctx context.Context, dir string) error {
	if err := end(ctx, dir); err != nil {
		return fmt.Errorf("cannot end the cluster in %s: %w", dir, err)
	}
	return os.RemoveAll(dir)
}

// patience is how long a cluster may take to end once it was told to.
const patience = 30 * time.Second

func end(ctx context.Context, dir string, keep ...string) error {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	root := supervisor.Client{Socket: filepath.Join(dir, socketName)}
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	// One that cannot be asked has ended, or is just ending.
	if err := root.End(patient); err != nil && patient.Err() != nil {
		_ = root.Kill(ctx) // the lock tells whether it worked
	}
	var lock *os.File
	patient, cancel = context.WithTimeoutCause(ctx, patience, errors.New("its first process does not end"))
	defer cancel()
	err := until(patient, 10*time.Millisecond, func() (done bool, err error) {
		lock, err = lockDir(dir)
		if errors.Is(err, errLocked) {
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }() // nothing was written
	return clearDir(patient, dir, keep...)
}

// Dial connects from inside the cluster's network namespace, from where all pods,
// Services and the API server can be reached.
func (c *Cluster) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	dialErr := c.netns.Do(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, dialErr
}

func (c *Cluster) path(names ...string) string {
	return filepath.Join(append([]string{c.dir}, names...)...)
}

// say tells people how far it is.
func (c *Cluster) say(format string, args ...any) {
	fmt.Fprintf(c.out, "%5.1f s  %s\n", time.Since(c.start).Seconds(), fmt.Sprintf(format, args...))
}

// logEnd returns the end of one of the cluster's logs.
func (c *Cluster) logEnd(name string) string {
	content, err := os.ReadFile(c.path(logDir, name))
	if err != nil {
		return err.Error()
	}
	return name + ":\n" + lastLines(content, 15)
}
