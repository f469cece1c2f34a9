package figures

import (
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	hundred := make(Sample, 100)
	for i := range hundred {
		hundred[(i*37)%100] = time.Duration(i + 1)
	}
	for _, tt := range []struct {
		s    Sample
		p    float64
		want time.Duration
	}{
		{hundred, 50, 50}, {hundred, 99, 99}, {hundred, 100, 100}, {hundred, 0, 1}, {hundred, 99.5, 100},
		{Sample{7}, 50, 7}, {Sample{7}, 99, 7}, {Sample{1, 2, 9}, 50, 2}, {nil, 50, 0},
	} {
		if got := tt.s.Percentile(tt.p); got != tt.want {
			t.Errorf("percentile %v of %d values: %d, want %d", tt.p, len(tt.s), got, tt.want)
		}
	}
	if got := (Sample{3 * time.Millisecond, time.Millisecond, 1500 * time.Microsecond}).Median(); got != 1.5 {
		t.Errorf("median %v, want 1.5", got)
	}
}
