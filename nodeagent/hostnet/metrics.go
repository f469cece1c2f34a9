package hostnet

import "github.com/prometheus/client_golang/prometheus"

var (
	repairsDesc = prometheus.NewDesc("fairlead_probe_exemption_repairs_total",
		"Times that the exemption of health probes in the host's network namespace was found changed by others, and put right.", nil, nil)
	failingDesc = prometheus.NewDesc("fairlead_probe_exemption_failing",
		"1 while the kernel refuses what exempts health probes, else 0.", nil, nil)
	modeDesc = prometheus.NewDesc("fairlead_probe_exemption_info",
		"1, with how the kubelet's health probes are told from other connections.", []string{"mode"}, nil)
)

// Describe implements prometheus.Collector.
func (e *Exemption) Describe(descs chan<- *prometheus.Desc) {
	descs <- repairsDesc
	descs <- failingDesc
	descs <- modeDesc
}

// Collect implements prometheus.Collector.
func (e *Exemption) Collect(metrics chan<- prometheus.Metric) {
	s := e.Status()
	failing := 0.0
	if s.Problem != "" {
		failing = 1
	}
	metrics <- prometheus.MustNewConstMetric(repairsDesc, prometheus.CounterValue, float64(s.Repairs))
	metrics <- prometheus.MustNewConstMetric(failingDesc, prometheus.GaugeValue, failing)
	metrics <- prometheus.MustNewConstMetric(modeDesc, prometheus.GaugeValue, 1, string(s.Kubelet.Mode))
}
