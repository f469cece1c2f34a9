package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// An app serves one pod.
type app struct {
	name   string
	linger time.Duration // without work, before it ends

	mu      sync.Mutex
	clients strings.Builder
	probes  map[string]int // how often, by kind and source
	work    int            // requests and connections to the echo that are open
	idle    time.Time      // since when there is none
	ending  bool
}

func newApp(name string, linger time.Duration) *app {
	return &app{name: name, linger: linger, probes: map[string]int{}}
}

// serve serves until ctx is done, and then until there is nothing to do. It owns the
// listeners.
func (a *app) serve(ctx context.Context, web, echo net.Listener) error {
	server := &http.Server{Handler: a.handler(), Protocols: new(http.Protocols)}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetUnencryptedHTTP2(true) // gRPC
	failed := make(chan error, 2)
	go func() { failed <- a.serveEcho(echo) }()
	go func() { failed <- server.Serve(web) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	a.waitIdle()
	_ = echo.Close() // fails only if it was
	return server.Shutdown(context.Background())
}

// begin counts what the app must not end during, until end.
func (a *app) begin() (ending bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.work++
	return a.ending
}

func (a *app) end() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.work--
	a.idle = time.Now()
}

func (a *app) waitIdle() {
	a.mu.Lock()
	a.ending, a.idle = true, time.Now()
	a.mu.Unlock()
	again := time.NewTicker(a.linger / 10)
	defer again.Stop()
	for range again.C {
		a.mu.Lock()
		over := a.work == 0 && time.Since(a.idle) >= a.linger
		a.mu.Unlock()
		if over {
			return
		}
	}
}

func (a *app) probed(kind, client string) {
	addr, err := netip.ParseAddrPort(client)
	if err != nil {
		return // no peer has such an address
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.probes[kind+" from "+addr.Addr().Unmap().String()]++
}

func (a *app) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		ending := a.begin()
		defer a.end()
		if ending {
			w.Header().Set("Connection", "close")
		}
		a.mu.Lock()
		fmt.Fprintf(&a.clients, "%s %s\n", r.RemoteAddr, r.URL.Path)
		a.mu.Unlock()
		fmt.Fprintf(w, "pod=%s client=%s path=%s\n", a.name, r.RemoteAddr, r.URL.Path)
	})
	mux.HandleFunc("/clients", func(w http.ResponseWriter, _ *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		fmt.Fprint(w, a.clients.String())
	})
	mux.HandleFunc("/probes", func(w http.ResponseWriter, _ *http.Request) {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, probe := range slices.Sorted(maps.Keys(a.probes)) {
			fmt.Fprintf(w, "%d %s\n", a.probes[probe], probe)
		}
	})
	mux.HandleFunc("/healthz", a.healthz)
	mux.HandleFunc("/healthz/", a.healthz)
	mux.HandleFunc("/grpc.health.v1.Health/Check", a.checkHealth)
	return mux
}

func (a *app) healthz(w http.ResponseWriter, r *http.Request) {
	a.probed("http "+r.URL.Path, r.RemoteAddr)
	if err := healthy(); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// checkHealth is gRPC's health check: a frame of five bytes and a message each way, and
// the outcome of the call behind the answer. Of the request it takes field 1, the
// service; that of the answer is 1, for serving, or 2.
func (a *app) checkHealth(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<10))
	const head = 5 + 2 // the frame's, and the field's number, type and length
	service := ""
	if err == nil && len(body) > head {
		service = string(body[head:])
	}
	a.probed("grpc "+service, r.RemoteAddr)
	status := byte(1)
	if healthy() != nil {
		status = 2
	}
	w.Header().Set("Content-Type", "application/grpc")
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", "0")
	_, _ = w.Write([]byte{0, 0, 0, 0, 2, 1 << 3, status}) // the client has gone
}

func (a *app) serveEcho(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		a.begin()
		a.probed("tcp", conn.RemoteAddr().String())
		go func() {
			defer a.end()
			_, _ = io.Copy(conn, conn) // the client has gone
			_ = conn.Close()           // and so nothing is left to be lost
		}()
	}
}
