package enroll

import (
	"context"
	"errors"
	"fmt"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// ErrNotTried is part of errors that say nothing about what the kernel can do.
var ErrNotTried = errors.New("cannot try whether pods can be captured")

// Try does to a new network namespace what is done to a pod's that is captured, with DNS, and
// released, and says what the kernel refused. Nothing else is touched, and nothing is left.
func (o Opener) Try(ctx context.Context) error {
	handle, err := netns.New()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotTried, err)
	}
	k, err := o.open(handle, func(string) {})
	if err == nil {
		err = errors.Join(k.try(ctx), k.Close())
	}
	if err != nil {
		return fmt.Errorf("the kernel does not do what the capture of a pod needs: %w", err)
	}
	return nil
}

func (k *netKernel) try(ctx context.Context) error {
	want := ruleset.Config{CaptureDNS: true, Form: ruleset.FormFull}
	if err := k.Apply(ctx, want); err != nil {
		return err
	}
	switch drift, err := k.Check(ctx, want, Everything); {
	case err != nil:
		return err
	case drift != "":
		return fmt.Errorf("it has not what it was given: %s", brief(drift))
	}
	if _, err := k.Listeners(ctx); err != nil {
		return err
	}
	return k.Remove(ctx)
}
