package metrics_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/fairlead-mesh/fairlead/nodeagent/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func config(ready, live error) metrics.Config {
	reg := prometheus.NewRegistry()
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: "fairlead_test_total", Help: "For the test."})
	reg.MustRegister(c)
	return metrics.Config{
		Gatherer: reg, Logger: slog.New(slog.DiscardHandler),
		Ready: func() error { return ready }, Live: func() error { return live },
	}
}

func TestEndpoints(t *testing.T) {
	why := errors.New("no worker has been free for 31s")
	for _, test := range []struct {
		method, path string
		ready, live  error
		code         int
		body         string
	}{
		{"GET", "/metrics", nil, nil, 200, "fairlead_test_total 0"},
		{"GET", "/readyz", nil, why, 200, "ok"},
		{"GET", "/readyz", why, nil, 503, why.Error()},
		{"GET", "/livez", why, nil, 200, "ok"},
		{"GET", "/livez", nil, why, 503, why.Error()},
		{"POST", "/livez", nil, nil, 405, ""},
		{"GET", "/", nil, nil, 404, ""},
	} {
		w := httptest.NewRecorder()
		metrics.Handler(config(test.ready, test.live)).ServeHTTP(w, httptest.NewRequest(test.method, test.path, nil))
		if w.Code != test.code || !strings.Contains(w.Body.String(), test.body) {
			t.Errorf("%s %s: %d %q, want %d %q", test.method, test.path, w.Code, w.Body, test.code, test.body)
		}
	}
}

func TestRunServesUntilTheEnd(t *testing.T) {
	l, err := metrics.Listen(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	if _, err := metrics.Listen(t.Context(), address); err == nil || !strings.Contains(err.Error(), address) {
		t.Fatalf("on a taken address: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- metrics.Run(ctx, l, config(nil, nil)) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	resp, err := client.Get("http://" + address + "/livez") // it listens already
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
