package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/nft"
)

// repaired deletes every rule in a pod, as "nft flush ruleset" does, and waits until
// they are back.
func (s *story) repaired(p *pod) look {
	return func(ctx context.Context) (string, error) {
		before, err := ourRules(p.net)
		if err != nil {
			return "", err
		}
		whole, err := imprint(p.net)
		if err != nil {
			return "", err
		}
		if err := p.net.Handle.Do(func() error {
			conn := &nftables.Conn{}
			conn.FlushRuleset()
			return conn.Flush()
		}); err != nil {
			return "", err
		}
		flushed := time.Now()
		err = netlab.Await(ctx, patience, time.Millisecond, func(context.Context) error {
			now, err := ourRules(p.net)
			if err == nil && len(now) < len(before) {
				err = fmt.Errorf("%d of %d rules are there", len(now), len(before))
			}
			return err
		})
		took := time.Since(flushed)
		if err != nil {
			return "", fmt.Errorf("not repaired within %s: %w", patience, err)
		}
		if now, err := imprint(p.net); err != nil || now != whole {
			return "", fmt.Errorf("what is back is not what was there: %s, before %s (%w)", now, whole, err)
		}
		return fmt.Sprintf("%d nft rules deleted, back %s later", len(before), took.Round(100*time.Microsecond)), nil
	}
}

// rulesetNumber is the number that the kernel gives the rules in a namespace: each
// change makes it another, also one that puts the same rules in the place of the old.
func rulesetNumber(n *netlab.NS) (uint32, error) {
	table, err := nft.Open(n.Handle)
	if err != nil {
		return 0, err
	}
	defer func() { _ = table.Close() }() // was only read
	return table.Generation()
}

// adopts starts the agent again, after which every pod has to be as it was.
func (s *story) adopts(want map[string]string) look {
	return func(ctx context.Context) (string, error) {
		before, captured := map[string]uint32{}, 0
		for name, p := range s.pods {
			var err error
			if before[name], err = rulesetNumber(p.net); err != nil {
				return "", err
			}
			if want[name] == "Captured" {
				captured++
			}
		}
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		began := time.Now()
		if err := s.startAgent(); err != nil {
			return "", err
		}
		if err := s.settles(ctx, want); err != nil {
			return "", err
		}
		took := time.Since(began)
		for name, p := range s.pods {
			after, err := rulesetNumber(p.net)
			if err == nil && after != before[name] {
				err = fmt.Errorf("the rules in %s were written anew, number %d in place of %d", name, after, before[name])
			}
			if err != nil {
				return "", err
			}
		}
		return fmt.Sprintf("%d pods %s after its start, rules untouched", captured, rounded(took)), nil
	}
}

// unharmed ends traffic, all of which has to have gone well.
func unharmed(t *traffic) look {
	return func(context.Context) (string, error) {
		err := t.stop()
		return fmt.Sprintf("%d connections meanwhile", t.count.Load()), err
	}
}

// What the proxies' replacements aim at, and the time they have. A sabotaged run is
// quicker: what it is about is noticed at once.
const (
	replacements      = 20
	connections       = 10000
	replacementsTime  = 12 * time.Second
	fewerReplacements = 2
)

// replaced has one node proxy take over from another, again and again, while apps
// connect all the time.
func (s *story) replaced(t *traffic) look {
	return func(ctx context.Context) (string, error) {
		began := time.Now()
		goal, least := replacements, int64(connections)
		if s.sabotage != nil {
			goal, least = fewerReplacements, 0
		}
		done := 0
		for ; done < goal && time.Since(began) < replacementsTime; done++ {
			if err := s.replaceProxy(ctx); err != nil {
				return "", errors.Join(err, t.stop())
			}
		}
		for t.count.Load() < least && time.Since(began) < replacementsTime && len(t.failures()) == 0 {
			pause(ctx, 10*time.Millisecond)
		}
		err := t.stop()
		return fmt.Sprintf("%d times in %.1f s, under %d connections", done, time.Since(began).Seconds(), t.count.Load()), err
	}
}

// replaceProxy starts a node proxy, waits until it is ready, as a rolling update does,
// and tells the one before to end.
func (s *story) replaceProxy(ctx context.Context) error {
	old := s.proxy
	s.nextAdmin()
	if err := s.startProxy(); err != nil {
		return err
	}
	if err := s.proxyReady(ctx); err != nil {
		return err
	}
	if err := old.End(ctx, s.goodbye); err != nil {
		return err
	}
	if s.goodbye == unix.SIGTERM && !old.State().Success() {
		return fmt.Errorf("the node proxy that was told to end did so badly: %s", old.State())
	}
	return nil
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
