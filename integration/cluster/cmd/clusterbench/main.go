// Command clusterbench measures the rows of "make bench" that need a Kubernetes cluster,
// and prints them as JSON. Command bench starts it; see package clusterbench.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
	"github.com/fairlead-mesh/fairlead/integration/cluster"
	"github.com/fairlead-mesh/fairlead/integration/cluster/clusterbench"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func main() {
	o := clusterbench.Options{Sizes: clusterbench.Full(), Out: os.Stderr}
	rows := flag.String("rows", strings.Join(figures.ClusterRows, ","), "the `names` of the rows to be measured")
	flag.StringVar(&o.Root, "root", ".", "the `directory` of the repository, where all is built")
	flag.Parse()
	o.Rows = strings.Split(*rows, ",")
	// From here on it runs in namespaces of its own, or not at all.
	err := netlab.Isolate()
	if err == nil {
		err = run(o)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "clusterbench: %v\n", err)
		os.Exit(1)
	}
}

func run(o clusterbench.Options) error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	playing, err := cluster.DefaultDir()
	if err != nil {
		return err
	}
	o.Dir = filepath.Join(filepath.Dir(playing), "bench")
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return err
	}
	o.Root = root
	measured, err := clusterbench.Run(ctx, o)
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(measured))
}
