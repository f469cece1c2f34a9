package bench

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestProcessors(t *testing.T) {
	busy, all := processors()
	if busy <= 0 || all <= busy {
		t.Fatalf("busy %g of %g", busy, all)
	}
	for until := time.Now().Add(100 * time.Millisecond); time.Now().Before(until); { // with one of them
	}
	if after, _ := processors(); after <= busy {
		t.Errorf("busy %g before and %g after some work", busy, after)
	}
}

func TestCalmEnds(t *testing.T) {
	if err := calm(t.Context(), 0); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := calm(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
