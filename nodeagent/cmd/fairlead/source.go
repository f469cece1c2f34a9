package main

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"time"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/kube"
	"github.com/fairlead-mesh/fairlead/nodeagent/manifests"
)

// A source is where the agent knows the node's pods from.
type source interface {
	enroll.Source
	Run(context.Context) error
	// Problems returns what is wrong with it now, a line each.
	Problems() []string
}

// openManifests has a directory's manifests say what the node's pods are.
func (a *agent) openManifests(dir string) (err error) {
	a.source = "the manifests in " + dir
	a.pods, err = manifests.New(manifests.Config{Path: dir, Poll: pollInterval, Changed: func() { a.podsChanged("") }, Logger: a.logger})
	return err
}

// openKubernetes has the Kubernetes API say what the node's pods are.
func (a *agent) openKubernetes() error {
	client, err := kube.NewClient(a.config.Kubeconfig, version)
	if err != nil {
		return err
	}
	node := cmp.Or(a.config.NodeName, os.Getenv("NODE_NAME"))
	a.source = "the Kubernetes API, as node " + node
	a.kube, err = kube.NewSource(kube.SourceConfig{Client: client, Node: node, Changed: a.podsChanged, Logger: a.logger})
	a.pods = a.kube
	return err
}

// kubePods is a Reconciler whose ADDs do not rest on the watch alone.
type kubePods struct {
	*enroll.Reconciler
	source  *kube.Source
	podWait time.Duration
	logger  *slog.Logger
}

// Add asks the API for the pod when half of the time is over that the ADD waits for it,
// and the watch has not told of it.
func (k kubePods) Add(ctx context.Context, a agentapi.Attachment) error {
	asking, cancel := context.WithTimeout(ctx, k.podWait)
	defer cancel()
	defer time.AfterFunc(k.podWait/2, func() {
		if pod, _, ok := k.source.Lookup(a.Namespace, a.Name); ok && pod.Is(a.UID) {
			return
		}
		if err := k.source.Fetch(asking, a.Namespace, a.Name); err != nil && asking.Err() == nil {
			k.logger.Warn("a pod starts that the API has not told of", "pod", a.Namespace+"/"+a.Name, "error", err)
		}
	}).Stop()
	return k.Reconciler.Add(ctx, a)
}
