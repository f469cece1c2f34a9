package enroll

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/iptables/route"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// want is the redirection of the pod as its annotations and its proxy have it. DNS that has
// been going directly is not sent to a port before somebody listens there.
func (p *pod) want(form ruleset.Form) ruleset.Config {
	direct := p.redirected() && !p.applied.CaptureDNS && p.adding == nil
	return ruleset.Config{
		CaptureDNS: p.decision.CaptureDNS && !p.noDNS && (!direct || p.listeners.DNS),
		Ingress:    p.decision.Ingress, VirtualInterfaces: p.decision.VirtualInterfaces,
		ProbeIPv4: p.r.config.ProbeIPv4, ProbeIPv6: p.r.config.ProbeIPv6,
		Form: form,
	}
}

// apply puts routes and rules in place. The rules come last and at once: when it
// fails they are as they were, as far as is known. What it sets out to do is on
// record before it is done.
func (p *pod) apply(ctx context.Context, want ruleset.Config) error {
	before, stale := p.applied, p.stale
	p.applied, p.touched, p.verified = want, true, false
	// While the ADD waits nothing runs in the pod that could have opened anything.
	p.stale = want.Form != ruleset.FormMarks && p.adding == nil
	p.remember()
	if err := p.kernel.Apply(ctx, want); err != nil {
		p.applied, p.stale = before, stale
		return err
	}
	p.verified, p.checked = true, time.Now()
	p.stood = p.redirected()
	return p.expel(ctx)
}

// expel deletes the conntrack entries that would defeat the redirects, or outlive them.
func (p *pod) expel(ctx context.Context) error {
	if !p.stale {
		return nil
	}
	if err := p.kernel.Expel(ctx, p.applied); err != nil {
		return err
	}
	p.stale = false
	return nil
}

// verify has the kernel follow what is wanted now, and repairs it if it is not
// what we left there.
func (p *pod) verify(ctx context.Context) error {
	if want := p.want(p.applied.Form); !want.Equal(p.applied) {
		// What is replaced may not have stood until now, which cannot be seen afterwards.
		if drift, _ := p.kernel.Check(ctx, p.applied, Changes); drift != "" {
			p.wereAway()
		}
		return p.apply(ctx, want)
	}
	if err := p.expel(ctx); err != nil {
		return err
	}
	return p.uphold(ctx)
}

// uphold repairs what was put in place last if it is not there any more.
func (p *pod) uphold(ctx context.Context) error {
	depth := p.depth()
	drift, err := p.kernel.Check(ctx, p.applied, depth)
	if drift == "" && err == nil {
		p.verified, p.checked = true, time.Now()
		p.lookAround(ctx, depth)
		if p.unsaid != "" && !p.object.Deleting && time.Since(p.unsaidAt) > ending {
			p.repairedOf(p.unsaid)
		}
	}
	if drift == "" {
		return err
	}
	p.verified = false
	p.wereAway()
	if fight := p.fights(); fight != nil {
		return fight
	}
	if applied := p.apply(ctx, p.applied); applied != nil {
		return errors.Join(applied, err)
	}
	p.repairs = append(p.repairs, time.Now())
	if strings.HasPrefix(drift, route.LoopbackDown) && p.unsaid == "" {
		// When a pod ends the runtime takes its networks down, lo first, and has us told last:
		// nobody is to be blamed. But what still runs while the pod ends needs it.
		p.unsaid, p.unsaidAt = drift, time.Now()
		return err
	}
	p.repairedOf(drift)
	return err
}

// ending is after how long a pod whose loopback was taken down is not just ending.
const ending = 2 * time.Second

// repairedOf says that drift was put right.
func (p *pod) repairedOf(drift string) {
	p.unsaid = ""
	p.repaired++
	p.r.config.Metrics.repairs.Inc()
	p.r.config.Logger.Warn("redirection put right", "pod", p.name(), "drift", brief(drift), "rulesetChangedBy", p.culprit())
	p.r.config.Logger.Debug("what was put right", "pod", p.name(), "drift", drift)
}

// wereAway notes that the redirects were not as they should be, whoever puts them right:
// what was opened meanwhile is in the clear, and may stay there.
func (p *pod) wereAway() {
	if p.redirected() && p.adding == nil {
		p.older, p.gap, p.paired = true, p.gap || p.stood, false
	}
}

// brief is the begin of what may be a line for each rule.
func brief(drift string) string {
	const most = 3
	lines := strings.Split(drift, "\n")
	if n := len(lines) - most; n > 0 {
		lines = append(lines[:most], fmt.Sprintf("and %d more", n))
	}
	return strings.Join(lines, "; ")
}

// inspectEvery is of how many sweeps one looks at everything in a pod's namespace:
// what changes without a notification is seen then.
const inspectEvery = 60

// depth is how closely to look now. While an ADD waits nothing has run in the pod, and
// the runtime should not wait for the look: the next sweep has it.
func (p *pod) depth() Depth {
	now := time.Now()
	if p.adding != nil {
		p.inspectAt = now.Add(p.r.config.SweepInterval)
	}
	if now.Before(p.inspectAt) {
		return Changes
	}
	return Everything
}

// lookAround looks for what defeats rules that are as they should be. A look at
// everything puts the next one off, and pods which were captured together have theirs
// more and more apart.
func (p *pod) lookAround(ctx context.Context, depth Depth) {
	if p.adding != nil {
		return
	}
	before := p.foreign
	var err error
	if p.foreign, err = p.kernel.Foreign(ctx, depth); err != nil {
		p.r.config.Logger.Debug("cannot tell what stands before our rules", "pod", p.name(), "error", err)
	}
	switch {
	case len(p.foreign) == 0 && p.named:
		p.named = false
		p.r.config.Logger.Info("nothing is before a pod's redirects any more", "pod", p.name())
	case len(p.foreign) > 0 && !slices.Equal(before, p.foreign) && time.Since(p.namedAt) > fightWindow:
		p.named, p.namedAt = true, time.Now()
		p.r.config.Logger.Warn("a pod's traffic may be taken before it is redirected", "pod", p.name(), "by", strings.Join(p.foreign, ", "))
	}
	if depth != Everything {
		return
	}
	if err := p.listen(ctx, Everything); err == nil && len(p.squatters) > 0 {
		p.r.Wake(p.uid)
	}
	p.inspectAt = time.Now().Add((inspectEvery*3/4 + rand.N[time.Duration](inspectEvery/2)) * p.r.config.SweepInterval)
}

// A fight is with somebody in the pod who changes the rules as often as they are put
// right. It is not won by doing so more often.
type fight struct {
	by    string
	times int
	wait  time.Duration
}

func (f *fight) Error() string {
	return fmt.Sprintf("the redirection was put right %d times in %s and is changed again, by %s; it is put right again in %s",
		f.times, fightWindow, f.by, f.wait.Round(100*time.Millisecond))
}

const (
	// fightWindow and fightRepairs are how often a pod's redirection is put right at
	// once; after that at a growing pause.
	fightWindow  = 10 * time.Second
	fightRepairs = 5
	fightPause   = time.Second
)

func (p *pod) repairsLately() int {
	p.repairs = slices.DeleteFunc(p.repairs, func(t time.Time) bool { return time.Since(t) > fightWindow })
	return len(p.repairs)
}

// fights returns the fight that the next repair is put off for, if there is one.
func (p *pod) fights() *fight {
	n := p.repairsLately()
	if n < fightRepairs {
		return nil
	}
	wait := time.Until(p.repairs[n-1].Add(backoff(n-fightRepairs+1, fightPause, fightWindow)))
	if wait <= 0 {
		return nil
	}
	return &fight{by: p.culprit(), times: n, wait: wait}
}
