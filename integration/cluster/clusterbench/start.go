package clusterbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

const (
	modeLabel = "istio.io/dataplane-mode"
	captured  = "ambient" // by that label
	left      = "none"
)

// template is a pod of the test app on a node, which asks to be captured or does not.
func template(n *cluster.Node, mode string) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"app": "app", modeLabel: mode}},
		"spec": map[string]any{
			"nodeSelector":                  map[string]any{"kubernetes.io/hostname": n.Name},
			"terminationGracePeriodSeconds": 1,
			"containers": []any{map[string]any{
				"name": "app", "image": cluster.TestImage, "imagePullPolicy": "Never",
				"readinessProbe": map[string]any{"httpGet": map[string]any{"path": "/healthz", "port": 8080}, "periodSeconds": 1},
			}},
		},
	}
}

// A kind is pods that are started in the same way.
type kind struct {
	name string
	node *cluster.Node
	mode string

	network []time.Duration // that each pod's network took, by containerd
	ready   []time.Duration // from each pod's creation until the API shows it ready
}

// starts has pods start one at a time.
func (b *bencher) starts(ctx context.Context) ([]figures.Measure, error) {
	const namespace = "start"
	if err := b.api.newNamespace(ctx, namespace); err != nil {
		return nil, err
	}
	kinds := []*kind{
		{name: "captured", node: b.ours(), mode: captured},
		{name: "left", node: b.ours(), mode: left},
		{name: "bare", node: b.bare(), mode: captured},
	}
	began := time.Now()
	for i := range b.Warm + b.Starts {
		for _, k := range kinds {
			name := fmt.Sprintf("%s-%d", k.name, i)
			network, ready, err := b.start(ctx, k, namespace, name)
			if err != nil {
				return nil, fmt.Errorf("pod %s: %w", name, err)
			}
			if i >= b.Warm {
				k.network, k.ready = append(k.network, network), append(k.ready, ready)
			}
		}
	}
	compared := func(what, note string, pick func(*kind) figures.Sample) figures.Measure {
		return figures.Measure{
			What: what, Value: pick(kinds[0]).Median(), Unit: "ms", Note: note,
			Others: []figures.Other{
				{Name: "without us", Value: pick(kinds[2]).Median()}, {Name: "a pod not captured", Value: pick(kinds[1]).Median()},
			},
		}
	}
	const note = "without us: the same pod on the other node, in turn"
	measures := []figures.Measure{
		compared("CNI ADD on a cluster, all that containerd has libcni do for a pod, p50",
			"by containerd's own metric (network_plugin_operations, set_up_pod), one pod at a time: bridge, host-local, portmap, fairlead-cni, and loopback beside them; "+note,
			func(k *kind) figures.Sample { return k.network }),
		compared("one pod on a cluster, from its creation to Ready, p50", note, func(k *kind) figures.Sample { return k.ready }),
	}
	requests, err := b.requests(ctx, began, namespace)
	return append(measures, requests...), errors.Join(err, b.api.clear(ctx, namespace))
}

// start starts a pod, and returns how long it and its network took.
func (b *bencher) start(ctx context.Context, k *kind, namespace, name string) (network, ready time.Duration, err error) {
	before, err := setUp(ctx, b.cluster, k.node)
	if err != nil {
		return 0, 0, err
	}
	pod := template(k.node, k.mode)
	pod["metadata"].(map[string]any)["name"] = name
	path := "/api/v1/namespaces/" + namespace + "/pods"
	began := time.Now()
	if err := b.api.create(ctx, path, pod, nil); err != nil {
		return 0, 0, err
	}
	err = netlab.Await(ctx, time.Minute, 25*time.Millisecond, func(ctx context.Context) error {
		var o object
		err := b.api.get(ctx, path+"/"+name, &o)
		if err == nil && !o.ready() {
			err = errors.New("it is not ready")
		}
		return err
	})
	ready = time.Since(began)
	if err != nil {
		return 0, 0, err
	}
	after, err := setUp(ctx, b.cluster, k.node)
	if err == nil && after.pods != before.pods+1 {
		err = fmt.Errorf("containerd has set up %d networks meanwhile, not 1", after.pods-before.pods)
	}
	return after.spent - before.spent, ready, err
}
