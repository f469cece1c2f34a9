package bench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
)

// A stopwatch is how libcni executes plugins, and remembers how long each took: from
// the start of the process to its end.
type stopwatch struct {
	invoke.DefaultExec
	took map[string]time.Duration // by the plugin's name
}

func newStopwatch() *stopwatch {
	return &stopwatch{
		DefaultExec: invoke.DefaultExec{RawExec: &invoke.RawExec{}, PluginDecoder: version.PluginDecoder{}},
		took:        map[string]time.Duration{},
	}
}

func (s *stopwatch) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	began := time.Now()
	out, err := s.DefaultExec.ExecPlugin(ctx, path, stdin, environ)
	s.took[filepath.Base(path)] = time.Since(began)
	return out, err
}

// A cni is libcni, with a stopwatch, and what it is to do for one pod.
type cni struct {
	*stopwatch
	config libcni.CNIConfig
	list   *libcni.NetworkConfigList
	conf   *libcni.RuntimeConf
}

// cni prepares an ADD. A pod that is not asPod is a sandbox to which the plugin has
// nothing to say: it passes on what it got, which is what executing any plugin costs.
func (n *node) cni(p *pod, asPod bool, plugins string) (*cni, error) {
	watch := newStopwatch()
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion": "1.0.0", "name": "bench", "plugins": [%s]}`, plugins))
	if err != nil {
		return nil, err
	}
	conf := &libcni.RuntimeConf{ContainerID: p.attachment.ContainerID, NetNS: p.net.Path, IfName: "eth0"}
	if asPod {
		conf.Args = [][2]string{
			{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", podNamespace}, {"K8S_POD_NAME", p.attachment.Name},
			{"K8S_POD_UID", p.attachment.UID}, {"K8S_POD_INFRA_CONTAINER_ID", p.attachment.ContainerID},
		}
	}
	cache := filepath.Join(n.dir, "cni-cache")
	config := libcni.NewCNIConfigWithCacheDir([]string{n.bin, filepath.Join(n.bin, "cni")}, cache, watch)
	return &cni{watch, *config, list, conf}, nil
}

func (n *node) bridge() string {
	return fmt.Sprintf(`{"type": "bridge", "bridge": "cni0", "ipam": {"type": "host-local", "dataDir": %q,
	"ranges": [[{"subnet": "10.88.0.0/16"}]]}}`, filepath.Join(n.dir, "ipam"))
}

func (n *node) ours() string {
	return fmt.Sprintf(`{"type": "fairlead-cni", "agentSocket": %q}`, n.client.Socket)
}

// oursAlone is our plugin after one that has given the pod an address already.
func (n *node) oursAlone(p *pod) string {
	return fmt.Sprintf(`{"type": "fairlead-cni", "agentSocket": %q, "prevResult": {"cniVersion": "1.0.0",
	"interfaces": [{"name": "eth0", "sandbox": %q}], "ips": [{"address": "%s/16", "interface": 0}]}}`,
		n.client.Socket, p.net.Path, p.attachment.IPs[0])
}

// addOne starts one pod after another by a chain of plugins, with ours and without.
func (b *bencher) addOne(ctx context.Context) (measures []figures.Measure, err error) {
	n, err := b.startNode(ctx, "add", 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	kinds := []struct {
		plugins string
		asPod   bool
	}{
		{n.bridge() + ", " + n.ours(), true},
		{n.bridge() + ", " + n.ours(), false},
		{n.bridge(), true},
	}
	plugin, chain := make([]figures.Sample, len(kinds)), make([]figures.Sample, len(kinds))
	for try := range b.Sizes.Warm + b.Sizes.Reps {
		for i, kind := range kinds { // in turn, so that each has the same machine
			own, whole, err := n.once(ctx, fmt.Sprintf("%d-%d", i, try), kind.plugins, kind.asPod)
			if err != nil {
				return nil, err
			}
			if try >= b.Sizes.Warm {
				plugin[i], chain[i] = append(plugin[i], own), append(chain[i], whole)
			}
		}
	}
	return []figures.Measure{
		{
			What: "CNI ADD, exec of fairlead-cni to its exit, one at a time, p50", Value: plugin[0].Median(), Unit: "ms", Budget: figures.AtMost(10),
			Others: []figures.Other{{Name: "a bare plugin", Value: plugin[1].Median()}}, Note: bare,
		},
		{
			What: "CNI ADD, whole chain (bridge, host-local, fairlead-cni), p50", Value: chain[0].Median(), Unit: "ms",
			Others: []figures.Other{{Name: "the chain without us", Value: chain[2].Median()}},
		},
	}, nil
}

const bare = "bare plugin: the same binary for a sandbox that is no pod, which it passes on without a question to the agent"

// once starts and ends the node's one pod.
func (n *node) once(ctx context.Context, sandbox, plugins string, asPod bool) (own, whole time.Duration, err error) {
	p, err := newPod(0, sandbox)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, p.net.Close()) }()
	c, err := n.cni(p, asPod, plugins)
	if err != nil {
		return 0, 0, err
	}
	whole, err = timed(func() error { return c.add(ctx) })
	own = c.took["fairlead-cni"]
	return own, whole, errors.Join(err, c.del(ctx))
}

func (c *cni) add(ctx context.Context) error {
	_, err := c.config.AddNetworkList(ctx, c.list, c.conf)
	return err
}

func (c *cni) del(ctx context.Context) error {
	return c.config.DelNetworkList(context.WithoutCancel(ctx), c.list, c.conf)
}

// addParallel starts many pods at once, again and again.
func (b *bencher) addParallel(ctx context.Context) (measures []figures.Measure, err error) {
	n, err := b.startNode(ctx, "parallel", b.Sizes.Parallel)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	took := map[bool]figures.Sample{}
	var spent spending
	for round := range 1 + b.Sizes.Rounds {
		for _, asPod := range []bool{true, false} {
			s, cost, err := n.atOnce(ctx, b.Sizes.Parallel, fmt.Sprintf("%d-%t", round, asPod), asPod)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				took[asPod] = append(took[asPod], s...)
			}
			if round > 0 && asPod {
				spent = spent.plus(cost)
			}
		}
	}
	ours, others := took[true], took[false]
	at := fmt.Sprintf("CNI ADD, the same, %d at once, ", b.Sizes.Parallel)
	return []figures.Measure{
		{
			What: at + "p99", Value: figures.Ms(ours.Percentile(99)), Unit: "ms", Budget: figures.AtMost(150),
			Others: []figures.Other{{Name: "as many bare plugins", Value: figures.Ms(others.Percentile(99))}}, Note: bare,
		},
		{
			What: at + "p50", Value: ours.Median(), Unit: "ms",
			Others: []figures.Other{{Name: "as many bare plugins", Value: others.Median()}}, Note: bare,
		},
		spent.measure(len(ours)),
	}, nil
}

// A spending is CPU time, which other work on the machine changes least.
type spending struct{ plugin, agent, proxy time.Duration }

// spent is what was spent so far; of plugins, by those that have ended.
func (n *node) spent() (spending, error) {
	agent, agentErr := cpuTime(n.agent)
	proxy, proxyErr := cpuTime(n.proxy)
	var children unix.Rusage
	err := unix.Getrusage(unix.RUSAGE_CHILDREN, &children)
	return spending{time.Duration(children.Utime.Nano() + children.Stime.Nano()), agent, proxy}, errors.Join(agentErr, proxyErr, err)
}

func (s spending) plus(o spending) spending {
	return spending{s.plugin + o.plugin, s.agent + o.agent, s.proxy + o.proxy}
}

func (s spending) minus(o spending) spending { return s.plus(spending{-o.plugin, -o.agent, -o.proxy}) }

func (s spending) measure(adds int) figures.Measure {
	each := func(d time.Duration) float64 { return figures.Ms(d) / float64(adds) }
	return figures.Measure{
		What: "CPU time of one such ADD", Value: each(s.plugin + s.agent + s.proxy), Unit: "ms",
		Note: fmt.Sprintf("plugin %.2f ms, agent %.2f ms, reference proxy %.2f ms", each(s.plugin), each(s.agent), each(s.proxy)),
	}
}

// atOnce starts pods, whose networks are there already, all at the same moment.
func (n *node) atOnce(ctx context.Context, count int, sandbox string, asPod bool) (figures.Sample, spending, error) {
	start := make(chan struct{})
	runs, errs := make([]*cni, count), make([]error, count)
	pods := make([]*pod, count)
	var group sync.WaitGroup
	for i := range count {
		var err error
		if pods[i], err = newPod(i, sandbox); err == nil {
			runs[i], err = n.cni(pods[i], asPod, n.oursAlone(pods[i]))
		}
		if err != nil {
			close(start)
			group.Wait()
			return nil, spending{}, err
		}
		group.Go(func() {
			<-start
			errs[i] = runs[i].add(ctx)
		})
	}
	before, err := n.spent()
	close(start)
	group.Wait()
	after, afterErr := n.spent()
	var s figures.Sample
	err = errors.Join(errors.Join(errs...), err, afterErr)
	for i, c := range runs {
		s = append(s, c.took["fairlead-cni"])
		err = errors.Join(err, c.del(ctx), pods[i].net.Close())
	}
	return s, after.minus(before), err
}
