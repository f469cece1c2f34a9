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
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A source is where the agent knows the node's pods from.
type source interface {
	enroll.Source
	Run(context.Context) error
	// Problems returns what is wrong with it now, a line each.
	Problems() []string
}

// openManifests has a directory's manifests say what the node's pods are.
func (a *agent) openManifests(dir string) error {
	a.source = "the manifests in " + dir
	pods, err := manifests.New(manifests.Config{Path: dir, Poll: pollInterval, Changed: func() { a.podsChanged("") }, Logger: a.logger})
	if err != nil {
		return err
	}
	a.pods, a.unread = pods, pods.Unread
	return nil
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
	if err != nil {
		return err
	}
	a.pods = a.kube
	a.writer, err = kube.NewWriter(kube.WriterConfig{
		Source: a.kube, Report: func() []status.Pod { return a.reconciler.Report() }, Logger: a.logger,
	})
	return err
}

// podReported is called by the reconciler.
func (a *agent) podReported(p status.Pod) {
	if a.writer != nil {
		a.writer.Reported(p)
	}
}

// problems are those of where pods are known from.
func (a *agent) problems() []string {
	problems := a.pods.Problems()
	if a.writer != nil {
		problems = append(problems, a.writer.Problems()...)
	}
	return problems
}

// kubePods is a Reconciler whose ADDs do not rest on the watch alone, and whose reports
// hold what the API shows.
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

// Report says what the API shows of each pod, too.
func (k kubePods) Report() []status.Pod {
	pods := k.Reconciler.Report()
	for i, p := range pods {
		if annotation, known := k.source.Shown(p.Namespace, p.Name, p.UID); known {
			pods[i].Annotation = cmp.Or(annotation, "none")
		}
	}
	return pods
}
