package clusterbench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// A deploymentRow starts all pods of a Deployment at once.
type deploymentRow struct {
	*bencher
	bare []time.Duration // without us
}

func (r *deploymentRow) without(ctx context.Context) (err error) {
	r.bare, err = r.deployments(ctx, "deployment-without")
	return err
}

func (r *deploymentRow) with(ctx context.Context) ([]figures.Measure, error) {
	ours, err := r.deployments(ctx, "deployment-captured")
	if err != nil {
		return nil, err
	}
	return []figures.Measure{{
		What: fmt.Sprintf("%d pods of a Deployment, from its creation to Ready, p50", r.Replicas), Value: middle(ours) / 1000, Unit: "s",
		Others: []figures.Other{{Name: "without us", Value: middle(r.bare) / 1000}},
		Note:   fmt.Sprintf("%d Deployments one after the other, all pods captured, each probed once a second; without us: the same before the installation", r.Deployments),
	}}, nil
}

// deployments makes one Deployment after the other.
func (r *deploymentRow) deployments(ctx context.Context, namespace string) ([]time.Duration, error) {
	if err := r.api.newNamespace(ctx, namespace); err != nil {
		return nil, err
	}
	var all []time.Duration
	for range r.Deployments {
		took, err := r.deployment(ctx, namespace)
		if err != nil {
			return nil, err
		}
		all = append(all, took)
	}
	return all, nil
}

func (r *deploymentRow) deployment(ctx context.Context, namespace string) (time.Duration, error) {
	path := "/apis/apps/v1/namespaces/" + namespace + "/deployments"
	deployment := map[string]any{
		"metadata": map[string]any{"name": "app"},
		"spec": map[string]any{
			"replicas": r.Replicas, "template": template(captured),
			"selector": map[string]any{"matchLabels": map[string]any{"app": "app"}},
		},
	}
	began := time.Now()
	if err := r.api.create(ctx, path, deployment, nil); err != nil {
		return 0, err
	}
	err := netlab.Await(ctx, 3*time.Minute, 50*time.Millisecond, func(ctx context.Context) error {
		var o object
		err := r.api.get(ctx, path+"/app", &o)
		if err == nil && o.Status.ReadyReplicas != r.Replicas {
			err = fmt.Errorf("%d of %d pods are ready", o.Status.ReadyReplicas, r.Replicas)
		}
		return err
	})
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	inOrder := map[string]any{"propagationPolicy": "Foreground"}
	if err := r.api.do(ctx, "DELETE", path+"/app", inOrder, nil); err != nil {
		return 0, err
	}
	return took, netlab.Await(ctx, 3*time.Minute, 100*time.Millisecond, func(ctx context.Context) error {
		err := r.api.get(ctx, path+"/app", nil)
		if errors.Is(err, errNotFound) {
			return r.api.empty(ctx, namespace)
		}
		return errors.Join(err, errors.New("it is still there"))
	})
}
