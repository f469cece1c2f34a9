package cluster

import (
	"context"
	"fmt"

	"github.com/fairlead-mesh/fairlead/integration/cluster/supervisor"
)

// Status returns a line for each service, and whether it runs.
func (c *Cluster) Status(ctx context.Context) ([]string, error) {
	all, err := c.root.List(ctx)
	if err != nil {
		return nil, err
	}
	lines := []string{fmt.Sprintf("%-14s %-24s %s", "WHERE", "SERVICE", "STATE")}
	add := func(where string, services []supervisor.Status) {
		for _, s := range services {
			lines = append(lines, fmt.Sprintf("%-14s %-24s %s", where, s.Name, describe(s)))
		}
	}
	var control []supervisor.Status
	for _, s := range all {
		if _, err := c.Node(s.Name); err != nil {
			control = append(control, s)
		}
	}
	add("control plane", control)
	for _, n := range c.Nodes {
		services, err := n.init.List(ctx)
		if err != nil {
			services = []supervisor.Status{{Name: "-", Last: "switched off"}}
		}
		add(n.Name, services)
	}
	return lines, nil
}

func describe(s supervisor.Status) string {
	switch {
	case s.Running && s.Ended == 0:
		return "running"
	case s.Running:
		return fmt.Sprintf("running; has ended %s before, last: %s", count(s.Ended, "time"), s.Last)
	default:
		return "not running: " + s.Last
	}
}
