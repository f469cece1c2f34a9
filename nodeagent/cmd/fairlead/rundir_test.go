package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// tree is what lies in a directory, as text.
func tree(dir string) string {
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil {
			all = append(all, strings.TrimSpace(info.Mode().String()+" "+strings.TrimPrefix(path, dir)))
		}
		return err
	})
	if err != nil {
		all = append(all, err.Error())
	}
	return strings.Join(all, "\n")
}

const wholeTree = `drwx------
Srw------- /agent.sock
-rw------- /lock
drwx------ /pods
-rw------- /pods/u1.json
-rw------- /ready`

// Whatever is removed from the run directory is there again, and works.
func TestTheRunDirectoryIsKept(t *testing.T) {
	netlab.Kernel(t)
	c, file := settings(t, "sweepInterval: 100ms")
	pods := t.TempDir()
	unlabelled := strings.Replace(manifest, "labels: {istio.io/dataplane-mode: ambient}", "labels: {}", 1)
	if err := os.WriteFile(filepath.Join(pods, "web.yaml"), []byte(unlabelled), 0o600); err != nil {
		t.Fatal(err)
	}
	stop := start(t, file, pods)
	pod := netlab.NewNS(t, "pod")
	client := agentapi.Client{Socket: c.File("agent.sock")}
	attachment := &agentapi.Attachment{Namespace: "shop", Name: "web", UID: "u1", ContainerID: "c1", Netns: pod.Path, Interface: "eth0"}
	ask := func(request agentapi.Request) error {
		answer, err := client.Call(t.Context(), request)
		if err == nil && answer.Error != nil {
			err = answer.Error
		}
		return err
	}
	netlab.Eventually(t, func() error { return ask(agentapi.Request{Add: attachment}) })
	whole := func() error {
		if got := tree(c.RunDir); got != wholeTree {
			return errors.New("the run directory has\n" + got)
		}
		return errors.Join(ask(agentapi.Request{Check: attachment}), agentapi.CheckReady(client.Socket))
	}
	netlab.Eventually(t, whole)

	remove := func(name string) func() error {
		return func() error { return os.RemoveAll(filepath.Join(c.RunDir, name)) }
	}
	for name, damage := range map[string]func() error{
		"the socket": remove("agent.sock"), "ready": remove("ready"), "the lock": remove("lock"), "the records": remove("pods"),
		"a record": remove("pods/u1.json"), "all of it": remove(""),
		"the directory, moved": func() error { return os.Rename(c.RunDir, filepath.Join(t.TempDir(), "old")) },
		"the directory, replaced": func() error {
			return errors.Join(os.Rename(c.RunDir, filepath.Join(t.TempDir(), "old")), os.Mkdir(c.RunDir, 0o755))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if err := damage(); err != nil {
				t.Fatal(err)
			}
			netlab.Eventually(t, whole)
			if _, err := run(t.Context(), "agent", "--config", file, "--pods-from", pods); !errors.Is(err, agentapi.ErrTaken) {
				t.Errorf("a second agent: %v", err)
			}
		})
	}
	// The next agent finds the pod on record.
	log, err := stop()
	if err != nil {
		t.Errorf("the agent ended with %v", err)
	}
	for _, lost := range []string{"lost=socket ", "lost=ready ", "lost=lock ", "lost=lock,socket,ready "} {
		if !strings.Contains(log, lost) {
			t.Errorf("the log does not say %s:\n%s", lost, log)
		}
	}
	start(t, file, pods)
	netlab.Eventually(t, whole)
}

// Of two agents the one that has the lock goes on; the other ends, and says why.
func TestAnotherAgentTakesTheNode(t *testing.T) {
	netlab.Kernel(t)
	c, _ := settings(t)
	a, err := newAgent(c, t.TempDir(), false, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- a.run(t.Context()) }()
	netlab.Eventually(t, a.ready)
	var other *runDir
	netlab.Eventually(t, func() error { // the agent may be faster, and have it again
		if err := os.Remove(c.File("lock")); err != nil {
			return err
		}
		other, err = openRunDir(c.File("agent.sock"), func() {}, slog.New(slog.DiscardHandler))
		return err
	})
	defer closeQuietly(other)
	if err := <-done; !errors.Is(err, agentapi.ErrTaken) || !strings.Contains(err.Error(), "this agent's lock was removed") {
		t.Errorf("it ended with %v", err)
	}
	if err := other.keep(); err != nil { // the agent may have put its own socket there a last time
		t.Errorf("the other: %v", err)
	}
	if !other.listener.InPlace() {
		t.Error("the socket is not the other's")
	}
}

// Another agent's socket alone does not make the node its own.
func TestAnotherSocketWithoutTheLock(t *testing.T) {
	dir, log, changes := kept(t)
	other, err := agentapi.Listen(dir.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer closeQuietly(other)
	for range 3 {
		if err := dir.keep(); err != nil {
			t.Error(err)
		}
	}
	if !dir.listener.InPlace() || *changes != 1 || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "lost=socket ") {
		t.Errorf("in its place %v, %d changes, log:\n%s", dir.listener.InPlace(), *changes, log)
	}
}

// What cannot be put right is said once, and tried again.
func TestTheRunDirectoryCannotBeKept(t *testing.T) {
	for _, name := range []string{"agent.sock", "lock", "ready"} {
		t.Run(name, func(t *testing.T) {
			dir, log, changes := kept(t)
			dir.announceReady()
			path := filepath.Join(filepath.Dir(dir.socket), name)
			if err := errors.Join(os.Remove(path), os.MkdirAll(filepath.Join(path, "full"), 0o700)); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := dir.keep(); err != nil {
					t.Error(err)
				}
			}
			if text := log.String(); *changes != 0 || strings.Count(text, "\n") != 1 || !strings.Contains(text, "level=ERROR") || !strings.Contains(text, path) {
				t.Errorf("%d changes, log:\n%s", *changes, text)
			}
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				if err := dir.keep(); err != nil {
					t.Error(err)
				}
			}
			lines := strings.Split(strings.TrimSpace(log.String()), "\n")
			if *changes != 1 || len(lines) != 2 || !strings.Contains(lines[1], "level=WARN") {
				t.Errorf("%d changes, log:\n%s", *changes, log)
			}
			names, err := filepath.Glob(filepath.Join(filepath.Dir(dir.socket), "*"))
			for i := range names {
				names[i] = filepath.Base(names[i])
			}
			if want := []string{"agent.sock", "lock", "ready"}; err != nil || !slices.Equal(names, want) {
				t.Errorf("the directory holds %v, %v", names, err)
			}
		})
	}
}

// kept is the run directory of an agent that does nothing else.
func kept(t *testing.T) (dir *runDir, log *bytes.Buffer, changes *int) {
	t.Helper()
	log, changes = new(bytes.Buffer), new(int)
	dir, err := openRunDir(filepath.Join(t.TempDir(), "run", "agent.sock"), func() { *changes++ }, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeQuietly(dir) })
	return dir, log, changes
}

// An agent that cannot listen leaves the node to others.
func TestNoRunDirectory(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "agent.sock")
	if err := os.MkdirAll(filepath.Join(socket, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if dir, err := openRunDir(socket, nil, nil); err == nil || errors.Is(err, agentapi.ErrTaken) {
			t.Errorf("got %v, %v", dir, err)
		}
	}
	if err := os.RemoveAll(socket); err != nil {
		t.Fatal(err)
	}
	dir, err := openRunDir(socket, nil, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := errors.Join(dir.run(ctx), dir.Close()); err != nil {
		t.Error(fmt.Errorf("it does not end in peace: %w", err))
	}
}
