package clusterbench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// requests counts what the agent has asked of the API server since the first of a
// namespace's pods was created, and when. Half of those on its node are captured.
func (b *bencher) requests(ctx context.Context, began time.Time, namespace string) ([]figures.Measure, error) {
	pods := b.Warm + b.Starts
	if err := b.shown(ctx, namespace, pods); err != nil {
		return nil, err
	}
	agent, err := b.requestsOf(account, began)
	if err != nil {
		return nil, err
	}
	node, err := b.requestsOf("system:node:"+b.ours().Name, began)
	if err != nil {
		return nil, err
	}
	added, err := b.added(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return compareRequests(agent, node, added, namespace, pods)
}

// shown waits until the API shows that the pods are captured.
func (b *bencher) shown(ctx context.Context, namespace string, pods int) error {
	return netlab.Await(ctx, time.Minute, 100*time.Millisecond, func(ctx context.Context) error {
		var list struct{ Items []object }
		if err := b.api.get(ctx, "/api/v1/namespaces/"+namespace+"/pods", &list); err != nil {
			return err
		}
		shown := 0
		for _, o := range list.Items {
			if o.Metadata.Annotations["ambient.istio.io/redirection"] == "enabled" {
				shown++
			}
		}
		if shown != pods {
			return fmt.Errorf("the API shows %d of %d pods as captured", shown, pods)
		}
		return nil
	})
}

func (b *bencher) requestsOf(user string, from time.Time) ([]request, error) {
	log, err := os.Open(b.cluster.AuditLog())
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // was only read
	return readAudit(log, user, from)
}

// added is when pods' ADDs ended: libcni writes down the result of each when the last
// plugin has ended, and the file's time is that of the kernel's last tick, a few
// milliseconds at most before.
func (b *bencher) added(ctx context.Context, namespace string) (map[string]time.Time, error) {
	const show = `cd /var/lib/cni/results; for file in *; do stat -c %.9Y "$file"; cat "$file"; echo; done`
	out, err := b.ours().Run(ctx, "sh", "-c", show)
	if err != nil {
		return nil, err
	}
	return parseAdded(out, namespace)
}

// parseAdded reads pairs of lines: a time in seconds, and a result of libcni's.
func parseAdded(out, namespace string) (map[string]time.Time, error) {
	all := map[string]time.Time{}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		var seconds, nanoseconds int64
		if _, err := fmt.Sscanf(lines[i], "%d.%09d", &seconds, &nanoseconds); err != nil {
			return nil, fmt.Errorf("cannot read when an ADD ended: %q: %w", lines[i], err)
		}
		var result struct{ CNIArgs [][2]string }
		if err := json.Unmarshal([]byte(lines[i+1]), &result); err != nil {
			return nil, fmt.Errorf("cannot read libcni's result: %w", err)
		}
		args := map[string]string{}
		for _, arg := range result.CNIArgs {
			args[arg[0]] = arg[1]
		}
		if args["K8S_POD_NAMESPACE"] == namespace {
			all[args["K8S_POD_NAME"]] = time.Unix(seconds, nanoseconds)
		}
	}
	return all, nil
}

func compareRequests(agent, node []request, added map[string]time.Time, namespace string, captured int) ([]figures.Measure, error) {
	kinds := map[string]int{}
	early := 0
	var after []time.Duration // the pod's ADD
	for _, r := range agent {
		kinds[r.kind()]++
		end, ours := added[r.ObjectRef.Name]
		if !ours || r.ObjectRef.Namespace != namespace {
			continue
		}
		after = append(after, r.RequestReceivedTimestamp.Sub(end))
		if after[len(after)-1] < 0 {
			early++
		}
	}
	kubelet := 0
	for _, r := range node {
		if r.ObjectRef.Namespace == namespace {
			kubelet++
		}
	}
	if len(added) < captured || len(after) == 0 || kubelet == 0 {
		return nil, fmt.Errorf("libcni has the results of %d pods, and the audit log %d requests of the agent and %d of the kubelet about them", len(added), len(after), kubelet)
	}
	return []figures.Measure{
		{
			What: "API requests of the agent, per start of a captured pod", Value: float64(len(agent)) / float64(captured), Budget: figures.AtMost(1),
			Others: []figures.Other{{Name: "the kubelet's, per pod start", Value: float64(kubelet) / float64(len(added))}},
			Note:   fmt.Sprintf("by the API server's audit log, all of the agent's while %d pods started, %d of them captured: %v", len(added), captured, kinds),
		},
		{
			What: "API requests of the agent, before the pod's ADD has ended", Value: float64(early), Budget: figures.AtMost(0),
			Note: fmt.Sprintf("the earliest reached the API server %.1f ms after libcni's result of the ADD was written, whose time is that of the kernel's last tick", figures.Ms(slices.Min(after))),
		},
	}, nil
}

// kind is what a request asks for, without the name.
func (r request) kind() string {
	return strings.TrimSuffix(r.Verb+" "+r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/")
}
