package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/nodeagent/config"
)

// withoutAgent uninstalls a node on which no agent runs: this process is one, for a while,
// that knows no pods but those on record, is drained from the first, and installs nothing: a
// guest. So the pods are released as they always are; a node proxy that dials is told, too.
// That the node is drained is written down as it always is, and so not before it has the lock.
func withoutAgent(cmd *cobra.Command, c config.Config, timeout time.Duration, force bool) (l left, err error) {
	if os.Geteuid() != 0 {
		return left{}, errors.New("no agent runs on this node, and only root can do its work")
	}
	if _, err := fmt.Fprintln(cmd.ErrOrStderr(), "no agent runs on this node: its pods are released by what is on record; what the Kubernetes API shows of them stays"); err != nil {
		return left{}, err
	}
	socket := c.File("agent.sock")
	c.HTTPAddress, c.Kubeconfig = "", ""
	if c.Install != nil { // nothing is installed, and the plugin need not be at hand
		if c.Install.Plugin, err = os.Executable(); err != nil {
			return left{}, err
		}
	}
	if err := os.MkdirAll(c.RunDir, 0o700); err != nil {
		return left{}, err
	}
	nobody, err := os.MkdirTemp(c.RunDir, "nobody")
	if err != nil {
		return left{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(nobody)) }()
	logger := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: max(c.LogLevel, slog.LevelWarn)}))
	a, err := newAgent(c, nobody, true, logger)
	if err != nil {
		return left{}, err
	}
	ctx, end := context.WithCancel(cmd.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.run(ctx) }()
	select {
	case <-a.reconciler.Adopted(): // it listens, too
		l, err = leave(cmd, socket, timeout, force)
		end()
		err = errors.Join(err, <-ended)
	case err = <-ended:
		end()
	}
	return l, err
}

// listens says whether the agent serves proxies. A guest leaves their socket to whoever has it
// by now, and has nothing to tell them if no pod is on record.
func (a *agent) listens() bool {
	if !a.guest {
		return true
	}
	if records, err := os.ReadDir(a.config.File("pods")); errors.Is(err, fs.ErrNotExist) || err == nil && len(records) == 0 {
		return false
	}
	err := dial(a.config.ProxySocket)
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ECONNREFUSED)
}
