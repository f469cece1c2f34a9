package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// report is what "fairlead status -o json" prints.
type report struct {
	Node status.Node  `json:"node"`
	Pods []status.Pod `json:"pods"`
}

func statusCommand() *cobra.Command {
	var output, runDir string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which pods are captured, which bypass, and why",
		Long: `Show every pod of the node: captured or not, and why.

Exit code: 0 all as intended; 1 the agent could not be asked; 2 at least one pod
bypasses the mesh; 3 none does, but one is blocked, unsupported, or has been
pending for over a minute.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "table" && output != "json" {
				return fmt.Errorf("unknown output format %q: it is table or json", output)
			}
			r, err := ask(cmd, filepath.Join(runDir, filepath.Base(agentapi.Socket)))
			if err != nil {
				return err
			}
			if err := r.write(cmd, output); err != nil {
				return err
			}
			if code := status.ExitCode(r.Pods, time.Now()); code != status.ExitOK {
				return exitCode(code)
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	cmd.Flags().StringVar(&runDir, "run-dir", agentapi.RunDir, "the agent's run directory")
	return cmd
}

// patience is how long the agent may take to report.
const patience = 5 * time.Second

// ask has the agent report: the node first, then a pod a line.
func ask(cmd *cobra.Command, socket string) (report, error) {
	r := report{Pods: []status.Pod{}}
	head := true
	ctx, cancel := context.WithTimeout(cmd.Context(), patience)
	defer cancel()
	err := agentapi.Client{Socket: socket}.Stream(ctx, agentapi.Request{Status: &agentapi.StatusRequest{}}, func(line json.RawMessage) error {
		if head {
			head = false
			return json.Unmarshal(line, &r.Node)
		}
		var pod status.Pod
		if err := json.Unmarshal(line, &pod); err != nil {
			return err
		}
		r.Pods = append(r.Pods, pod)
		return nil
	})
	if err != nil {
		return r, explain(err, socket, patience)
	}
	return r, nil
}

// explain says what helps when the agent could not be asked.
func explain(err error, socket string, patience time.Duration) error {
	switch {
	case errors.Is(err, os.ErrPermission):
		err = fmt.Errorf("%w; only root may ask", err)
	case errors.Is(err, agentapi.ErrAbsent):
		err = fmt.Errorf("%w; is it running, and is %s its socket (--run-dir, as runDir in its configuration)?", err, socket)
	case errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("it has not answered within %s; look at its log and at /livez, and restart it if it hangs", patience)
	}
	return fmt.Errorf("cannot ask the agent: %w", err)
}

func (r report) write(cmd *cobra.Command, output string) error {
	if output == "table" {
		return status.WriteTable(cmd.OutOrStdout(), r.Node, r.Pods, time.Now())
	}
	encoder := json.NewEncoder(cmd.OutOrStdout())
	encoder.SetIndent("", "  ")
	return encoder.Encode(r)
}
