package kube

import "github.com/prometheus/client_golang/prometheus"

// Metrics counts what is asked of the API, and what comes of it.
type Metrics struct {
	watches  *prometheus.CounterVec
	away     *prometheus.GaugeVec
	writes   *prometheus.CounterVec
	outdated prometheus.Gauge
	events   *prometheus.CounterVec

	nodeWrites *prometheus.CounterVec
	nodeLate   prometheus.Gauge
}

// How a request ended.
const (
	resultOK      = "ok"
	resultFailed  = "failed"
	resultGone    = "gone"
	resultDropped = "dropped"
)

// NewMetrics registers the metrics.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		watches: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_api_watches_total", Help: "Lists and watches that the Kubernetes API was asked for, by resource and result: ok, failed.",
		}, []string{"resource", "result"}),
		away: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fairlead_api_away", Help: "1 while the Kubernetes API does not tell of a resource, or has not yet.",
		}, []string{"resource"}),
		writes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_api_writes_total", Help: "Patches of a pod's annotation and condition, by result: ok, failed (and tried again), gone (the pod is, or has changed).",
		}, []string{"result"}),
		outdated: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_api_pods_outdated", Help: "Pods of which the Kubernetes API does not show what it should, because a patch has failed.",
		}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_events_total", Help: "Events about pods, by result: ok, failed, dropped (there were too many).",
		}, []string{"result"}),
		nodeWrites: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_api_node_writes_total", Help: "Patches of the agent's own node, by resource (nodes: its taints; nodes/status: its condition) and result: ok, failed (and tried again), gone (it had changed).",
		}, []string{"resource", "result"}),
		nodeLate: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "fairlead_api_node_outdated", Help: "1 while the Kubernetes API does not show of the agent's own node what it should, because a request has failed, else 0.",
		}),
	}
	reg.MustRegister(m.watches, m.away, m.writes, m.outdated, m.events, m.nodeWrites, m.nodeLate)
	return m
}

func result(err error) string {
	if err != nil {
		return resultFailed
	}
	return resultOK
}

func (m *Metrics) asked(resource string, err error) {
	m.watches.WithLabelValues(resource, result(err)).Inc()
}

func (m *Metrics) hears(resource string, does bool) {
	away := 1.0
	if does {
		away = 0
	}
	m.away.WithLabelValues(resource).Set(away)
}

func (m *Metrics) wrote(err error) { m.writes.WithLabelValues(resultOfWrite(err)).Inc() }

func (m *Metrics) wroteNode(resource string, err error) {
	m.nodeWrites.WithLabelValues(resource, resultOfWrite(err)).Inc()
}

func (m *Metrics) nodeOutdated(is bool) {
	m.nodeLate.Set(0)
	if is {
		m.nodeLate.Set(1)
	}
}

func resultOfWrite(err error) string {
	if err != nil && over(err) {
		return resultGone
	}
	return result(err)
}

func (m *Metrics) sent(err error) { m.events.WithLabelValues(result(err)).Inc() }
func (m *Metrics) dropped()       { m.events.WithLabelValues(resultDropped).Inc() }
