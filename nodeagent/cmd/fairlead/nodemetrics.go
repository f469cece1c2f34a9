package main

import "github.com/prometheus/client_golang/prometheus"

// nodeMetrics are those of the node as a whole.
type nodeMetrics struct{ agent *agent }

var (
	nodeReadyDesc = prometheus.NewDesc("fairlead_node_ready",
		"1 while pods of the node start as they ask for, else 0, by reason: OK, Starting, Drained, KernelUnsupported, NotInstalled.", []string{"reason"}, nil)
	configUndoneDesc = prometheus.NewDesc("fairlead_cni_config_undone_total",
		"Times that others have undone what the agent had written into the runtime's configuration.", nil, nil)
)

// Describe implements prometheus.Collector.
func (nodeMetrics) Describe(descs chan<- *prometheus.Desc) {
	descs <- nodeReadyDesc
	descs <- configUndoneDesc
}

// Collect implements prometheus.Collector.
func (m nodeMetrics) Collect(metrics chan<- prometheus.Metric) {
	reason, err := m.agent.nodeReady()
	ready := 1.0
	if err != nil {
		ready = 0
	}
	metrics <- prometheus.MustNewConstMetric(nodeReadyDesc, prometheus.GaugeValue, ready, reason)
	if m.agent.installer != nil {
		metrics <- prometheus.MustNewConstMetric(configUndoneDesc, prometheus.CounterValue, float64(m.agent.installer.State().Undone))
	}
}
