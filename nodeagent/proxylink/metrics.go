package proxylink

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Why a connection ended.
const (
	endClosed       = "closed"
	endHelloTimeout = "hello_timeout"
	endAckTimeout   = "ack_timeout"
	endProtocol     = "protocol"
	endRefused      = "refused"
	endFlood        = "flood"
	endShutdown     = "shutdown"
	endError        = "error"
)

// endedError is why a session's connection ended.
type endedError struct {
	reason string
	error
}

func ended(reason string, err error) error { return endedError{reason, err} }

func reasonOf(err error) string {
	var e endedError
	if errors.As(err, &e) {
		return e.reason
	}
	return endError
}

type metrics struct {
	sessions *prometheus.GaugeVec
	requests *prometheus.CounterVec
	answers  *prometheus.HistogramVec
	ends     *prometheus.CounterVec
	rebound  prometheus.Counter
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		sessions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "fairlead_proxy_sessions",
			Help: "Connections of node proxies, by state: held, hello, snapshot, synced.",
		}, []string{"state"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_proxy_requests_total",
			Help: "Requests to node proxies, by kind and by what became of them: acked, nacked, unsent.",
		}, []string{"request", "result"}),
		answers: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "fairlead_proxy_answer_seconds",
			Help:    "Time from a request to the node proxy's answer.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"request"}),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "fairlead_proxy_connections_ended_total",
			Help: "Connections of node proxies that ended, by reason.",
		}, []string{"reason"}),
		rebound: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "fairlead_proxy_socket_rebound_total",
			Help: "Times the proxies' socket was gone or replaced and was bound again.",
		}),
	}
	for _, c := range []prometheus.Collector{m.sessions, m.requests, m.answers, m.ends, m.rebound} {
		if err := r.Register(c); err != nil {
			return nil, fmt.Errorf("cannot register the proxy link's metrics: %w", err)
		}
	}
	for _, state := range []SessionState{Held, Hello, Snapshot, Synced} {
		m.sessions.WithLabelValues(string(state))
	}
	return m, nil
}

func (m *metrics) entered(s SessionState) { m.sessions.WithLabelValues(string(s)).Inc() }
func (m *metrics) left(s SessionState)    { m.sessions.WithLabelValues(string(s)).Dec() }
func (m *metrics) ended(reason string)    { m.ends.WithLabelValues(reason).Inc() }

func (m *metrics) answered(kind string, result State, took time.Duration) {
	m.requests.WithLabelValues(kind, string(result)).Inc()
	if result != Unsent {
		m.answers.WithLabelValues(kind).Observe(took.Seconds())
	}
}
