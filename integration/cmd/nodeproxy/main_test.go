package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/nodeproxy"
	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// programEnv makes the test binary the program.
const programEnv = "FAIRLEAD_TEST_NODEPROXY"

func TestMain(m *testing.M) {
	if os.Getenv(programEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestFlags(t *testing.T) {
	got, err := parse([]string{
		"-zds", "/run/zds", "-admin", "", "-readiness", ":15021", "-retry", "1s", "-drain", "2s",
		"-dns", "10.0.0.10", "-dns", "[fd00::a]:5353", "-dns-timeout", "4s", "-v", "-refuse-untagged",
		"-fault-nack", "boom", "-fault-no-ack", "-fault-slow-ack", "3s", "-fault-uid", "uid0",
		"-fault-no-hello", "-fault-die-after-acks", "4",
	}, nil)
	want := nodeproxy.Config{
		ZDS: "/run/zds", Readiness: ":15021", Retry: time.Second, Drain: 2 * time.Second,
		DNS:        []netip.AddrPort{netip.MustParseAddrPort("10.0.0.10:53"), netip.MustParseAddrPort("[fd00::a]:5353")},
		DNSTimeout: 4 * time.Second, RefuseUntagged: true,
		Faults: nodeproxy.Faults{
			UID: "uid0", Nack: "boom", NoAck: true, SlowAck: 3 * time.Second, NoHello: true, DieAfterAcks: 4,
		},
	}
	diff := cmp.Diff(want, got, cmpopts.IgnoreFields(nodeproxy.Config{}, "Logger"),
		cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }))
	if diff != "" || err != nil {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	got, err = parse([]string{"-dns", "10.0.0.10", "-dns-capture=false"}, nil)
	if err != nil || got.DNS != nil || got.ZDS != "/var/run/ztunnel/ztunnel.sock" || got.Admin != "127.0.0.1:15000" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestWrongFlags(t *testing.T) {
	for want, args := range map[string][]string{
		`bad name server "x"`:       {"-dns", "x"},
		`unexpected argument "x"`:   {"-dns-capture=false", "x"},
		"not defined: -x":           {"-x"},
		"must not be negative":      {"-dns-capture=false", "-drain", "-1s"},
		`socket path "relative"`:    {"-dns-capture=false", "-zds", "relative"},
		"cannot be reached from in": {"-dns", "127.0.0.1"},
	} {
		var stderr bytes.Buffer
		if err := run(t.Context(), args, &stderr); err == nil || !strings.Contains(err.Error(), want) || stderr.Len() > 0 {
			t.Errorf("%q: %v, want %q; printed %q", args, err, want, &stderr)
		}
	}
	var stderr bytes.Buffer
	err := run(t.Context(), []string{"-h"}, &stderr)
	if err != nil || !strings.HasPrefix(stderr.String(), "usage: nodeproxy [flags]\n") || !strings.Contains(stderr.String(), "-fault-die-after-acks n") {
		t.Errorf("%v, printed %q", err, &stderr)
	}
}

// program starts the program against an agent, and returns when it has said hello.
func program(t *testing.T) (*exec.Cmd, *ztunnelproto.Conn, *bytes.Buffer) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "zds")
	agent, err := ztunnelproto.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = agent.Close() })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, "-zds", path, "-admin", "", "-dns-capture=false")
	cmd.Env = append(os.Environ(), programEnv+"=1")
	stderr := new(bytes.Buffer)
	cmd.Stderr = stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(10*time.Second, func() { _ = agent.Close() }).Stop()
	conn, err := agent.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := errors.Join(conn.SetDeadline(time.Now().Add(10*time.Second)), receive(conn, &ztunnelproto.ZdsHello{})); err != nil {
		t.Fatal(err)
	}
	return cmd, conn, stderr
}

func receive(conn *ztunnelproto.Conn, hello *ztunnelproto.ZdsHello) error {
	if _, err := conn.Receive(hello); err != nil {
		return err
	}
	if hello.GetVersion() != ztunnelproto.Version_V1 {
		return fmt.Errorf("hello of version %s", hello.GetVersion())
	}
	return nil
}

func TestSignalsEndTheProgram(t *testing.T) {
	for _, signal := range []os.Signal{unix.SIGTERM, unix.SIGINT} {
		cmd, _, stderr := program(t)
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v, printed %s", signal, err, stderr)
		}
	}
}

func TestAFatalErrorEndsTheProgram(t *testing.T) {
	cmd, conn, stderr := program(t)
	snapshot := &ztunnelproto.WorkloadRequest{Payload: &ztunnelproto.WorkloadRequest_SnapshotSent{
		SnapshotSent: &ztunnelproto.SnapshotSent{},
	}}
	for range 2 {
		if err := conn.Send(snapshot, nil); err != nil {
			t.Fatal(err)
		}
	}
	err := cmd.Wait()
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(stderr.String(), "\nnodeproxy: node proxy cannot go on: ") {
		t.Errorf("%v, printed %s", err, stderr)
	}
}
