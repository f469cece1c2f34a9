// Command clusterinit is the first process of a cluster, and of each of its nodes.
// The cluster starts it; nobody else does.
//
//	clusterinit cluster FILE          supervise a cluster's services
//	clusterinit node FILE             make a node's inside, and supervise its services
//	clusterinit enter GROUP COMMAND   enter a control group and become COMMAND
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/cluster/cgroup"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "clusterinit: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return errors.New("it is started by the cluster; see package cluster")
	}
	switch verb, rest := args[0], args[2:]; verb {
	case "cluster":
		return cluster.Supervise(context.Background(), args[1])
	case "node":
		return cluster.SuperviseNode(args[1])
	case "enter":
		return enter(args[1], rest)
	default:
		return fmt.Errorf("unknown verb %q", verb)
	}
}

func enter(group string, command []string) error {
	var g cgroup.Group
	if err := json.Unmarshal([]byte(group), &g); err != nil {
		return err
	}
	if err := g.Enter(); err != nil {
		return err
	}
	if len(command) == 0 {
		return errors.New("no command")
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	return unix.Exec(path, command, os.Environ())
}
