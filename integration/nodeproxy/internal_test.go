package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// handlerFunc is a slog.Handler.
type handlerFunc func(slog.Record)

func (h handlerFunc) Enabled(context.Context, slog.Level) bool { return true }
func (h handlerFunc) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h handlerFunc) WithGroup(string) slog.Handler            { return h }
func (h handlerFunc) Handle(_ context.Context, r slog.Record) error {
	h(r)
	return nil
}

func TestBackoff(t *testing.T) {
	path := filepath.Join(t.TempDir(), "none")
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var tries []time.Duration
		p, err := New(Config{ZDS: path, Logger: slog.New(handlerFunc(func(r slog.Record) {
			if strings.HasPrefix(r.Message, "cannot reach the agent") {
				tries = append(tries, time.Since(begin))
			}
		}))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
		want := []time.Duration{
			0, 20 * time.Millisecond, 60 * time.Millisecond, 140 * time.Millisecond, 300 * time.Millisecond,
			620 * time.Millisecond, 1260 * time.Millisecond, 2540 * time.Millisecond, 5100 * time.Millisecond,
			10220 * time.Millisecond, 20460 * time.Millisecond, 35460 * time.Millisecond, 50460 * time.Millisecond,
		}
		if !slices.Equal(tries, want) {
			t.Errorf("tried after %v, want %v", tries, want)
		}
	})
}

func TestReadConnectIsBoundedInTime(t *testing.T) {
	for name, write := range map[string]func(net.Conn){
		"silent":      func(net.Conn) {},
		"too slow":    func(c net.Conn) { dribble(c, "CONNECT 10.0.0.1:80 HTTP/1.1\r\n\r\n") },
		"never ready": func(c net.Conn) { dribble(c, strings.Repeat("X", 100)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				client, proxy := net.Pipe()
				var writing sync.WaitGroup
				defer writing.Wait()
				writing.Go(func() { write(client) })
				_, _, err := readConnect(proxy)
				var r refusal
				if !errors.As(err, &r) || r.status != http.StatusBadRequest || !strings.Contains(err.Error(), "within 5s") {
					t.Errorf("got %v", err)
				}
				if took := time.Since(begin); took != headTimeout {
					t.Errorf("that took %s", took)
				}
				_ = client.Close()
				_ = proxy.Close()
			})
		})
	}
}

// dribble writes a byte a second, until nobody reads.
func dribble(c net.Conn, text string) {
	for _, b := range []byte(text) {
		if _, err := c.Write([]byte{b}); err != nil {
			return
		}
		pause(context.Background(), time.Second)
	}
}

func FuzzReadConnect(f *testing.F) {
	f.Add([]byte("CONNECT 10.0.0.1:80 HTTP/1.1\r\nHost: x\r\n\r\nearly"))
	f.Add([]byte("CONNECT [fd00::1]:80 HTTP/1.1\r\n\r\n"))
	f.Add([]byte("CONNECT 10.0.0.1:99999 HTTP/1.1\r\n\r\n"))
	f.Add([]byte("GET / HTTP/1.0\r\nContent-Length: 5\r\n\r\nhello"))
	f.Add([]byte("CONNECT fe80::1%eth0 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"))
	f.Fuzz(func(t *testing.T, sent []byte) {
		client, proxy := net.Pipe()
		go func() {
			_, _ = client.Write(sent) // until nobody reads
			_ = client.Close()
		}()
		to, early, err := readConnect(proxy)
		_ = proxy.Close()
		if err != nil {
			return
		}
		if !to.IsValid() || !strings.HasSuffix(string(sent), string(early)) && len(sent) < maxHead {
			t.Errorf("%q: %s, %q", sent, to, early)
		}
	})
}

// connected returns both ends of a TCP connection.
func connected(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }() // one is enough
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	for _, conn := range []net.Conn{c, s} {
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
	}
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func TestRelay(t *testing.T) {
	for name, test := range map[string]struct {
		client  func(*net.TCPConn) error
		atApp   error // what the app reads at last
		back    func(*net.TCPConn) error
		broken  bool
		nothing bool // the client reads nothing any more
	}{
		"both end":       {client: (*net.TCPConn).CloseWrite, atApp: io.EOF, back: (*net.TCPConn).CloseWrite},
		"app closes":     {client: (*net.TCPConn).CloseWrite, atApp: io.EOF, back: (*net.TCPConn).Close},
		"client resets":  {client: resetErr, atApp: unix.ECONNRESET, back: (*net.TCPConn).Close, broken: true, nothing: true},
		"the app resets": {client: (*net.TCPConn).CloseWrite, atApp: io.EOF, back: resetErr, broken: true},
	} {
		t.Run(name, func(t *testing.T) {
			client, a := connected(t)
			b, app := connected(t)
			done := make(chan error, 1)
			go func() { done <- relay(a, b) }()
			if err := test.client(client); err != nil {
				t.Fatal(err)
			}
			if _, err := app.Read(make([]byte, 1)); !errors.Is(err, test.atApp) {
				t.Errorf("the app read %v, want %v", err, test.atApp)
			}
			if err := test.back(app); err != nil {
				t.Fatal(err)
			}
			want := io.EOF
			if test.broken {
				want = unix.ECONNRESET
			}
			if !test.nothing {
				if _, err := client.Read(make([]byte, 1)); !errors.Is(err, want) {
					t.Errorf("the client read %v, want %v", err, want)
				}
			}
			if err := <-done; (err != nil) != test.broken {
				t.Errorf("relay: %v", err)
			}
			for _, c := range []*net.TCPConn{a, b} {
				if err := c.Close(); !errors.Is(err, net.ErrClosed) {
					t.Errorf("the relay has left a connection open: %v", err)
				}
			}
		})
	}
}

func resetErr(c *net.TCPConn) error {
	reset(c)
	return nil
}

func TestServerFailureKeepsTheQuery(t *testing.T) {
	query := []byte("\x12\x34\x01\x20\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01")
	want := []byte("\x12\x34\x81\x22\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x01")
	if got := serverFailure(query); !slices.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	if fmt.Sprint(dns, hbone, inbound, outbound) != "dns hbone inbound outbound" {
		t.Error("directions have other names")
	}
}
