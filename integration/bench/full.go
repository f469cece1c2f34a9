package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/nft"
	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// fullNode is the node with many pods, which is made once.
func (b *bencher) fullNode(ctx context.Context) (*node, error) {
	if b.full != nil {
		return b.full, nil
	}
	n, err := b.startNode(ctx, "full", 0)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(n.grow(ctx, b.Sizes.Pods), n.served(ctx)); err != nil {
		return nil, errors.Join(err, n.close())
	}
	b.full = n
	return n, nil
}

func (b *bencher) closeFull() {
	if b.full != nil {
		_ = b.full.close() // all of it ends with this process anyway
	}
}

// idle leaves an agent that has added all its pods in peace, so that it is done with
// that, and looks what it takes.
func (b *bencher) idle(ctx context.Context) ([]figures.Measure, error) {
	n, err := b.fullNode(ctx)
	if err != nil {
		return nil, err
	}
	if err := rest(ctx, b.Sizes.Settle); err != nil {
		return nil, err
	}
	share, err := n.share(ctx, b.Sizes.Settle)
	if err != nil {
		return nil, err
	}
	memory, err := figures.Memory(n.agent.PID(), "VmRSS")
	if err != nil {
		return nil, err
	}
	note := fmt.Sprintf("read %s after the last pod's ADD, not 60 s; no API, so no 5,000 pods in it", 2*b.Sizes.Settle)
	of := fmt.Sprintf(" with %d pods", len(n.pods))
	measures := []figures.Measure{
		{What: "resident memory" + of, Value: memory, Unit: "MiB", Budget: figures.AtMost(40), Note: note},
		{What: "idle, a sweep every 10 s," + of, Value: share * 100, Unit: "% of a core", Budget: figures.AtMost(0.3)},
	}
	files, err := openFiles(n.agent)
	return append(measures, figures.Measure{What: "open files" + of, Value: files, Unit: "fds"}), err
}

// share is how much of a core the agent uses while time passes.
func (n *node) share(ctx context.Context, d time.Duration) (float64, error) {
	before, err := cpuTime(n.agent)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := rest(ctx, d); err != nil {
		return 0, err
	}
	after, err := cpuTime(n.agent)
	return float64(after-before) / float64(time.Since(began)), err
}

// enough is how long repairs are repeated: one that comes with the next sweep need not
// be known to the millisecond.
const enough = 10 * time.Second

// repair has nft flush a pod's rules, and waits for them to be as they were. It takes
// another pod each time: with one whose rules are changed again and again the agent
// takes its time.
func (b *bencher) repair(ctx context.Context) ([]figures.Measure, error) {
	if _, err := exec.LookPath("nft"); err != nil {
		return nil, err
	}
	n, err := b.fullNode(ctx)
	if err != nil {
		return nil, err
	}
	var took figures.Sample
	for began := time.Now(); len(took) < b.Sizes.Reps && time.Since(began) < enough; {
		one, err := repaired(ctx, n.pods[len(took)%len(n.pods)])
		if err != nil {
			return nil, err
		}
		took = append(took, one)
	}
	return []figures.Measure{{
		What: "repair after `nft flush ruleset` in a pod, from nft's exit, p50", Value: took.Median(), Unit: "ms", Budget: figures.AtMost(10),
		Note: fmt.Sprintf("%d flushed, the longest took %s", len(took), took.Percentile(100).Round(time.Millisecond)),
	}}, nil
}

func repaired(ctx context.Context, p *pod) (time.Duration, error) {
	r, err := openRedirection(p.net)
	if err != nil {
		return 0, err
	}
	// What followed the repair before has to be over.
	if err := netlab.Await(ctx, 2*defaultSweep, time.Millisecond, r.check); err != nil {
		return 0, errors.Join(err, r.close())
	}
	if _, err := p.net.Run("nft", "flush", "ruleset"); err != nil {
		return 0, errors.Join(err, r.close())
	}
	took, err := timed(func() error {
		return netlab.Await(ctx, 2*defaultSweep, 100*time.Microsecond, r.check)
	})
	return took, errors.Join(err, r.close())
}

// agentStart kills the agent and starts it anew, and sees with a proxy's eyes when
// the snapshot is sent.
func (b *bencher) agentStart(ctx context.Context) ([]figures.Measure, error) {
	n, err := b.fullNode(ctx)
	if err != nil {
		return nil, err
	}
	took, err := repeat(ctx, 0, b.Sizes.Restarts, func() (time.Duration, error) {
		took, err := n.snapshot(ctx)
		return took, errors.Join(err, n.served(ctx))
	})
	return []figures.Measure{{
		What:  fmt.Sprintf("agent start to snapshot sent, %d pods adopted, p50", len(n.pods)),
		Value: took.Median(), Unit: "ms", Budget: figures.AtMost(1000),
		Note: "killed with SIGKILL before; from its exec to the SnapshotSent that a second proxy receives, which acks at once, after an Add for each pod",
	}}, err
}

func (n *node) snapshot(ctx context.Context) (time.Duration, error) {
	n.agent.Kill()
	began := time.Now()
	if err := n.startAgent(defaultSweep); err != nil {
		return 0, err
	}
	var proxy *ztunnelproto.Conn
	err := netlab.Await(ctx, 20*time.Second, time.Millisecond, func(ctx context.Context) (err error) {
		proxy, err = ztunnelproto.Dial(ctx, n.proxySocket())
		return err
	})
	if err != nil {
		return 0, errors.Join(err, n.agent.Alive())
	}
	defer func() { _ = proxy.Close() }() // all was said
	if err := proxy.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return 0, err
	}
	if err := proxy.Send(&ztunnelproto.ZdsHello{Version: ztunnelproto.Version_V1}, nil); err != nil {
		return 0, err
	}
	for adds := 0; ; {
		var request ztunnelproto.WorkloadRequest
		file, err := proxy.Receive(&request)
		if err != nil {
			return 0, err
		}
		if file != nil {
			adds++
			_ = file.Close() // this proxy serves nobody
		}
		if request.GetSnapshotSent() != nil {
			took := time.Since(began)
			if adds != len(n.pods) {
				return 0, fmt.Errorf("the snapshot has %d pods, not %d", adds, len(n.pods))
			}
			return took, proxy.Send(ztunnelproto.NewResponse(""), nil)
		}
		if err := proxy.Send(ztunnelproto.NewResponse(""), nil); err != nil {
			return 0, err
		}
	}
}

// sweep has the agent look at its pods ten times as often, and counts what that
// costs; at first with so many pods, then with more.
func (b *bencher) sweep(ctx context.Context) ([]figures.Measure, error) {
	n, err := b.fullNode(ctx)
	if err != nil {
		return nil, err
	}
	const every = defaultSweep / 10
	if err := n.restartAgent(every); err != nil {
		return nil, err
	}
	var measures []figures.Measure
	for _, count := range []int{b.Sizes.Pods, b.Sizes.More} {
		if err := errors.Join(n.grow(ctx, count), n.served(ctx), rest(ctx, every)); err != nil {
			return measures, err
		}
		some, err := b.sweepOf(ctx, n, every)
		measures = append(measures, some...)
		if err != nil {
			return measures, err
		}
	}
	return measures, nil
}

func (b *bencher) sweepOf(ctx context.Context, n *node, every time.Duration) ([]figures.Measure, error) {
	share, err := n.share(ctx, b.Sizes.Window)
	if err != nil {
		return nil, err
	}
	inProcess, err := b.lookAround(ctx, n)
	if err != nil {
		return nil, err
	}
	cpu := share * figures.Ms(every)
	count := len(n.pods)
	wall := figures.Measure{
		What: fmt.Sprintf("sweep of %d pods, both cores", count), Value: cpu / 2, Unit: "ms",
		Others: []figures.Other{{Name: "numbers and paths alone, in this process", Value: figures.Ms(inProcess)}},
		Note: fmt.Sprintf("half of the CPU time that the agent took per sweep over %s, one sweep a second; it takes the turns on one core, in two parts half an interval apart",
			b.Sizes.Window),
	}
	if count == b.Sizes.Pods {
		wall.Budget = figures.AtMost(20)
	}
	of := fmt.Sprintf(" with %d pods", count)
	measures := []figures.Measure{wall, {What: "sweep: CPU time per pod" + of, Value: cpu / float64(count) * 1000, Unit: "µs"}}
	if count == b.Sizes.More {
		files, filesErr := openFiles(n.agent)
		memory, memoryErr := figures.Memory(n.agent.PID(), "VmRSS")
		if err := errors.Join(filesErr, memoryErr); err != nil {
			return measures, err
		}
		measures = append(measures, figures.Measure{What: "open files" + of, Value: files, Unit: "fds"},
			figures.Measure{What: "resident memory" + of, Value: memory, Unit: "MiB"})
	}
	return measures, nil
}

// lookAround is the cheapest sweep there can be: over kept sockets, from as many
// goroutines as there are CPUs, is the ruleset's number still there, and the path?
func (b *bencher) lookAround(ctx context.Context, n *node) (time.Duration, error) {
	tables := make([]*nft.Table, len(n.pods))
	for i, p := range n.pods {
		var err error
		if tables[i], err = nft.Open(p.net.Handle); err != nil {
			return 0, err
		}
		defer func() { _ = tables[i].Close() }() // was only read
	}
	s, err := repeat(ctx, 1, 5, func() (time.Duration, error) {
		errs := make([]error, len(tables))
		return timed(func() error {
			var group sync.WaitGroup
			for start := range runtime.NumCPU() {
				group.Go(func() {
					for i := start; i < len(tables); i += runtime.NumCPU() {
						_, generation := tables[i].Generation()
						_, path := os.Stat(n.pods[i].net.Path)
						errs[i] = errors.Join(generation, path)
					}
				})
			}
			group.Wait()
			return errors.Join(errs...)
		})
	})
	return s.Percentile(50), err
}
