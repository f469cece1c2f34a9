package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/config"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/kube"
	"github.com/fairlead-mesh/fairlead/nodeagent/manifests"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A source is where the agent knows the node's pods from.
type source interface {
	enroll.Source
	Run(context.Context) error
	// Unread says what keeps it from knowing a pod that it does not know.
	Unread(namespace, name string) (reason status.Reason, why string)
	// Problems returns what is wrong with it now, a line each.
	Problems() []string
}

// openSource opens what says what the node's pods are: a directory of manifests, if there
// is one, and else the Kubernetes API.
func (a *agent) openSource(podsFrom string) error {
	switch {
	case podsFrom != "" && a.config.Kubeconfig != "":
		return errors.New("--pods-from and the configuration's kubeconfig both say where the node's pods are known from: leave one of them out")
	case podsFrom != "":
		return a.openManifests(podsFrom)
	}
	return a.openKubernetes()
}

// manifestPoll is how often all manifests are looked at, below notifications of changes.
const manifestPoll = 10 * time.Second

// openManifests has a directory's manifests say what the node's pods are.
func (a *agent) openManifests(dir string) error {
	a.source = "the manifests in " + dir
	pods, err := manifests.New(manifests.Config{Path: dir, Poll: manifestPoll, Changed: func() { a.podsChanged("") }, Logger: a.logger})
	if err != nil {
		return err
	}
	a.pods = pods
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
	var self types.NamespacedName
	if a.config.Installed.IsZero() {
		self = types.NamespacedName{Namespace: os.Getenv("POD_NAMESPACE"), Name: os.Getenv("POD_NAME")}
	}
	a.kube, err = kube.NewSource(kube.SourceConfig{
		Client: client, Node: node, Agent: self, Changed: a.podsChanged, Metrics: kube.NewMetrics(a.registry), Logger: a.logger,
	})
	if err != nil {
		return err
	}
	a.pods = a.kube
	a.writer, err = kube.NewWriter(kube.WriterConfig{
		Source: a.kube, Report: func() []status.Pod { return a.reconciler.Report() }, Logger: a.logger,
	})
	if err != nil {
		return err
	}
	return a.openNode()
}

// openNode has the API show of the node what the configuration says. Where the runtime has
// the plugin, no pod starts past it while an agent starts: no taint is needed for that.
func (a *agent) openNode() (err error) {
	c := a.config.Node
	if c.Taint == config.TaintNone && !c.Condition {
		return nil
	}
	start := c.Taint == config.TaintStart || c.Taint == config.TaintUnready
	a.nodeWriter, err = kube.NewNodeWriter(kube.NodeWriterConfig{
		Source: a.kube, Ready: a.nodeReady, Condition: c.Condition,
		Taint: c.Taint != config.TaintNone, Guard: c.Taint == config.TaintUnready,
		PutBack: start && a.installer != nil && !a.installer.Present(),
		Logger:  a.logger,
	})
	return err
}

// keepNodeLeft keeps the API from showing anything of ours of a node that was uninstalled.
func (a *agent) keepNodeLeft(ctx context.Context) error {
	if err := a.nodeWriter.Leave(ctx); err != nil {
		a.logger.Warn("the node was uninstalled, and the API may show its startup taint or condition; it is tried again", "error", err)
	}
	return a.nodeWriter.Run(ctx)
}

// advertised says whether the API, if there is one, tells peers to speak HBONE to the pod.
func (a *agent) advertised(namespace, pod, uid string) bool {
	return a.kube != nil && a.kube.Advertises(namespace, pod, uid)
}

// promised is since when the pods of this cluster have been promised capture, as far as
// that is known.
func (a *agent) promised() time.Time {
	if a.kube == nil || !a.config.Installed.IsZero() {
		return a.config.Installed.Time
	}
	return a.kube.Installed()
}

// installation is when this installation was made, as the API has it; zero if that is not
// known.
func (a *agent) installation() time.Time {
	if a.kube == nil {
		return time.Time{}
	}
	return a.kube.Installed()
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
	if a.nodeWriter != nil {
		problems = append(problems, a.nodeWriter.Problems()...)
	}
	return problems
}

// kubePods is a Reconciler whose ADDs do not rest on the watch alone, and whose reports
// hold what the API shows.
type kubePods struct {
	*enroll.Reconciler
	source  *kube.Source
	podWait time.Duration
}

// Add has the API asked for the pod if the watch does not tell of it soon.
func (k kubePods) Add(ctx context.Context, a agentapi.Attachment) error {
	defer k.source.Expect(ctx, a.Namespace, a.Name, a.UID, k.podWait)()
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
