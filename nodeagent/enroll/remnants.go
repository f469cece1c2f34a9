package enroll

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/fairlead-mesh/fairlead/iptables/nft"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
)

// Sweep takes what is ours out of every sandbox of the node's runtime in which it still
// stands, with what istio-cni left there: those of pods that nobody knows any more. It looks
// where the runtime says that it has sandboxes, and not at all namespaces: there may be other
// nodes on the machine, with agents of their own. It returns where that was, and what the
// runtime has written that cannot be read, and may be about others. What is redirected there
// is not drained. It is called when the node's pods have been released.
func (o Opener) Sweep(ctx context.Context) (swept []string, unread []error, err error) {
	places, unread, err := o.Finder.Attached(ctx)
	errs := []error{err}
	for _, place := range places {
		stands, err := o.stands(ctx, place)
		if err == nil && stands {
			var left []string
			left, err = o.clear(ctx, place)
			found := place.Path
			if len(left) > 0 {
				found += " (where stays: " + strings.Join(left, ", ") + ")"
			}
			swept = append(swept, found)
		}
		if err != nil && !place.Gone() {
			errs = append(errs, fmt.Errorf("%s: %w", place.Path, err))
		}
	}
	return swept, unread, errors.Join(errs...)
}

// stands looks for our table alone. Where it does not stand, what istio-cni has put there may
// be in use by an istio-cni that the node went back to.
func (o Opener) stands(ctx context.Context, place sandbox.Place) (is bool, err error) {
	handle, err := o.Finder.Open(place)
	if err != nil {
		return false, err
	}
	defer func(h *netns.Handle) { err = errors.Join(err, h.Close()) }(handle)
	table, err := nft.Open(handle)
	if err != nil {
		return false, err
	}
	is, err = table.Stands(ctx)
	return is, errors.Join(err, table.Close())
}

// clear returns what it has to leave in the namespace.
func (o Opener) clear(ctx context.Context, place sandbox.Place) ([]string, error) {
	kernel, err := o.Open(place, func(string) {})
	if err != nil {
		return nil, err
	}
	err = kernel.Remove(ctx)
	left, leftErr := kernel.Left(ctx)
	return left, errors.Join(err, leftErr, kernel.Close())
}
