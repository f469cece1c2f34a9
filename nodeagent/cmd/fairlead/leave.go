package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// left is what "fairlead drain -o json" and "fairlead uninstall -o json" print.
type left struct {
	Pods  []released    `json:"pods"`
	Left  int           `json:"left"`
	Steps []status.Step `json:"steps,omitempty"`
}

// A released is a pod that was to be released.
type released struct {
	status.Pod
	Released bool `json:"released"`
}

// exitLeft: something is left on the node.
const exitLeft = 2

const leaveCodes = `Exit code: 0 nothing is left; 1 the agent could not be asked; 2 something is left,
which the output names.`

// What both commands take.
type leaveFlags struct {
	output  string
	timeout time.Duration
}

func (f *leaveFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.output, "output", "o", "table", "table or json")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 2*time.Minute, "how long to wait for the pods to be released")
}

func (f *leaveFlags) check() error {
	if f.output != "table" && f.output != "json" {
		return fmt.Errorf("unknown output format %q: it is table or json", f.output)
	}
	return nil
}

func drainCommand() *cobra.Command {
	var flags leaveFlags
	var runDir string
	var undo bool
	cmd := &cobra.Command{
		Use:   "drain [--undo]",
		Short: "Release every pod of this node, and capture none",
		Long: `Release every pod of this node as when its label is taken away: its new connections
are direct, those through the proxy are drained, and nothing of ours is left in it.

Until it is undone no pod is captured here, and one that asks for it does not start:
it would bypass the mesh. A restart of the agent changes nothing about that; a boot of
the node ends it. To interrupt the command, or its timeout, ends the waiting alone.

` + leaveCodes,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flags.check(); err != nil {
				return err
			}
			socket := filepath.Join(runDir, filepath.Base(agentapi.Socket))
			l, err := drain(cmd, socket, undo, flags.timeout)
			if err != nil {
				return explain(err, socket, flags.timeout)
			}
			if undo {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "pods of this node are captured again, as they ask for it: see fairlead status")
				return err
			}
			return l.write(cmd, flags.output)
		},
	}
	flags.add(cmd)
	cmd.Flags().BoolVar(&undo, "undo", false, "capture the node's pods again")
	cmd.Flags().StringVar(&runDir, "run-dir", agentapi.RunDir, "the agent's run directory")
	return cmd
}

// drain has the agent release the node's pods, and waits. That the time is over is no
// error: what is left says so.
func drain(cmd *cobra.Command, socket string, undo bool, timeout time.Duration) (left, error) {
	l := left{Pods: []released{}}
	ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
	defer cancel()
	heard := false
	err := agentapi.Client{Socket: socket}.Stream(ctx, agentapi.Request{Drain: &agentapi.DrainRequest{Undo: undo}}, func(line json.RawMessage) error {
		var pod status.Pod
		if err := json.Unmarshal(line, &pod); err != nil {
			return err
		}
		heard = true
		l.take(pod)
		_, err := fmt.Fprintf(cmd.ErrOrStderr(), "%s/%s: %s (%s)\n", pod.Namespace, pod.Name, pod.State, pod.Reason)
		return err
	})
	if heard && errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	return l, err
}

// take makes pod's news the last that is known of it.
func (l *left) take(pod status.Pod) {
	news := released{pod, !pod.Left()}
	at := len(l.Pods)
	for i, p := range l.Pods {
		if p.Namespace == pod.Namespace && p.Name == pod.Name && p.UID == pod.UID {
			at = i
		}
	}
	if at == len(l.Pods) {
		l.Pods = append(l.Pods, news)
	}
	l.Pods[at] = news
	l.Left = 0
	for _, p := range l.Pods {
		if !p.Released {
			l.Left++
		}
	}
}

func (l left) write(cmd *cobra.Command, output string) error {
	out := cmd.OutOrStdout()
	var err error
	if output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(l)
	} else {
		pods := make([]status.Pod, len(l.Pods))
		for i, p := range l.Pods {
			pods[i] = p.Pod
		}
		if err = status.WriteReleased(out, pods); err == nil && len(l.Steps) > 0 {
			_, err = fmt.Fprintln(out)
		}
		if err == nil {
			err = status.WriteSteps(out, l.Steps)
		}
	}
	if err == nil && l.something() {
		return exitCode(exitLeft)
	}
	return err
}

// something says whether something is left that nobody wants there.
func (l left) something() bool {
	for _, s := range l.Steps {
		if s.Outcome == status.Failed {
			return true
		}
	}
	return l.Left > 0
}

func uninstallCommand() *cobra.Command {
	var flags leaveFlags
	var configPath, copyTo string
	var force bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take everything of ours from this node",
		Long: `Release every pod of this node (see drain), and then take away our list in the runtime's
configuration, our table in the host's network namespace, what stands in pods that
nobody knows, and, unless the runtime is CRI-O, the plugin's binary. An agent that runs
does it, and puts nothing there again, even if it is restarted. Where none runs this
command does it, by what is on record and what the kernel shows; it cannot
change then what the Kubernetes API shows of the pods.

While a pod cannot be released the rest stays, so that it is not cut off: with --force it
goes, too.

` + leaveCodes,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := flags.check(); err != nil {
				return err
			}
			c, err := loadConfig(configPath, cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			l, err := uninstall(cmd, c, flags.timeout, force)
			if err != nil {
				return explain(err, c.File("agent.sock"), flags.timeout)
			}
			var copied bytes.Buffer
			cmd.SetOut(io.MultiWriter(cmd.OutOrStdout(), &copied))
			err = l.write(cmd, flags.output)
			if copyTo != "" {
				err = cmp.Or(os.WriteFile(copyTo, copied.Bytes(), 0o600), err)
			}
			return err
		},
	}
	flags.add(cmd)
	cmd.Flags().StringVar(&copyTo, "copy-to", "", "a file to write the report to as well, such as a container's termination log")
	cmd.Flags().BoolVar(&force, "force", false, "take the rest away even if a pod cannot be released: it may have no network then")
	cmd.Flags().StringVar(&configPath, "config", config.DefaultPath, "the agent's configuration file")
	return cmd
}

// uninstall has the agent do it, or an agent of its own if there is none.
func uninstall(cmd *cobra.Command, c config.Config, timeout time.Duration, force bool) (left, error) {
	l, err := leave(cmd, c.File("agent.sock"), timeout, force)
	if errors.Is(err, agentapi.ErrAbsent) {
		return withoutAgent(cmd, c, timeout, force)
	}
	return l, err
}

// leave has the agent that listens release the pods, and take the rest away.
func leave(cmd *cobra.Command, socket string, timeout time.Duration, force bool) (left, error) {
	l, err := drain(cmd, socket, false, timeout)
	if err == nil && (l.Left == 0 || force) {
		l.Steps, err = takeAway(cmd.Context(), socket)
	}
	return l, err
}

// takeAway has the agent take away what is not in pods.
func takeAway(ctx context.Context, socket string) ([]status.Step, error) {
	const most = time.Minute
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	var steps []status.Step
	err := agentapi.Client{Socket: socket}.Stream(ctx, agentapi.Request{Uninstall: &agentapi.UninstallRequest{}}, func(line json.RawMessage) error {
		var s status.Step
		err := json.Unmarshal(line, &s)
		steps = append(steps, s)
		return err
	})
	return steps, err
}
