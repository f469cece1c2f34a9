// Package metrics serves the agent's HTTP endpoints: /metrics for Prometheus,
// /readyz and /livez for whoever keeps the agent running.
//
// # Failures it survives
//
//   - A client that is slow or sends nothing: it is cut off.
//   - The address is taken: Run fails and names it, so that the agent does not run
//     unseen.
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
	Address  string
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

// Run serves on the address until ctx is done.
func Run(ctx context.Context, c Config) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", c.Address)
	if err != nil {
		return fmt.Errorf("cannot serve metrics and health (httpAddress %s): %w", c.Address, err)
	}
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
