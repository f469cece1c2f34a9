package ztunnelproto

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

func listen(t *testing.T, path string) *Listener {
	t.Helper()
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// connect dials path and returns both ends; l must be what listens there.
func connect(t *testing.T, l *Listener, path string) (proxy, agent *Conn) {
	t.Helper()
	proxy, err := Dial(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = proxy.Close() })
	agent, err = l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Close() })
	return proxy, agent
}

func TestListenAndDial(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run", "zds")
	l := listen(t, path)
	proxy, agent := connect(t, l, path)
	if err := proxy.Send(&ZdsHello{Version: Version_V1}, nil); err != nil {
		t.Fatal(err)
	}
	var hello ZdsHello
	if _, err := agent.Receive(&hello); err != nil || hello.Version != Version_V1 {
		t.Errorf("received %v, %v", &hello, err)
	}
	for name, c := range map[string]*Conn{"proxy": proxy, "agent": agent} {
		got, err := c.Peer()
		if want := (Credentials{int32(os.Getpid()), uint32(os.Getuid()), uint32(os.Getgid())}); got != want || err != nil {
			t.Errorf("the %s's peer is %+v, %v; want %+v", name, got, err, want)
		}
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("left in the directory: %v, %v", entries, err)
	}
}

func TestTheSocketIsRootsAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "zds")
	defer unix.Umask(unix.Umask(0))
	listen(t, path)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode(); got != fs.ModeSocket|0o600 {
		t.Errorf("mode %v", got)
	}
}

func TestListenTakesOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "zds")
	old := listen(t, path)
	oldProxy, oldAgent := connect(t, old, path)

	// What crashed between bind and rename left its temporary file.
	if err := os.Link(path, path+temporary); err != nil {
		t.Fatal(err)
	}
	successor := listen(t, path)
	connect(t, successor, path)
	if err := oldAgent.Send(snapshotSent(), nil); err != nil {
		t.Error(err)
	}
	if _, err := oldProxy.Receive(&WorkloadRequest{}); err != nil {
		t.Errorf("the old connection: %v", err)
	}

	for range 2 {
		if err := old.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := old.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
	connect(t, successor, path)

	// Nobody listens, the file is there: refused, and no obstacle.
	if err := successor.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Dial(t.Context(), path); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("Dial after Close: %v", err)
	}
	connect(t, listen(t, path), path)
}

func TestThePathIsNeverMissing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "zds")
	serve := func() {
		l := listen(t, path)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		}()
	}
	serve()
	var stop atomic.Bool
	result := make(chan error, 1)
	go func() {
		for !stop.Load() {
			c, err := Dial(context.Background(), path)
			if err != nil {
				result <- err
				return
			}
			_ = c.Close()
		}
		result <- nil
	}()
	for range 100 {
		serve()
	}
	stop.Store(true)
	if err := <-result; err != nil {
		t.Error(err)
	}
}

func TestListenReplacesNothingButSockets(t *testing.T) {
	for name, occupy := range map[string]func(path string) error{
		"file":      func(p string) error { return os.WriteFile(p, []byte("precious"), 0o600) },
		"directory": func(p string) error { return os.Mkdir(p, 0o700) },
		"link":      func(p string) error { return os.Symlink("/nowhere", p) },
	} {
		for _, suffix := range []string{"", temporary} {
			t.Run(name+suffix, func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "zds")
				if err := occupy(path + suffix); err != nil {
					t.Fatal(err)
				}
				before, err := os.Lstat(path + suffix)
				if err != nil {
					t.Fatal(err)
				}
				checkFDs(t, func() {
					_, err := Listen(path)
					if want := path + suffix + " exists and is not a socket"; err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("error %v, want %q", err, want)
					}
				})
				if after, err := os.Lstat(path + suffix); err != nil || !os.SameFile(before, after) {
					t.Errorf("it was replaced: %v, %v", after, err)
				}
			})
		}
	}
}

func TestBadPaths(t *testing.T) {
	long := "/" + strings.Repeat("x", maxPath)
	for _, test := range []struct {
		name, want string
		err        error
	}{
		{"listen, abstract", "it must be absolute", second(Listen("@zds"))},
		{"listen, none", "it must be absolute", second(Listen(""))},
		{"listen, long", "it has 108 bytes, the limit is 103", second(Listen(long))},
		{"listen, directory is a file", "not a directory", second(Listen("/dev/null/zds"))},
		{"dial, relative", "it must be absolute", second(Dial(t.Context(), "zds"))},
		{"dial, long", "it has 108 bytes, the limit is 107", second(Dial(t.Context(), long))},
		{"dial, missing", "cannot connect to /nowhere/zds: ", second(Dial(t.Context(), "/nowhere/zds"))},
	} {
		if test.err == nil || !strings.Contains(test.err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", test.name, test.err, test.want)
		}
	}
	if _, err := Dial(t.Context(), "/nowhere/zds"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing socket is %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestAStreamSocketIsNamed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "zds")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil && !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	}()
	if _, err := Dial(t.Context(), path); !errors.Is(err, unix.EPROTOTYPE) {
		t.Errorf("Dial: %v", err)
	}
}

func TestInPlace(t *testing.T) {
	var dir, path string
	for name, displace := range map[string]func() error{
		"removed": func() error { return os.Remove(path) },
		"replaced by a file": func() error {
			return errors.Join(os.WriteFile(dir+".file", nil, 0o600), os.Rename(dir+".file", path))
		},
		"replaced by a listener": func() error {
			listen(t, path)
			return nil
		},
		"directory removed":   func() error { return os.RemoveAll(dir) },
		"directory moved":     func() error { return os.Rename(dir, dir+".old") },
		"directory recreated": func() error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir = filepath.Join(t.TempDir(), "run")
			path = filepath.Join(dir, "zds")
			l := listen(t, path)
			if !l.InPlace() {
				t.Error("not in place at first")
			}
			if err := displace(); err != nil {
				t.Fatal(err)
			}
			if l.InPlace() {
				t.Error("still in place")
			}
		})
	}
}

// A file that takes a removed one's inode number would be taken for it. The kernel
// does not give that number away while the listener is open.
func TestInPlaceIsNotFooledByAReusedInode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "zds")
	l := listen(t, path)
	for range 100 {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		other, err := net.ListenUnix(network, &net.UnixAddr{Name: path, Net: network})
		if err != nil {
			t.Fatal(err)
		}
		other.SetUnlinkOnClose(false)
		if l.InPlace() {
			t.Fatal("another's socket is taken for ours")
		}
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
