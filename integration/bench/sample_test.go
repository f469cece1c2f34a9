package bench

import (
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	hundred := make(sample, 100)
	for i := range hundred {
		hundred[(i*37)%100] = time.Duration(i + 1)
	}
	for _, tt := range []struct {
		s    sample
		p    float64
		want time.Duration
	}{
		{hundred, 50, 50}, {hundred, 99, 99}, {hundred, 100, 100}, {hundred, 0, 1}, {hundred, 99.5, 100},
		{sample{7}, 50, 7}, {sample{7}, 99, 7}, {sample{1, 2, 9}, 50, 2}, {nil, 50, 0},
	} {
		if got := tt.s.percentile(tt.p); got != tt.want {
			t.Errorf("percentile %v of %d values: %d, want %d", tt.p, len(tt.s), got, tt.want)
		}
	}
	if got := (sample{3 * time.Millisecond, time.Millisecond, 1500 * time.Microsecond}).median(); got != 1.5 {
		t.Errorf("median %v, want 1.5", got)
	}
}

func TestMiddle(t *testing.T) {
	for _, tt := range []struct {
		values []float64
		want   float64
	}{{[]float64{3}, 3}, {[]float64{9, 1, 4}, 4}} {
		if got := middle(tt.values); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.values, got, tt.want)
		}
	}
}
