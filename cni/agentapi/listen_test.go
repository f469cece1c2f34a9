package agentapi

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestListen(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "fairlead")
	socket := filepath.Join(dir, "agent.sock")
	// The second round finds the first one's leftover, and a world-readable
	// directory; the third also finds a bind that was never renamed.
	for round := range 3 {
		l, err := Listen(socket)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		modes(t, map[string]fs.FileMode{dir: fs.ModeDir | 0o700, socket: fs.ModeSocket | 0o600})
		if names := list(t, dir); len(names) != 1 {
			t.Errorf("round %d: the directory holds %v", round, names)
		}
		accepted := make(chan error, 1)
		go func() {
			c, err := l.AcceptUnix()
			if err == nil {
				err = c.Close()
			}
			accepted <- err
		}()
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		if err := errors.Join(<-accepted, c.Close(), l.Close()); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if round == 1 {
			if err := os.WriteFile(socket+"~", nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestListenNeverLeavesAGap(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	old, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	gaps := make(chan int)
	go func() {
		n := 0
		for {
			select {
			case <-stop:
				gaps <- n
				return
			default:
				if _, err := os.Lstat(socket); err != nil {
					n++
				}
			}
		}
	}()
	for range 50 {
		next, err := Listen(socket)
		if err != nil {
			t.Fatal(err)
		}
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
		old = next
	}
	close(stop)
	if n := <-gaps; n != 0 {
		t.Errorf("the socket was missing %d times", n)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestListenNamesWhatIsInTheWay(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, "folder.sock")
	if err := os.MkdirAll(filepath.Join(folder, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, socket := range []string{filepath.Join(file, "agent.sock"), folder, filepath.Join(dir, strings.Repeat("x", 120))} {
		l, err := Listen(socket)
		if err == nil {
			t.Errorf("%s: listening, to the test's surprise: %v", socket, l.Close())
		} else if !strings.Contains(err.Error(), "cannot listen on "+socket) {
			t.Errorf("%s: %v does not name it", socket, err)
		}
	}
	if names := list(t, dir); len(names) != 2 {
		t.Errorf("left behind: %v", names)
	}
}

func TestPeer(t *testing.T) {
	got := make(chan Peer, 1)
	client := serve(t, func(c *net.UnixConn) {
		peer, err := PeerOf(c)
		if err != nil {
			t.Error(err)
		}
		if err := CheckPeer(c); (err == nil) != (os.Getuid() == 0) {
			t.Errorf("as user %d: %v", os.Getuid(), err)
		}
		got <- peer
	})
	c, err := net.Dial("unix", client.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if want := (Peer{PID: int32(os.Getpid()), UID: uint32(os.Getuid())}); <-got != want {
		t.Errorf("the peer is not %+v", want)
	}
	if err := (Peer{PID: 7, UID: 65534}).check(); err == nil || !strings.Contains(err.Error(), "process 7 of user 65534") {
		t.Errorf("got %v, want a refusal that names process and user", err)
	}
}

func TestPeerOfAClosedConnection(t *testing.T) {
	client := serve(t, func(c *net.UnixConn) {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := CheckPeer(c); err == nil {
			t.Error("a closed connection has a peer")
		}
	})
	if _, err := client.Call(t.Context(), Request{Status: &StatusRequest{}}); !errors.Is(err, ErrBroken) {
		t.Errorf("got %v, want ErrBroken", err)
	}
}

func TestWithPeer(t *testing.T) {
	tests := map[string]struct {
		client func(net.Conn) error
		gone   bool
	}{
		"closed":      {net.Conn.Close, true},
		"more bytes":  {func(c net.Conn) error { _, err := c.Write([]byte("x")); return err }, true},
		"still there": {func(net.Conn) error { return nil }, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			read, acted, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
			client := serve(t, func(c *net.UnixConn) {
				defer close(done)
				if err := c.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
					t.Error(err)
				}
				if _, err := ReadRequest(c); err != nil {
					t.Error(err)
				}
				ctx, stop := WithPeer(t.Context(), c)
				close(read)
				<-acted
				want := context.Canceled
				if tt.gone {
					<-ctx.Done()
					want = ErrPeerGone
				} else if ctx.Err() != nil {
					t.Error("the context ended while the peer was there")
				}
				stop()
				stop()
				if got := context.Cause(ctx); !errors.Is(got, want) {
					t.Errorf("cause is %v, want %v", got, want)
				}
			})
			c, err := net.Dial("unix", client.Socket)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := writeLine(c, Request{Version: Version, Status: &StatusRequest{}}); err != nil {
				t.Fatal(err)
			}
			<-read
			if err := tt.client(c); err != nil {
				t.Fatal(err)
			}
			close(acted)
			<-done
		})
	}
}

// Whoever has left before anyone looked is known to be gone at once.
func TestWithPeerThatIsGone(t *testing.T) {
	for name, act := range map[string]func(*net.UnixConn) error{
		"closed":     (*net.UnixConn).Close,
		"half":       (*net.UnixConn).CloseWrite,
		"more bytes": func(c *net.UnixConn) error { _, err := c.Write([]byte("x")); return err },
	} {
		t.Run(name, func(t *testing.T) {
			read, acted, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
			client := serve(t, func(c *net.UnixConn) {
				defer close(done)
				if _, err := ReadRequest(c); err != nil {
					t.Error(err)
				}
				close(read)
				<-acted
				ctx, stop := WithPeer(t.Context(), c)
				if !errors.Is(context.Cause(ctx), ErrPeerGone) {
					t.Errorf("the cause is %v", context.Cause(ctx))
				}
				stop()
			})
			c, err := net.Dial("unix", client.Socket)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if err := writeLine(c, Request{Version: Version, Status: &StatusRequest{}}); err != nil {
				t.Fatal(err)
			}
			<-read
			if err := act(c.(*net.UnixConn)); err != nil {
				t.Fatal(err)
			}
			close(acted)
			<-done
		})
	}
}

func TestAwait(t *testing.T) {
	for name, tt := range map[string]struct {
		act   func(*net.UnixConn) error
		says  string // what is read afterwards
		fails error
	}{
		"bytes":   {act: func(c *net.UnixConn) error { _, err := c.Write([]byte("hi")); return err }, says: "hi"},
		"the end": {act: (*net.UnixConn).Close},
		"nothing": {act: func(*net.UnixConn) error { return nil }, fails: os.ErrDeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			waiting, done := make(chan struct{}), make(chan struct{})
			client := serve(t, func(c *net.UnixConn) {
				defer close(done)
				if !Waits(c) {
					t.Error("a peer that is silent does not wait")
				}
				deadline := time.Now().Add(time.Minute)
				if tt.fails != nil {
					deadline = time.Now().Add(time.Millisecond)
				}
				if err := c.SetReadDeadline(deadline); err != nil {
					t.Error(err)
				}
				close(waiting)
				if err := Await(c); !errors.Is(err, tt.fails) {
					t.Errorf("got %v, want %v", err, tt.fails)
				}
				if Waits(c) != (tt.fails != nil) {
					t.Error("a peer that has sent something waits")
				}
				got := make([]byte, 10)
				if n, _ := c.Read(got); string(got[:n]) != tt.says {
					t.Errorf("%q is left to read, want %q", got[:n], tt.says)
				}
			})
			c, err := net.Dial("unix", client.Socket)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			<-waiting
			if err := tt.act(c.(*net.UnixConn)); err != nil {
				t.Fatal(err)
			}
			<-done
		})
	}
}

func TestAwaitOnAClosedConnection(t *testing.T) {
	client := serve(t, func(c *net.UnixConn) {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := Await(c); !errors.Is(err, net.ErrClosed) {
			t.Errorf("got %v", err)
		}
		if Waits(c) {
			t.Error("nobody waits there")
		}
	})
	if _, err := client.Call(t.Context(), Request{Status: &StatusRequest{}}); !errors.Is(err, ErrBroken) {
		t.Errorf("got %v, want ErrBroken", err)
	}
}

func TestReady(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	file := ReadyFile(socket)
	if err := CheckReady(socket); err == nil || !strings.Contains(err.Error(), "there is no "+file) {
		t.Errorf("got %v, want the file's name", err)
	}
	if err := os.WriteFile(file, []byte("00000000-0000-0000-0000-000000000000\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := CheckReady(socket); err == nil || !strings.Contains(err.Error(), file+" is from an earlier boot") {
		t.Errorf("got %v, want the earlier boot", err)
	}
	if err := MarkReady(socket); err != nil {
		t.Fatal(err)
	}
	modes(t, map[string]fs.FileMode{file: 0o600})
	if err := CheckReady(socket); err != nil {
		t.Error(err)
	}
	if names := list(t, filepath.Dir(socket)); len(names) != 1 {
		t.Errorf("the directory holds %v", names)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(file, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := CheckReady(socket); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v, want the unreadable file", err)
	}
	if err := MarkReady(filepath.Join(file, "no", "agent.sock")); err == nil {
		t.Error("written where there is no directory")
	}
}

func modes(t *testing.T, want map[string]fs.FileMode) {
	t.Helper()
	for name, mode := range want {
		info, err := os.Lstat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != mode {
			t.Errorf("%s has mode %v, want %v", name, info.Mode(), mode)
		}
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
