package agentapi

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// serve answers each connection with handle, and closes it.
func serve(t *testing.T, handle func(*net.UnixConn)) Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			handle(c)
			_ = c.Close() // some handlers have closed it
		}
	}()
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
	return Client{Socket: socket}
}

// say answers any request with text.
func say(t *testing.T, text string) Client {
	return serve(t, func(c *net.UnixConn) {
		if _, err := ReadRequest(c); err != nil {
			t.Error(err)
		}
		if _, err := c.Write([]byte(text)); err != nil {
			t.Error(err)
		}
	})
}

func TestCall(t *testing.T) {
	want := Request{Version: Version, Add: attachment()}
	refusal := &Error{Code: CodeProxyRefused, Message: "the proxy refused", Details: "bind: address in use"}
	for name, answer := range map[string]*Error{"success": nil, "refusal": refusal} {
		t.Run(name, func(t *testing.T) {
			client := serve(t, func(c *net.UnixConn) {
				got, err := ReadRequest(c)
				if err != nil {
					t.Error(err)
				}
				if diff := cmp.Diff(want, got, sameAddr); diff != "" {
					t.Errorf("(-sent +received):\n%s", diff)
				}
				if err := WriteResponse(c, answer); err != nil {
					t.Error(err)
				}
			})
			got, err := client.Call(t.Context(), Request{Add: attachment()})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(Response{Version: Version, Error: answer}, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestCallToAnAbsentAgent(t *testing.T) {
	dir := t.TempDir()
	leftover := filepath.Join(dir, "leftover.sock")
	l, err := Listen(leftover)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	regular := filepath.Join(dir, "regular")
	if err := os.WriteFile(regular, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, socket := range []string{filepath.Join(dir, "missing"), filepath.Join(dir, "no", "dir"), leftover, regular, dir, filepath.Join(dir, strings.Repeat("x", 200))} {
		_, err := Client{Socket: socket}.Call(t.Context(), Request{Status: &StatusRequest{}})
		if !errors.Is(err, ErrAbsent) || !strings.Contains(err.Error(), socket) {
			t.Errorf("%s: got %v, want ErrAbsent that names the socket", socket, err)
		}
	}
}

func TestCallToAFullSocketIsAbsent(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// Nobody accepts: the queue fills up and connect fails at once.
	for {
		c, err := net.Dial("unix", socket)
		if err != nil {
			break
		}
		defer c.Close()
	}
	if _, err := (Client{Socket: socket}).Call(t.Context(), Request{Status: &StatusRequest{}}); !errors.Is(err, ErrAbsent) {
		t.Errorf("got %v, want ErrAbsent", err)
	}
}

func TestCallIsBroken(t *testing.T) {
	clients := map[string]Client{
		"closed before the request was read": serve(t, func(c *net.UnixConn) {}),
		"closed before the answer":           say(t, ""),
		"closed in the answer":               say(t, `{"version":1`),
		"closed before the newline":          say(t, `{"version":1}`),
	}
	for name, client := range clients {
		t.Run(name, func(t *testing.T) {
			_, err := client.Call(t.Context(), Request{Add: attachment()})
			if !errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), client.Socket) {
				t.Errorf("got %v, want ErrBroken that names the socket", err)
			}
		})
	}
}

func TestCallToAHangingAgentEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client := serve(t, func(c *net.UnixConn) {
		if _, err := ReadRequest(c); err != nil {
			t.Error(err)
		}
		cancel()
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("the client sent more")
		}
	})
	_, err := client.Call(ctx, Request{Add: attachment()})
	if !errors.Is(err, context.Canceled) || errors.Is(err, ErrBroken) || errors.Is(err, ErrAbsent) {
		t.Errorf("got %v, want context.Canceled alone", err)
	}
}

func TestCallRefusesAnswersThatAreNone(t *testing.T) {
	for name, tt := range map[string]struct{ answer, says string }{
		"not JSON": {"hello\n", "cannot decode the agent's answer"},
		"endless":  {strings.Repeat("a", MaxMessage), "longer than 65536 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := say(t, tt.answer).Call(t.Context(), Request{Add: attachment()})
			if err == nil || errors.Is(err, ErrBroken) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want %q", err, tt.says)
			}
		})
	}
}

func TestCallReportsAnotherVersion(t *testing.T) {
	client := say(t, `{"version":2,"error":{"code":6,"message":"this agent speaks 2","why":"new"}}`+"\n")
	got, err := client.Call(t.Context(), Request{Add: attachment()})
	if err != nil {
		t.Fatal(err)
	}
	want := &Error{
		Code: CodeBadRequest, Message: "the agent speaks version 2 of its API, we speak version 1",
		Details: "the agent said: this agent speaks 2",
	}
	if diff := cmp.Diff(want, got.Error); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Success in another version is not success.
	if got, err := say(t, `{"version":7}`+"\n").Call(t.Context(), Request{Add: attachment()}); err != nil || got.Error == nil {
		t.Errorf("got %v, %v; want a refusal", got, err)
	}
}

func TestCallIgnoresUnknownFieldsOfAnAnswer(t *testing.T) {
	got, err := say(t, `{"version":1,"took":"3ms"}`+"\n").Call(t.Context(), Request{Add: attachment()})
	if err != nil || got.Error != nil {
		t.Errorf("got %v, %v; want success", got, err)
	}
}

func TestCallDoesNotSendAnInvalidRequest(t *testing.T) {
	_, err := Client{Socket: "/nonexistent"}.Call(t.Context(), Request{Add: &Attachment{}})
	if err == nil || errors.Is(err, ErrAbsent) {
		t.Errorf("got %v, want the request's own fault", err)
	}
}

func TestStream(t *testing.T) {
	refusal := &Error{Code: CodeInternal, Message: "stopped half-way"}
	tests := map[string]struct {
		end  func(*net.UnixConn) error
		want error
	}{
		"complete":       {func(c *net.UnixConn) error { return WriteEnd(c, nil) }, nil},
		"stopped":        {func(c *net.UnixConn) error { return WriteEnd(c, refusal) }, refusal},
		"refused":        {func(c *net.UnixConn) error { return WriteResponse(c, refusal) }, refusal},
		"cut off":        {func(c *net.UnixConn) error { return nil }, ErrBroken},
		"cut in an item": {func(c *net.UnixConn) error { _, err := c.Write([]byte(`{"ver`)); return err }, ErrBroken},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			client := serve(t, func(c *net.UnixConn) {
				if _, err := ReadRequest(c); err != nil {
					t.Error(err)
				}
				for _, pod := range []string{"a", "b"} {
					if err := WriteItem(c, map[string]string{"pod": pod}); err != nil {
						t.Error(err)
					}
				}
				if err := tt.end(c); err != nil {
					t.Error(err)
				}
			})
			var items []string
			err := client.Stream(t.Context(), Request{Status: &StatusRequest{}}, func(m json.RawMessage) error {
				items = append(items, string(m))
				return nil
			})
			var e *Error
			if errors.As(err, &e) {
				if diff := cmp.Diff(tt.want, error(e)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			} else if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if diff := cmp.Diff([]string{`{"pod":"a"}`, `{"pod":"b"}`}, items); diff != "" {
				t.Errorf("items (-want +got):\n%s", diff)
			}
		})
	}
}

func TestStreamStopsWithItsReader(t *testing.T) {
	client := say(t, strings.Repeat(`{"version":1,"item":1}`+"\n", 3))
	enough := errors.New("enough")
	n := 0
	err := client.Stream(t.Context(), Request{Status: &StatusRequest{}}, func(json.RawMessage) error {
		n++
		return enough
	})
	if !errors.Is(err, enough) || n != 1 {
		t.Errorf("got %v after %d items, want %v after one", err, n, enough)
	}
}

func TestServersDeadlineEndsASlowRequest(t *testing.T) {
	got := make(chan error, 1)
	client := serve(t, func(c *net.UnixConn) {
		if err := c.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
			t.Error(err)
		}
		_, err := ReadRequest(c)
		got <- err
	})
	c, err := net.Dial("unix", client.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// The server may have given up already.
	if _, err := c.Write([]byte(`{"version":`)); err != nil && !errors.Is(err, unix.EPIPE) {
		t.Fatal(err)
	}
	if err := <-got; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("got %v, want a timeout", err)
	}
}
