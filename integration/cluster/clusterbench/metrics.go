package clusterbench

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
)

// A tally is how many pods' networks a node's containerd has set up, and how long that
// has taken in all: the whole chain of plugins, from containerd's call of libcni to its
// return.
type tally struct {
	pods  int
	spent time.Duration
}

// setUp reads the tally from containerd's metrics.
func setUp(ctx context.Context, c *cluster.Cluster, n *cluster.Node) (tally, error) {
	client := http.Client{Transport: &http.Transport{DialContext: c.Dial, DisableKeepAlives: true}}
	address := net.JoinHostPort(n.Addrs[0].String(), cluster.ContainerdMetricsPort)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/v1/metrics", http.NoBody)
	if err != nil {
		return tally{}, err
	}
	response, err := client.Do(request)
	if err != nil {
		return tally{}, err
	}
	defer func() { _ = response.Body.Close() }() // read to its end
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return tally{}, err
	}
	return parseTally(string(text))
}

// parseTally reads it from metrics in Prometheus's text form. Before the first pod there
// is none.
func parseTally(metrics string) (tally, error) {
	var t tally
	for line := range strings.Lines(metrics) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), "{")
		labels, value, found := strings.Cut(rest, "} ")
		what, ours := strings.CutPrefix(name, "containerd_cri_network_plugin_operations_duration_seconds_")
		if !ours || !found || labels != `operation_type="set_up_pod"` {
			continue
		}
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return tally{}, fmt.Errorf("cannot read containerd's metrics: %s: %w", line, err)
		}
		switch strings.TrimPrefix(what, "seconds_") { // the unit may stand in the name twice
		case "count":
			t.pods = int(number)
		case "sum":
			t.spent = time.Duration(number * float64(time.Second))
		}
	}
	return t, nil
}
