package enroll

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// Metrics counts what the reconciler does.
type Metrics struct {
	adds     *prometheus.CounterVec
	duration prometheus.Histogram
	repairs  prometheus.Counter
	resets   prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		adds: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_cni_adds_total", Help: "CNI ADDs answered, by reason; OK is success.",
		}, []string{"reason"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "fairlead_cni_add_duration_seconds", Help: "How long the agent took to answer a CNI ADD.",
			Buckets: []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10},
		}),
		resets: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_connections_reset_total", Help: "Connections that bypassed the proxy and were reset.",
		}),
		repairs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_redirection_repairs_total", Help: "Times a pod's redirection was not as the agent had left it and was put right.",
		}),
	}
	reg.MustRegister(m.adds, m.duration, m.repairs, m.resets)
	return m
}

func (m *Metrics) added(err error, took time.Duration) {
	reason := status.OK
	if failure := (*Failure)(nil); errors.As(err, &failure) {
		reason = failure.Reason
	} else if err != nil {
		reason = status.Stopping
	}
	m.adds.WithLabelValues(string(reason)).Inc()
	m.duration.Observe(took.Seconds())
}

var podsDesc = prometheus.NewDesc("fairlead_pods", "Pods of the node, by state and reason.", []string{"state", "reason"}, nil)

// Describe is part of prometheus.Collector: the pods are counted when they are asked for.
func (r *Reconciler) Describe(ch chan<- *prometheus.Desc) { ch <- podsDesc }

// Collect is part of prometheus.Collector.
func (r *Reconciler) Collect(ch chan<- prometheus.Metric) {
	type kind struct {
		state  status.State
		reason status.Reason
	}
	// These two are there from the start, for alerts to be written on.
	count := map[kind]int{{status.Bypassing, status.NoProxy}: 0, {status.Blocked, status.NoProxy}: 0}
	for _, p := range r.reports() {
		count[kind{p.State, p.Reason}]++
	}
	for k, n := range count {
		ch <- prometheus.MustNewConstMetric(podsDesc, prometheus.GaugeValue, float64(n), string(k.state), string(k.reason))
	}
}
