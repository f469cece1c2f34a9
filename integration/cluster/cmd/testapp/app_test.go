package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A running app, and where it is.
type running struct {
	web, echo string
	stop      context.CancelFunc
	ended     chan error
}

func start(t *testing.T) *running {
	t.Helper()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	web, echo := listen(), listen()
	ctx, stop := context.WithCancel(context.Background())
	r := &running{web: web.Addr().String(), echo: echo.Addr().String(), stop: stop, ended: make(chan error, 1)}
	go func() {
		r.ended <- newApp("web", 10*time.Millisecond).serve(ctx, web, echo)
		close(r.ended)
	}()
	t.Cleanup(func() {
		stop()
		for range r.ended { // read by the test already, or nil
		}
	})
	return r
}

// fetch returns what HTTP gives at url, and whether the connection will not be used again.
func fetch(t *testing.T, client *http.Client, url string) (body string, closed bool) {
	t.Helper()
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }() // read to its end
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), response.Close
}

func TestProbesAreCounted(t *testing.T) {
	r := start(t)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, path := range []string{"/healthz", "/healthz/startup", "/healthz/startup"} {
		if got, _ := fetch(t, client, "http://"+r.web+path); got != "ok\n" {
			t.Errorf("%s: %q", path, got)
		}
	}
	conn, err := net.Dial("tcp", r.echo)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(conn, "hello")
	if got, err := bufio.NewReader(conn).ReadString('\n'); got != "hello\n" {
		t.Errorf("the echo: %q, %v", got, err)
	}
	_ = conn.Close() // all of it has been read
	got, _ := fetch(t, client, "http://"+r.web+"/probes")
	want := `1 http /healthz from 127.0.0.1
2 http /healthz/startup from 127.0.0.1
1 tcp from 127.0.0.1
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// As a gRPC client calls it, byte for byte.
func TestHealthOverGRPC(t *testing.T) {
	r := start(t)
	client := &http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}}
	client.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
	defer client.CloseIdleConnections()
	for _, message := range []string{"\x00\x00\x00\x00\x00", "\x00\x00\x00\x00\x07\x0a\x05ready"} {
		response, err := client.Post("http://"+r.web+"/grpc.health.v1.Health/Check", "application/grpc", strings.NewReader(message))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close() // read to its end
		got := fmt.Sprintf("%s %s %q %s, %v", response.Proto, response.Header.Get("Content-Type"), body, response.Trailer.Get("Grpc-Status"), err)
		if want := `HTTP/2.0 application/grpc "\x00\x00\x00\x00\x02\b\x01" 0, <nil>`; got != want {
			t.Errorf("the answer to %q is %s, want %s", message, got, want)
		}
	}
	want := "1 grpc  from 127.0.0.1\n1 grpc ready from 127.0.0.1\n"
	if got, _ := fetch(t, client, "http://"+r.web+"/probes"); got != want {
		t.Errorf("probes are %q, want %q", got, want)
	}
}

// While somebody is served new clients are, too.
func TestItEndsWhenThereIsNothingToDo(t *testing.T) {
	r := start(t)
	client := &http.Client{}
	defer client.CloseIdleConnections()
	if _, closed := fetch(t, client, "http://"+r.web+"/"); closed {
		t.Error("the connection is not kept")
	}
	conn, err := net.Dial("tcp", r.echo)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(conn)
	echo := func(text string) {
		t.Helper()
		fmt.Fprintln(conn, text)
		if got, err := lines.ReadString('\n'); got != text+"\n" {
			t.Errorf("the echo of %q is %q, %v", text, got, err)
		}
	}
	echo("before")
	r.stop()
	for closed := false; !closed; { // from some moment on
		_, closed = fetch(t, client, "http://"+r.web+"/")
	}
	for range 3 {
		if _, closed := fetch(t, client, "http://"+r.web+"/"); !closed {
			t.Error("the connection is kept")
		}
	}
	echo("after")
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-r.ended; err != nil {
		t.Error(err)
	}
	for _, addr := range []string{r.web, r.echo} {
		if c, err := net.Dial("tcp", addr); err == nil {
			_ = c.Close() // it should not be there
			t.Errorf("%s is still served", addr)
		}
	}
}
