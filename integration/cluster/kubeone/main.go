// Command kubeone is all of a Kubernetes cluster in one file: it becomes the program
// whose name it is called by. As one file it takes 13 minutes to build instead of 20,
// a third of the space, and less memory, which its processes share.
//
// It is a module of its own, and only ever built, for the cluster of namespaces. What
// cannot be in the same file is built beside it, with the same versions: the CNI
// plugins, and containerd's shim, of which each pod has a process. See go.mod.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	_ "time/tzdata"

	_ "github.com/containerd/containerd/v2/cmd/containerd/builtins"
	containerd "github.com/containerd/containerd/v2/cmd/containerd/command"
	ctr "github.com/containerd/containerd/v2/cmd/ctr/app"
	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var programs = map[string]func(){
	"kube-apiserver":          func() { run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() { run(controllers.NewControllerManagerCommand()) },
	"kube-scheduler":          func() { run(scheduler.NewSchedulerCommand()) },
	"kube-proxy":              func() { run(proxy.NewProxyCommand()) },
	"kubelet":                 func() { run(kubelet.NewKubeletCommand(context.Background())) },
	"kubectl":                 runKubectl,
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"containerd":              func() { fail(containerd.App().Run(context.Background(), os.Args)) },
	"ctr":                     func() { fail(ctr.New().Run(context.Background(), os.Args)) },
}

func main() {
	program, known := programs[filepath.Base(os.Args[0])]
	if !known {
		names := strings.Join(slices.Sorted(maps.Keys(programs)), ", ")
		fmt.Fprintf(os.Stderr, "kubeone: call it by the name of what it is to be, through a link: %s\n", names)
		os.Exit(2)
	}
	program()
}

func run(command *cobra.Command) { os.Exit(cli.Run(command)) }

// runKubectl does what kubectl's own main does.
func runKubectl() {
	if _, err := logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)); err != nil {
		fail(err)
	}
	util.CheckErr(cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()))
}

func fail(err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}
