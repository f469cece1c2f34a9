package clusterbench

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// template is a pod of the test app, which asks to be captured or does not.
func template(mode string) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"app": "app", modeLabel: mode}},
		"spec": map[string]any{
			"terminationGracePeriodSeconds": 1,
			"containers": []any{map[string]any{
				"name": "app", "image": cluster.TestImage, "imagePullPolicy": "Never",
				"readinessProbe": map[string]any{"httpGet": map[string]any{"path": "/healthz", "port": 8080}, "periodSeconds": 1},
			}},
		},
	}
}

// A startRow starts pods one at a time.
type startRow struct {
	*bencher
	bare []start // without us
}

// A start is that of one pod.
type start struct {
	network time.Duration // that its network took, by containerd
	ready   time.Duration // from its creation until the API shows it ready
}

func (r *startRow) without(ctx context.Context) (err error) {
	r.bare, err = r.starts(ctx, "start-without", captured)
	return errors.Join(err, r.api.clear(ctx, "start-without"))
}

func (r *startRow) with(ctx context.Context) ([]figures.Measure, error) {
	plain, err := r.starts(ctx, "start-plain", left)
	if err := errors.Join(err, r.api.clear(ctx, "start-plain")); err != nil {
		return nil, err
	}
	const namespace = "start-captured"
	began := time.Now()
	ours, err := r.starts(ctx, namespace, captured)
	if err != nil {
		return nil, err
	}
	requests, err := r.requests(ctx, began, namespace)
	if err := errors.Join(err, r.api.clear(ctx, namespace)); err != nil {
		return nil, err
	}
	network := func(s start) time.Duration { return s.network }
	ready := func(s start) time.Duration { return s.ready }
	compared := func(what string, pick func(start) time.Duration) figures.Measure {
		return figures.Measure{
			What: what, Value: median(ours, pick), Unit: "ms",
			Others: []figures.Other{{Name: "without us", Value: median(r.bare, pick)}, {Name: "a pod not captured", Value: median(plain, pick)}},
		}
	}
	adds := compared("CNI ADD on a cluster, all that containerd has libcni do for a pod, p50", network)
	adds.Note = "by containerd's own metric (network_plugin_operations, set_up_pod), one pod at a time: bridge, host-local, portmap, and fairlead-cni; loopback beside them. Without us: the same pods on the same node, before the installation"
	return append([]figures.Measure{adds, compared("one pod on a cluster, from its creation to Ready, p50", ready)}, requests...), nil
}

// starts starts so many pods.
func (r *startRow) starts(ctx context.Context, namespace, mode string) ([]start, error) {
	if err := r.api.newNamespace(ctx, namespace); err != nil {
		return nil, err
	}
	var all []start
	for i := range r.Warm + r.Starts {
		s, err := r.start(ctx, namespace, fmt.Sprintf("pod-%d", i), mode)
		if err != nil {
			return nil, fmt.Errorf("pod %s/pod-%d: %w", namespace, i, err)
		}
		if i >= r.Warm {
			all = append(all, s)
		}
	}
	return all, nil
}

func (r *startRow) start(ctx context.Context, namespace, name, mode string) (start, error) {
	before, err := setUp(ctx, r.cluster, r.cluster.Nodes[0])
	if err != nil {
		return start{}, err
	}
	pod := template(mode)
	pod["metadata"].(map[string]any)["name"] = name
	path := "/api/v1/namespaces/" + namespace + "/pods"
	began := time.Now()
	if err := r.api.create(ctx, path, pod, nil); err != nil {
		return start{}, err
	}
	err = netlab.Await(ctx, time.Minute, 25*time.Millisecond, func(ctx context.Context) error {
		var o object
		err := r.api.get(ctx, path+"/"+name, &o)
		if err == nil && !o.ready() {
			err = errors.New("it is not ready")
		}
		return err
	})
	took := time.Since(began)
	if err != nil {
		return start{}, err
	}
	after, err := setUp(ctx, r.cluster, r.cluster.Nodes[0])
	if err == nil && after.pods != before.pods+1 {
		err = fmt.Errorf("containerd has set up %d networks meanwhile, not 1", after.pods-before.pods)
	}
	return start{after.spent - before.spent, took}, err
}

// median is that of one of the times, in ms.
func median(all []start, pick func(start) time.Duration) float64 {
	var values []time.Duration
	for _, s := range all {
		values = append(values, pick(s))
	}
	return middle(values)
}

func middle(values []time.Duration) float64 {
	slices.Sort(values)
	return float64(values[(len(values)-1)/2]) / float64(time.Millisecond)
}
