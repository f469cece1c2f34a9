// Command testapp is what runs in test pods.
//
//	testapp serve             HTTP at :8080, TCP echo at :7777, until it gets a signal
//	testapp get URL           print what HTTP gives there; fail if that is not OK
//	testapp ask ADDR TEXT     send a line to a TCP echo and print what comes back
//
// HTTP says who asks: "pod=web client=10.244.1.3:4242 path=/". /healthz is OK, for
// probes, unless there is a file /tmp/unhealthy; /clients has a line for each client
// that any path but these was asked by. "get" and "ask" try for 10 seconds, so that
// an init container with them waits for a server.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "testapp: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 0, len(args) == 1 && args[0] == "serve":
		return serve(ctx)
	case len(args) == 2 && args[0] == "get":
		return patiently(ctx, func() error { return get(ctx, args[1]) })
	case len(args) == 3 && args[0] == "ask":
		return patiently(ctx, func() error { return ask(ctx, args[1], args[2]) })
	}
	return fmt.Errorf("cannot understand %q; see the command's documentation", args)
}

func serve(ctx context.Context) error {
	echo, err := net.Listen("tcp", ":7777")
	if err != nil {
		return err
	}
	failed := make(chan error, 2)
	go func() { failed <- serveEcho(echo) }()
	server := &http.Server{Addr: ":8080", Handler: newHandler()}
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}

func newHandler() http.Handler {
	var (
		mu      sync.Mutex
		clients strings.Builder
	)
	name, _ := os.Hostname() // a pod's name; without one it is just not said
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		fmt.Fprintf(&clients, "%s %s\n", r.RemoteAddr, r.URL.Path)
		mu.Unlock()
		fmt.Fprintf(w, "pod=%s client=%s path=%s\n", name, r.RemoteAddr, r.URL.Path)
	})
	mux.HandleFunc("/clients", func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprint(w, clients.String())
	})
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if _, err := os.Stat("/tmp/unhealthy"); err == nil {
			http.Error(w, "unhealthy", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	return mux
}

func serveEcho(listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(conn, conn) // the client has gone
			_ = conn.Close()           // and so nothing is left to be lost
		}()
	}
}

// patiently tries until it works, for 10 seconds.
func patiently(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	again := time.NewTicker(200 * time.Millisecond)
	defer again.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return err
		}
	}
}

func get(ctx context.Context, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	client := http.Client{Timeout: 5 * time.Second}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // read to its end
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	fmt.Print(string(body))
	return nil
}

func ask(ctx context.Context, addr, text string) error {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // the answer is all that counts
	if _, err := fmt.Fprintln(conn, text); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return err
	}
	fmt.Print(answer)
	return nil
}
