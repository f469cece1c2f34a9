package bench

import (
	"slices"
	"time"
)

// A sample is how long each of some repetitions took.
type sample []time.Duration

// percentile is the smallest value that p percent of the sample do not exceed.
func (s sample) percentile(p float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	i := int(p/100*float64(len(s))+0.999999) - 1
	return sorted[min(max(i, 0), len(s)-1)]
}

func (s sample) median() float64 { return ms(s.percentile(50)) }

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// middle is the median of a few values.
func middle(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
