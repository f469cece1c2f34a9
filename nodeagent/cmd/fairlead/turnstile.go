package main

import (
	"context"
	"sync"
	"time"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/pluginserver"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A turnstile stands before the ADDs. containerd reads its configuration again only
// between two ADDs, and has everybody wait behind that; so while the configuration is
// to change and ADDs wait for long, new ones are turned away.
type turnstile struct {
	pluginserver.Pods

	mu      sync.Mutex
	waiting map[*time.Time]bool // since when each ADD has been waiting
	closed  int                 // by so many changes
	left    chan struct{}       // closed when none waits any more; nil: nobody wants to know
}

// longWait is for how long an ADD may be waiting before a change waits for it.
const longWait = time.Second

var errInstalling = &enroll.Failure{
	Reason: status.Cancelled, Message: "the plugin's own configuration is being changed, and other pods wait: try again",
}

// Add turns an ADD away while the turnstile is closed.
func (t *turnstile) Add(ctx context.Context, a agentapi.Attachment) error {
	since := time.Now()
	if !t.enter(&since) {
		return errInstalling
	}
	defer t.leave(&since)
	return t.Pods.Add(ctx, a)
}

func (t *turnstile) enter(since *time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed > 0 {
		return false
	}
	if t.waiting == nil {
		t.waiting = map[*time.Time]bool{}
	}
	t.waiting[since] = true
	return true
}

func (t *turnstile) leave(since *time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.waiting, since)
	if len(t.waiting) == 0 && t.left != nil {
		close(t.left)
		t.left = nil
	}
}

// hold returns at once unless an ADD has been waiting for long; then it turns new ones
// away, until resume is called, and returns when none waits any more, or ctx ends.
func (t *turnstile) hold(ctx context.Context) (resume func()) {
	left := t.close()
	if left == nil {
		return func() {}
	}
	select {
	case <-left:
	case <-ctx.Done():
	}
	return func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.closed--
	}
}

func (t *turnstile) close() (left <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for since := range t.waiting {
		if time.Since(*since) > longWait {
			t.closed++
			if t.left == nil {
				t.left = make(chan struct{})
			}
			return t.left
		}
	}
	return nil
}
