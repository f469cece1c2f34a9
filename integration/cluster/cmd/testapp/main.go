// Command testapp is what runs in test pods.
//
//	testapp serve             HTTP and gRPC health at :8080, TCP echo at :7777
//	testapp get URL           print what HTTP gives there; fail if that is not OK
//	testapp ask ADDR TEXT     send a line to a TCP echo and print what comes back
//	testapp healthy           fail if there is a file /tmp/unhealthy
//
// HTTP says who asks: "pod=web client=10.244.1.3:4242 path=/"; /clients has a line for
// each client that asked so. For probes there are these, which are well unless there
// is a file /tmp/unhealthy:
//
//   - /healthz, and any name below it, as /healthz/startup;
//   - the gRPC service grpc.health.v1.Health, for any name of a service;
//   - testapp healthy.
//
// /probes has a line for each source and kind of probe, and how often it came: "3 http
// /healthz/startup from 10.244.1.1". Whoever connects to the echo counts as one, too.
//
// When it gets SIGTERM it serves on, and asks clients to come back by other connections,
// which find another pod, until for 2 seconds there was nothing to do. Probes are nothing.
//
// "get" and "ask" try for 10 seconds, so that an init container with them waits for a
// server; each failure is told on stderr.
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
	case len(args) == 1 && args[0] == "healthy":
		return healthy()
	}
	return fmt.Errorf("cannot understand %q; see the command's documentation", args)
}

func serve(ctx context.Context) error {
	web, err := net.Listen("tcp", ":8080")
	if err != nil {
		return err
	}
	echo, err := net.Listen("tcp", ":7777")
	if err != nil {
		return err
	}
	name, _ := os.Hostname() // a pod's name; without one it is just not said
	return newApp(name, 2*time.Second).serve(ctx, web, echo)
}

func healthy() error {
	if _, err := os.Stat("/tmp/unhealthy"); err == nil {
		return errors.New("unhealthy")
	}
	return nil
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
		fmt.Fprintln(os.Stderr, "testapp: trying again:", err)
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
