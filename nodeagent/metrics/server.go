// Package metrics serves the agent's HTTP endpoints: /metrics for Prometheus,
// /readyz and /livez for whoever keeps the agent running.
//
// # Failures it survives
//
//   - A client that is slow or sends nothing: it is cut off.
//   - The address is taken: Listen fails and names it, before the agent has touched
//     anything.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Config is what a Server needs. All of it is required.
type Config struct {
	Gatherer prometheus.Gatherer
	// Ready and Live say why not, or nil.
	Ready, Live func() error
	Logger      *slog.Logger
}

// Handler serves the three endpoints.
func Handler(c Config) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(c.Gatherer, promhttp.HandlerOpts{ErrorLog: slog.NewLogLogger(c.Logger.Handler(), slog.LevelWarn)}))
	mux.HandleFunc("GET /readyz", check(c.Ready))
	mux.HandleFunc("GET /livez", check(c.Live))
	return mux
}

// Listen takes the address for Run.
func Listen(ctx context.Context, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot serve metrics and health (httpAddress %s): %w", address, err)
	}
	return l, nil
}

// Run serves on l until ctx is done, and closes it.
func Run(ctx context.Context, l net.Listener, c Config) error {
	server := &http.Server{
		Handler:           Handler(c),
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      30 * time.Second,
		ErrorLog:          slog.NewLogLogger(c.Logger.Handler(), slog.LevelDebug),
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot serve metrics and health: %w", err)
	}
	return nil
}

func check(why func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		text := "ok"
		if err := why(); err != nil {
			w.WriteHeader(http.StatusServiceUnavailable)
			text = err.Error()
		}
		_, _ = fmt.Fprintln(w, text) // a client that is gone needs no answer
	}
}
