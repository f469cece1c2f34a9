package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/cluster/cgroup"
	"github.com/fairlead-mesh/fairlead/integration/cluster/machine"
	"github.com/fairlead-mesh/fairlead/integration/cluster/supervisor"
)

// A Node is a machine of a cluster. It has IPv4 addresses, and, where the kernel has
// it, IPv6.
type Node struct {
	Name  string
	Addrs []netip.Addr
	Pods  []netip.Prefix // where its pods' addresses are from

	cluster *Cluster
	number  int
	init    supervisor.Client
}

// node returns the node of a number, from 1.
func (c *Cluster) node(number int) *Node {
	n := &Node{Name: "n" + strconv.Itoa(number), cluster: c, number: number}
	n.init.Socket = n.path(socketName)
	for _, f := range c.families() {
		n.Addrs = append(n.Addrs, f.node(number))
		n.Pods = append(n.Pods, f.podsOf(number))
	}
	return n
}

// Node returns the node of that name.
func (c *Cluster) Node(name string) (*Node, error) {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("there is no node %q: there are %s", name, count(len(c.Nodes), "node")+" from n1 on")
}

func (n *Node) path(names ...string) string {
	return n.cluster.path(append([]string{nodesDir, n.Name}, names...)...)
}

// disk is what a node keeps when it is switched off.
func (n *Node) disk() string { return n.path("disk") }

// cgroup is the node's, as seen from outside. Inside, its hierarchies begin there.
func (n *Node) cgroup() cgroup.Group { return n.cluster.state.Cgroup.Child(n.Name) }

func (n *Node) machineFile() string { return n.path("machine.json") }

// Up switches the node on, and returns when Kubernetes finds it ready.
func (n *Node) Up(ctx context.Context) error {
	if err := n.Boot(ctx); err != nil {
		return err
	}
	return n.Join(ctx)
}

// Down switches the node off, as if its plug were pulled: processes, /run and network
// namespaces are gone, its disk is kept. One that is off stays off.
func (n *Node) Down(ctx context.Context) error {
	if err := n.cluster.root.Stop(ctx, n.Name, unix.SIGKILL); err != nil {
		return fmt.Errorf("cannot switch off %s: %w", n.Name, err)
	}
	if err := n.unplug(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return n.cgroup().Remove(ctx)
}

// Reboot switches the node off and on again.
func (n *Node) Reboot(ctx context.Context) error {
	if err := n.Down(ctx); err != nil {
		return err
	}
	return n.Up(ctx)
}

// Boot is the first half of Up: it makes the node's inside and starts containerd, with all
// images. No pod runs before the other half.
func (n *Node) Boot(ctx context.Context) error {
	if err := n.writeFiles(); err != nil {
		return fmt.Errorf("cannot write the files of %s: %w", n.Name, err)
	}
	clock, err := newClock()
	if err != nil {
		return err
	}
	self := n.cluster.path(binDir, "clusterinit")
	err = n.cluster.root.Start(ctx, supervisor.Service{
		Name:    n.Name,
		Args:    append(append([]string{"unshare", "-C"}, clock...), "--", self, "node", n.machineFile()),
		Log:     n.cluster.path(logDir, n.Name+".log"),
		Cgroup:  n.cgroup(),
		Machine: true,
	})
	if err != nil {
		return err
	}
	err = n.cluster.await(ctx, n.cluster.root, "", n.Name+" has started", func(ctx context.Context) error {
		_, err := n.init.List(ctx)
		return err
	})
	if err != nil {
		return err
	}
	if err := n.plug(ctx); err != nil {
		return err
	}
	if err := n.Start(ctx, "containerd"); err != nil {
		return err
	}
	err = n.cluster.await(ctx, n.init, n.Name+"-", "containerd of "+n.Name+" answers", func(ctx context.Context) error {
		_, err := n.Run(ctx, "ctr", "version")
		return err
	})
	if err != nil {
		return err
	}
	if err := n.loadImages(ctx); err != nil {
		return err
	}
	n.cluster.say("%s has booted, and has its images", n.Name)
	return nil
}

// newClock are unshare's arguments by which a node has been up since it was booted, and not
// since the machine was. Where the kernel has no time namespaces, it is as old as that.
func newClock() ([]string, error) {
	if _, err := os.Stat("/proc/self/ns/time"); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return nil, fmt.Errorf("cannot tell for how long the machine has been up: %w", err)
	}
	return []string{"-T", "--boottime", strconv.FormatInt(-up.Sec, 10)}, nil
}

// Join is the second half of Up: it starts what makes the node one of the cluster, and
// waits until it is.
func (n *Node) Join(ctx context.Context) error {
	for _, name := range []string{"kubelet", "kube-proxy"} {
		if err := n.Start(ctx, name); err != nil {
			return err
		}
	}
	booted, err := machine.Read(n.machineFile())
	if err != nil {
		return err
	}
	err = n.cluster.await(ctx, n.init, n.Name+"-", n.Name+" is ready", func(ctx context.Context) error {
		var object nodeObject
		if err := n.cluster.get(ctx, "/api/v1/nodes/"+n.Name, &object); err != nil {
			return err
		}
		return object.objection(booted.BootID)
	})
	if err == nil {
		n.cluster.say("%s is ready", n.Name)
	}
	return err
}

// Start starts one of the node's services: containerd, kubelet or kube-proxy.
func (n *Node) Start(ctx context.Context, service string) error {
	args, known := n.services()[service]
	if !known {
		return fmt.Errorf("%s has no service %q", n.Name, service)
	}
	return n.init.Start(ctx, supervisor.Service{
		Name:   service,
		Args:   append([]string{filepath.Join(n.cluster.state.Programs, service)}, args...),
		Log:    n.cluster.path(logDir, n.Name+"-"+service+".log"),
		Cgroup: n.cgroup().Inside().Child(service),
	})
}

// Stop stops one of the node's services, until Start or the next boot. Pods go on.
func (n *Node) Stop(ctx context.Context, service string) error {
	return n.init.Stop(ctx, service, unix.SIGTERM)
}

// Command returns a command that runs in the node.
func (n *Node) Command(ctx context.Context, args ...string) (*exec.Cmd, error) {
	pid, err := n.init.Pid(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s is switched off: %w", n.Name, err)
	}
	enter := []string{"-t", strconv.Itoa(pid), "-m", "-n", "-u", "-i", "-p", "-C", "--"}
	cmd := command(ctx, "nsenter", append(enter, args...)...)
	cmd.Env = append(n.cluster.environ(), "TERM="+os.Getenv("TERM"))
	cmd.Cancel = func() error { return killFollowers(cmd.Process.Pid) }
	cmd.WaitDelay = 10 * time.Second // then nsenter is killed, too
	return cmd, nil
}

// Run runs a command in the node and returns its output.
func (n *Node) Run(ctx context.Context, args ...string) (string, error) {
	cmd, err := n.Command(ctx, args...)
	if err != nil {
		return "", err
	}
	return output(cmd, n.Name+":", args)
}
