package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-mesh/fairlead/nodeagent/kube"
)

// The chart uninstalls nodes by a DaemonSet, whose pods end in idle, and waits for them by
// await. People have no use for either.

func idleCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "idle",
		Short:  "Do nothing until told to end",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			<-cmd.Context().Done()
			return nil
		},
	}
}

func awaitCommand() *cobra.Command {
	var selector string
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:    "await DAEMONSET",
		Short:  "Wait until the pods of a DaemonSet have uninstalled their nodes, and report on each",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace := os.Getenv("POD_NAMESPACE")
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "DaemonSet %[2]s uninstalls every node that it has a pod on, new ones too, until it is deleted. If helm has ended without that: "+
				"kubectl -n %[1]s delete daemonset %[2]s\n", namespace, args[0]); err != nil {
				return err
			}
			client, err := kube.NewClient("", version)
			if err != nil {
				return err
			}
			return await(cmd.Context(), cmd.OutOrStdout(), timeout, func(ctx context.Context) ([]kube.Leaving, int, error) {
				return client.Leavings(ctx, namespace, args[0], selector)
			})
		},
	}
	cmd.Flags().StringVar(&selector, "selector", "", "labels of the DaemonSet's pods")
	cmd.Flags().DurationVar(&timeout, "timeout", 3*time.Minute, "how long to wait; nodes that have not answered by then are named")
	return cmd
}

// await asks until every node is done or the time is over, and says what became of each.
func await(ctx context.Context, out io.Writer, timeout time.Duration, ask func(context.Context) ([]kube.Leaving, int, error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var nodes []kube.Leaving
	var all int
	problem := errors.New("it was not asked")
	for ctx.Err() == nil {
		now, desired, err := ask(ctx)
		if err == nil || ctx.Err() == nil {
			problem = err
		}
		if err == nil {
			nodes, all = now, desired
		}
		if err == nil && len(undone(nodes)) == 0 && len(nodes) >= all {
			break
		}
		sleep(ctx, time.Second)
	}
	for _, n := range nodes {
		outcome := "uninstalled"
		if !n.Done {
			outcome = "NOT uninstalled"
		}
		if _, err := fmt.Fprintf(out, "node %s: %s\n  %s\n", n.Node, outcome, strings.ReplaceAll(strings.TrimSpace(n.Message), "\n", "\n  ")); err != nil {
			return err
		}
	}
	if problem != nil {
		return problem
	}
	left := undone(nodes)
	if missing := all - len(nodes); missing > 0 {
		left = append(left, fmt.Sprintf("%d without a pod", missing))
	}
	if len(left) > 0 {
		return fmt.Errorf("%d of %d nodes are not uninstalled: %s; mend what they say, or run fairlead uninstall there, and try again; "+
			"nodes that run no pods of ours are left out by uninstall.affinity in the chart's values; helm uninstall --no-hooks leaves them as they are",
			len(undone(nodes))+max(0, all-len(nodes)), max(all, len(nodes)), strings.Join(left, ", "))
	}
	_, err := fmt.Fprintf(out, "all %d nodes are uninstalled\n", len(nodes))
	return err
}

func undone(nodes []kube.Leaving) []string {
	var names []string
	for _, n := range nodes {
		if !n.Done {
			names = append(names, n.Node)
		}
	}
	return names
}
