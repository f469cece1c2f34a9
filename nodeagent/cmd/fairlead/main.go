// Command fairlead is the agent of one node, and the commands that ask it.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// version is stamped by the build.
var version = "unknown"

func main() {
	// What libraries have to say looks as our own lines do. Once, before any of them runs.
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := root().ExecuteContext(ctx)
	stop()
	var code exitCode
	switch {
	case errors.As(err, &code):
		os.Exit(int(code))
	case err != nil:
		fmt.Fprintln(os.Stderr, "fairlead:", err)
		os.Exit(status.ExitUnasked)
	}
}

// An exitCode ends the program without a word: all has been said.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "fairlead",
		Short:         "Connect a node's pods to its proxy",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	cmd.SetVersionTemplate("{{.Version}}\n")
	cmd.AddCommand(agentCommand(), statusCommand(), drainCommand(), uninstallCommand(), idleCommand(), awaitCommand(), &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version)
			return err
		},
	})
	return cmd
}
