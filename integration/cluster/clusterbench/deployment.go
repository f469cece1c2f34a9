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

// deployments makes one Deployment after the other, on both nodes in turn.
func (b *bencher) deployments(ctx context.Context) ([]figures.Measure, error) {
	const namespace = "deployment"
	if err := b.api.newNamespace(ctx, namespace); err != nil {
		return nil, err
	}
	took := map[*cluster.Node]figures.Sample{}
	for range b.Deployments {
		for _, n := range []*cluster.Node{b.ours(), b.bare()} {
			one, err := b.deployment(ctx, namespace, n)
			if err != nil {
				return nil, err
			}
			took[n] = append(took[n], one)
			b.say("cluster-deployment: %.1f s on %s", one.Seconds(), n.Name)
		}
	}
	return []figures.Measure{{
		What: fmt.Sprintf("%d pods of a Deployment, from its creation to Ready, p50", b.Replicas), Value: took[b.ours()].Median() / 1000, Unit: "s",
		Others: []figures.Other{{Name: "without us", Value: took[b.bare()].Median() / 1000}},
		Note:   fmt.Sprintf("%d Deployments one after the other, all pods captured, each probed once a second; without us: the same on the other node, in turn", b.Deployments),
	}}, nil
}

func (b *bencher) deployment(ctx context.Context, namespace string, n *cluster.Node) (time.Duration, error) {
	path := "/apis/apps/v1/namespaces/" + namespace + "/deployments"
	deployment := map[string]any{
		"metadata": map[string]any{"name": "app"},
		"spec": map[string]any{
			"replicas": b.Replicas, "template": template(n, captured),
			"selector": map[string]any{"matchLabels": map[string]any{"app": "app"}},
		},
	}
	began := time.Now()
	if err := b.api.create(ctx, path, deployment, nil); err != nil {
		return 0, err
	}
	err := netlab.Await(ctx, 3*time.Minute, 50*time.Millisecond, func(ctx context.Context) error {
		var o object
		err := b.api.get(ctx, path+"/app", &o)
		if err == nil && o.Status.ReadyReplicas != b.Replicas {
			err = fmt.Errorf("%d of %d pods are ready", o.Status.ReadyReplicas, b.Replicas)
		}
		return err
	})
	took := time.Since(began)
	if err != nil {
		return 0, err
	}
	inOrder := map[string]any{"propagationPolicy": "Foreground"}
	if err := b.api.do(ctx, "DELETE", path+"/app", inOrder, nil); err != nil {
		return 0, err
	}
	return took, netlab.Await(ctx, 3*time.Minute, 100*time.Millisecond, func(ctx context.Context) error {
		err := b.api.get(ctx, path+"/app", nil)
		if errors.Is(err, errNotFound) {
			return b.api.empty(ctx, namespace)
		}
		return errors.Join(err, errors.New("it is still there"))
	})
}
