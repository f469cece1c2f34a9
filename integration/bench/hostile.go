package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/nft"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// What the hostile pod has.
const (
	hostileRules       = 20_000
	hostileConnections = 1_000 // within the pod: twice as many sockets
)

// hostile measures what a pod can do to the others of its node: a pod that may change
// its own network, has filled it, and changes in loops what the agent put there. The
// loops take CPUs, too, and the same with loops that take nothing else says how much of
// it is due to that.
func (b *bencher) hostile(ctx context.Context) (measures []figures.Measure, err error) {
	tries := max(b.Sizes.Reps/3, 1)
	n, err := b.startNode(ctx, "hostile", 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := errors.Join(n.grow(ctx, tries+1), n.write(tries+1, tries+2), n.served(ctx)); err != nil {
		return nil, err
	}
	pod := n.pods[tries].net
	empty, err := crowd(ctx, pod, b.dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, empty()) }()
	alone, err := b.others(ctx, n)
	if err != nil {
		return nil, err
	}
	busy, err := beside(ctx, pod, spins, func(ctx context.Context) (others, error) { return b.others(ctx, n) })
	if err != nil {
		return nil, err
	}
	var window attack
	hostile, err := beside(ctx, pod, attacks, func(ctx context.Context) (_ others, err error) {
		if window, err = b.attacked(ctx, n, pod); err != nil {
			return others{}, err
		}
		return b.others(ctx, n)
	})
	if err != nil {
		return nil, err
	}
	return compareOthers(alone, busy, hostile, window), nil
}

func compareOthers(alone, busy, hostile others, window attack) []figures.Measure {
	note := fmt.Sprintf("the hostile pod has %d rules of its own and %d sockets, and in two loops flushes our nat-output chain, after it has added a rule there, and takes our ip rule away: %.0f transactions of nftables a second in this run",
		hostileRules, 2*hostileConnections, window.rate)
	than := func(pick func(others) figures.Sample) []figures.Other {
		return []figures.Other{
			{Name: "without its loops", Value: pick(alone).Median()},
			{Name: "with loops that only take as many CPUs", Value: pick(busy).Median()},
		}
	}
	starts, repairs := func(o others) figures.Sample { return o.starts }, func(o others) figures.Sample { return o.repairs }
	return []figures.Measure{
		{What: "CNI ADD beside a hostile pod, exec of fairlead-cni to its exit, p50", Value: hostile.starts.Median(), Unit: "ms", Others: than(starts), Note: note},
		{What: "repair of another pod's rules beside it, from nft's exit, p50", Value: hostile.repairs.Median(), Unit: "ms", Others: than(repairs), Note: note},
		{What: "the agent's CPU beside it", Value: window.share * 100, Unit: "% of a core", Note: note},
	}
}

// others is how long things took that concern the node's other pods.
type others struct{ starts, repairs figures.Sample }

// others starts a pod again and again, and flushes the rules of all but the last one,
// once each: with a pod whose rules are changed again and again the agent takes its
// time.
func (b *bencher) others(ctx context.Context, n *node) (others, error) {
	var o others
	last := len(n.pods) - 1
	var err error
	if o.starts, err = repeat(ctx, min(b.Sizes.Warm, 2), last, func() (time.Duration, error) {
		return n.startPod(ctx, last+1)
	}); err != nil {
		return o, err
	}
	i := 0
	o.repairs, err = repeat(ctx, 0, last, func() (time.Duration, error) {
		i++
		return repaired(ctx, n.pods[i-1])
	})
	return o, err
}

// startPod starts and ends a pod whose network is there already.
func (n *node) startPod(ctx context.Context, i int) (took time.Duration, err error) {
	p, err := newPod(i, "beside")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, p.net.Close()) }()
	c, err := n.cni(p, true, n.oursAlone(p))
	if err != nil {
		return 0, err
	}
	err = c.add(ctx)
	return c.took["fairlead-cni"], errors.Join(err, c.del(ctx))
}

// crowd gives a pod rules and sockets, and returns how to close those.
func crowd(ctx context.Context, pod *netlab.NS, dir string) (empty func() error, err error) {
	var commands strings.Builder
	fmt.Fprintln(&commands, "add table inet hostile; add chain inet hostile many; add chain inet hostile loop")
	for i := range hostileRules {
		fmt.Fprintf(&commands, "add rule inet hostile many tcp dport %d accept\n", i+1)
	}
	file := filepath.Join(dir, "hostile.nft")
	if err := os.WriteFile(file, []byte(commands.String()), 0o600); err != nil {
		return nil, err
	}
	if _, err := pod.Run("nft", "-f", file); err != nil {
		return nil, err
	}
	const addr = "127.0.0.1:9000"
	app, err := netlab.StartEcho(pod, "app", "tcp", addr)
	if err != nil {
		return nil, err
	}
	hangUp, err := dialMany(ctx, pod, addr, hostileConnections)
	if err != nil {
		return nil, errors.Join(err, app.Close())
	}
	return func() error { hangUp(); return app.Close() }, nil
}

// A loop is a program that is told the same again and again.
type loop struct {
	says    string
	program []string
}

var (
	attacks = []loop{
		{fmt.Sprintf("insert rule inet %[1]s nat-output accept\nadd rule inet hostile loop accept\nflush chain inet %[1]s nat-output\nflush chain inet hostile loop\n", ruleset.Table), []string{"nft", "-i"}},
		{fmt.Sprintf("rule del %[1]s\nrule add %[1]s\n", fmt.Sprintf("pref %d fwmark %#x/%#x lookup %d", ruleset.RoutePriority, ruleset.ConnMark, ruleset.MarkMask, ruleset.RouteTable)),
			[]string{"ip", "-force", "-batch", "-"}},
	}
	spins = []loop{{"", []string{"sh", "-c", "while :; do :; done"}}, {"", []string{"sh", "-c", "while :; do :; done"}}}
)

// beside does work while loops run in a pod. None of them ends by itself.
func beside(ctx context.Context, pod *netlab.NS, loops []loop, work func(context.Context) (others, error)) (others, error) {
	ctx, end := context.WithCancelCause(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer end(nil) // kills them
	for _, l := range loops {
		cmd := exec.CommandContext(ctx, l.program[0], l.program[1:]...)
		if l.says != "" {
			cmd.Stdin = &endless{text: l.says}
		}
		if err := pod.Handle.Do(cmd.Start); err != nil {
			return others{}, fmt.Errorf("cannot start %s: %w", cmd, err)
		}
		running.Go(func() { end(fmt.Errorf("%s has ended: %w", cmd, cmd.Wait())) })
	}
	o, err := work(ctx)
	return o, errors.Join(context.Cause(ctx), err)
}

// endless is a text again and again.
type endless struct {
	text string
	at   int
}

func (e *endless) Read(p []byte) (n int, err error) {
	for n < len(p) {
		copied := copy(p[n:], e.text[e.at:])
		n += copied
		e.at = (e.at + copied) % len(e.text)
	}
	return n, nil
}

// An attack is what happened while nothing else did.
type attack struct {
	rate  float64 // of transactions, a second
	share float64 // of a core that the agent used
}

func (b *bencher) attacked(ctx context.Context, n *node, pod *netlab.NS) (attack, error) {
	table, err := nft.Open(pod.Handle)
	if err != nil {
		return attack{}, err
	}
	defer func() { _ = table.Close() }() // was only read
	began := time.Now()
	before, err := table.Generation()
	if err != nil {
		return attack{}, err
	}
	share, err := n.share(ctx, b.Sizes.Window/3)
	if err != nil {
		return attack{}, err
	}
	after, err := table.Generation()
	if err == nil && after == before {
		err = errors.New("the hostile pod has changed nothing")
	}
	return attack{rate: float64(after-before) / time.Since(began).Seconds(), share: share}, err
}
