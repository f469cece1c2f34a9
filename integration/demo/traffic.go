package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
)

// A trip is where traffic goes from and to.
type trip struct {
	from *pod
	to   netip.AddrPort
}

// trips lead from captured pods out of the mesh, by each IP version.
func (s *story) trips(pods ...*pod) []trip {
	var all []trip
	for _, p := range pods {
		for i := range p.addrs {
			all = append(all, trip{p, s.outsides()[i]})
		}
	}
	return all
}

// A traffic is what apps do all the time: connect, talk, end, and again. Every
// connection has to go through a node proxy, and to end as it should.
type traffic struct {
	stopped atomic.Bool
	done    sync.WaitGroup
	count   atomic.Int64

	mu     sync.Mutex
	failed []error
}

// begin starts apps on each trip.
func begin(ctx context.Context, apps int, trips ...trip) *traffic {
	t := &traffic{}
	for _, trip := range trips {
		for range apps {
			t.done.Go(func() {
				for !t.stopped.Load() && ctx.Err() == nil {
					t.note(ctx, trip.make(ctx))
				}
			})
		}
	}
	return t
}

// make makes one connection.
func (t trip) make(ctx context.Context) error {
	c, err := converse(ctx, t.from.net, t.to)
	if err != nil {
		return err
	}
	defer c.close()
	if !c.Tagged {
		return fmt.Errorf("from %s to %s past the proxy", c.local(), t.to)
	}
	return c.say()
}

// note counts a connection, unless the story was interrupted meanwhile.
func (t *traffic) note(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	t.count.Add(1)
	if err != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.failed = append(t.failed, err)
	}
}

func (t *traffic) failures() []error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// stop ends the traffic, and returns an error unless all of it went well.
func (t *traffic) stop() error {
	t.stopped.Store(true)
	t.done.Wait()
	if failed := t.failures(); len(failed) > 0 {
		return fmt.Errorf("%d of %d connections failed, the first so: %w", len(failed), t.count.Load(), failed[0])
	}
	if t.count.Load() == 0 {
		return errors.New("there was no traffic")
	}
	return nil
}
