package figures

import (
	"slices"
	"time"
)

// A Sample is how long each of some repetitions took.
type Sample []time.Duration

// Percentile is the smallest value that p percent of the sample do not exceed.
func (s Sample) Percentile(p float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	i := int(p/100*float64(len(s))+0.999999) - 1
	return sorted[min(max(i, 0), len(s)-1)]
}

// Median is in milliseconds.
func (s Sample) Median() float64 { return Ms(s.Percentile(50)) }

// Ms is a time in milliseconds.
func Ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
