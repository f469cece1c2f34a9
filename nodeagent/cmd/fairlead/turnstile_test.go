package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/nodeagent/pluginserver"
)

// A slowPods takes its time for an ADD.
type slowPods struct {
	pluginserver.Pods
	takes time.Duration
}

func (p slowPods) Add(context.Context, agentapi.Attachment) error {
	<-time.After(p.takes)
	return nil
}

// A change of the configuration waits for ADDs only if one has been waiting for more
// than a second, and for as long as it is allowed to; meanwhile new ones are turned away.
func TestTurnstile(t *testing.T) {
	for name, test := range map[string]struct {
		takes, after, allowed time.Duration
		want                  time.Duration // that the change waits
		turned                bool
	}{
		"an ADD that has just come": {takes: 5 * time.Second, after: time.Second, allowed: 10 * time.Second},
		"one that waits for long":   {takes: 5 * time.Second, after: 2 * time.Second, allowed: 10 * time.Second, want: 3 * time.Second, turned: true},
		"one that waits for ever":   {takes: time.Minute, after: 2 * time.Second, allowed: 10 * time.Second, want: 10 * time.Second, turned: true},
		"one that is over":          {takes: 2 * time.Second, after: 3 * time.Second, allowed: 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &turnstile{Pods: slowPods{takes: test.takes}}
				add := func() error { return s.Add(t.Context(), agentapi.Attachment{}) }
				go func() { _ = add() }() // it succeeds
				<-time.After(test.after)
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), test.allowed)
				defer cancel()
				resume := s.hold(ctx)
				if waited := time.Since(start); waited != test.want {
					t.Errorf("the change waited %v, want %v", waited, test.want)
				}
				if err := add(); errors.Is(err, errInstalling) != test.turned {
					t.Errorf("another ADD: %v", err)
				}
				resume()
				if err := add(); err != nil {
					t.Errorf("an ADD after the change: %v", err)
				}
			})
		})
	}
}
