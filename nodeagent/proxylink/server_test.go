package proxylink

import (
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func minimal(t *testing.T) Config {
	t.Helper()
	return Config{
		Path: t.TempDir() + "/zds.sock", Changed: func(string) {},
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	}
}

func TestNewFillsIn(t *testing.T) {
	s, err := New(minimal(t))
	if err != nil {
		t.Fatal(err)
	}
	got := []any{s.cfg.AckTimeout, s.cfg.AckPreference, s.cfg.HelloTimeout, s.cfg.AllowedUIDs}
	want := []any{10 * time.Second, 2 * time.Second, 5 * time.Second, []uint32{0}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestNewRefuses(t *testing.T) {
	taken := prometheus.NewRegistry()
	if _, err := newMetrics(taken); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Config){
		"no path":           func(c *Config) { c.Path = "" },
		"no callback":       func(c *Config) { c.Changed = nil },
		"no logger":         func(c *Config) { c.Logger = nil },
		"no registerer":     func(c *Config) { c.Registerer = nil },
		"negative time-out": func(c *Config) { c.HelloTimeout = -1 },
		"metrics twice":     func(c *Config) { c.Registerer = taken },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := minimal(t)
			spoil(&cfg)
			if _, err := New(cfg); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func TestMetrics(t *testing.T) {
	l := start(t, nil)
	l.pod("a")
	l.Open()
	p := l.dial().hello()
	p.expect("add a")
	p.nack("boom")
	p.expect("snapshot")
	p.ack()
	l.idle()
	if problems, err := testutil.GatherAndLint(l.registry); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	families, err := l.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, label := range m.Label {
				name += " " + label.GetValue()
			}
			got[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	want := map[string]float64{
		"fairlead_proxy_sessions held":                      0,
		"fairlead_proxy_sessions hello":                     0,
		"fairlead_proxy_sessions snapshot":                  0,
		"fairlead_proxy_sessions synced":                    1,
		"fairlead_proxy_requests_total add nacked":          1,
		"fairlead_proxy_requests_total snapshot_sent acked": 1,
		"fairlead_proxy_socket_rebound_total":               0,
		"fairlead_proxy_answer_seconds add":                 1,
		"fairlead_proxy_answer_seconds snapshot_sent":       1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
