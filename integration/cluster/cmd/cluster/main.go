// Command cluster makes a Kubernetes cluster out of namespaces to play with, on a
// machine that is otherwise left alone. "make cluster-up" is the way to start it.
//
//	cluster build [-source DIR]            build what it consists of, if need be
//	cluster up [-nodes N] [-source DIR]    build, start it, and leave it running
//	cluster down                           end it; nothing is left
//	cluster status                         show what runs
//	cluster node-down NODE                 switch a node off, as by its plug
//	cluster node-up NODE                   switch it on again
//	cluster exec NODE [COMMAND...]         run a command, or a shell, in a node
//	cluster load ARCHIVE...                give all nodes the images that "make image" wrote
//	cluster kubectl ARGUMENTS...           run kubectl; the link kubectl does it too
//	cluster helm ARGUMENTS...              run helm, likewise; "make cluster-helm" builds it
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	args := os.Args[1:]
	if name := filepath.Base(os.Args[0]); name == "kubectl" || name == "helm" {
		args = append([]string{name}, args...)
	}
	err := run(ctx, args)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "cluster: %v\n", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: cluster build [-source DIR] | up [-nodes N] [-source DIR] | down | status | node-down NODE | node-up NODE | " +
	"exec NODE [COMMAND [ARGUMENT]] | load ARCHIVE... | kubectl [ARGUMENT] | helm [ARGUMENT]")

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	dir, err := cluster.DefaultDir()
	if err != nil {
		return err
	}
	verb, args := args[0], args[1:]
	switch verb {
	case "build":
		return build(ctx, args)
	case "up":
		return up(ctx, args)
	case "down":
		return cluster.Down(ctx, dir)
	}
	c, err := cluster.Open(ctx, dir)
	if err != nil {
		return err
	}
	switch {
	case verb == "status":
		return status(ctx, c)
	case verb == "kubectl":
		cmd, err := c.KubectlCommand(ctx, args...)
		return become(cmd, err)
	case verb == "load" && len(args) > 0:
		return load(ctx, c, args)
	case verb == "helm":
		return helm(ctx, c, args)
	case verb == "exec" && len(args) > 0, verb == "node-down" && len(args) == 1, verb == "node-up" && len(args) == 1:
		n, err := c.Node(args[0])
		if err != nil {
			return err
		}
		return onNode(ctx, verb, n, args[1:])
	}
	return errUsage
}

func load(ctx context.Context, c *cluster.Cluster, archives []string) error {
	for _, archive := range archives {
		name, err := c.LoadArchive(ctx, archive)
		if err != nil {
			return err
		}
		fmt.Println(name)
	}
	return nil
}

// helm runs what lies in the directory tools beside this program.
func helm(ctx context.Context, c *cluster.Cluster, args []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	program := filepath.Join(filepath.Dir(self), "tools/helm")
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("cannot run helm: %w; remedy: make cluster-helm", err)
	}
	cmd, err := c.Command(ctx, append([]string{program}, args...)...)
	return become(cmd, err)
}

func onNode(ctx context.Context, verb string, n *cluster.Node, command []string) error {
	switch verb {
	case "node-down":
		return n.Down(ctx)
	case "node-up":
		return n.Up(ctx)
	}
	if len(command) == 0 {
		command = []string{"bash"}
	}
	cmd, err := n.Command(ctx, command...)
	return become(cmd, err)
}

// parse reads the flags of build and up.
func parse(verb string, args []string) (cluster.Config, error) {
	c := cluster.Config{Out: os.Stdout}
	flags := flag.NewFlagSet("cluster "+verb, flag.ContinueOnError)
	flags.StringVar(&c.Source, "source", "integration/cluster", "the `directory` with the sources of this command")
	if verb == "up" {
		flags.IntVar(&c.Nodes, "nodes", 1, "how many nodes")
	}
	err := flags.Parse(args)
	if err == nil && flags.NArg() > 0 {
		err = errUsage
	}
	return c, err
}

func build(ctx context.Context, args []string) error {
	config, err := parse("build", args)
	if err != nil {
		return err
	}
	_, err = cluster.Build(ctx, config.Source, config.Out)
	return err
}

func up(ctx context.Context, args []string) error {
	config, err := parse("up", args)
	if err != nil {
		return err
	}
	c, err := cluster.Start(ctx, config)
	if err != nil {
		return err
	}
	if err := c.Keep(ctx); err != nil {
		return errors.Join(err, c.Close())
	}
	kubectl, err := c.KubectlCommand(ctx, "get", "pods", "-A")
	if err != nil {
		return err
	}
	fmt.Printf(`
kubectl       bin/kubectl get pods -A
which is      %s
in a node     bin/cluster exec n1
an image      %s; tests load others
the end       make cluster-down
`, strings.Join(kubectl.Args, " "), cluster.TestImage)
	return nil
}

// become runs a command in this one's place.
func become(cmd *exec.Cmd, err error) error {
	if err != nil {
		return err
	}
	return unix.Exec(cmd.Path, cmd.Args, cmd.Environ())
}

func status(ctx context.Context, c *cluster.Cluster) error {
	lines, err := c.Status(ctx)
	for _, line := range lines {
		fmt.Println(line)
	}
	return err
}
