package enroll

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// Metrics counts what the reconciler does.
type Metrics struct {
	pods     *prometheus.GaugeVec
	adds     *prometheus.CounterVec
	duration prometheus.Histogram
	repairs  prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		pods: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fairlead_pods", Help: "Pods that the runtime has told of, by state.",
		}, []string{"state"}),
		adds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_cni_adds_total", Help: "CNI ADDs answered, by reason; OK is success.",
		}, []string{"reason"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fairlead_cni_add_duration_seconds", Help: "How long the agent took to answer a CNI ADD.",
			Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10},
		}),
		repairs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_redirection_repairs_total", Help: "Times a pod's redirection was not as the agent had left it and was put right.",
		}),
	}
	reg.MustRegister(m.pods, m.adds, m.duration, m.repairs)
	for _, s := range []status.State{status.Captured, status.Pending, status.Bypassing, status.Blocked, status.Unsupported, status.NotCaptured} {
		m.pods.WithLabelValues(string(s))
	}
	return m
}

func (m *Metrics) added(err error, took time.Duration) {
	reason := status.OK
	if failure := (*Failure)(nil); errors.As(err, &failure) {
		reason = failure.Reason
	} else if err != nil {
		reason = "Stopping"
	}
	m.adds.WithLabelValues(string(reason)).Inc()
	m.duration.Observe(took.Seconds())
}

// moved counts a pod from one state to another; empty is none.
func (m *Metrics) moved(from, to status.State) {
	if from == to {
		return
	}
	if from != "" {
		m.pods.WithLabelValues(string(from)).Dec()
	}
	if to != "" {
		m.pods.WithLabelValues(string(to)).Inc()
	}
}
