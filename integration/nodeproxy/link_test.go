package nodeproxy_test

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/integration/nodeproxy"
	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

// noNamespace is a file that is no network namespace.
func noNamespace(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "plain"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestReadiness(t *testing.T) {
	n := newNode(t, nodeproxy.Config{})
	l := n.accept()
	n.wantUnready("the agent has not sent its snapshot yet")
	l.wantAck(snapshot())
	n.wantReady()
	if err := l.conn.Close(); err != nil {
		t.Fatal(err)
	}
	l = n.accept()
	n.wantUnready("the agent has not sent its snapshot yet")
	l.wantAck(snapshot())
	n.wantReady()
	_ = n.agent.Close()
	_ = l.conn.Close()
	n.wantUnready("not connected to the agent")
}

func TestRequestsThatAreAcked(t *testing.T) {
	n := newNode(t, nodeproxy.Config{})
	l := n.accept()
	l.wantAck(keep("unknown"))
	l.wantAck(keep("unknown"))
	l.wantAck(del("unknown"))
	l.wantAck(snapshot())
	l.wantAck(del("unknown"))
	if got := n.proxy.State().WorkloadState; len(got) > 0 {
		t.Errorf("there are workloads: %v", got)
	}
	n.wantReady()
}

func TestRequestsThatEndTheProxy(t *testing.T) {
	withoutInfo := add("uid0")
	withoutInfo.GetAdd().WorkloadInfo = nil
	for name, test := range map[string]struct {
		request *ztunnelproto.WorkloadRequest
		file    *os.File
		want    string
	}{
		"Add without workload_info": {withoutInfo, noNamespace(t), `Add of workload "uid0" without workload_info`},
		"Keep after the snapshot":   {keep("uid0"), nil, `Keep for "uid0" after its snapshot`},
		"second snapshot":           {snapshot(), nil, "second snapshot"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nodeproxy.Config{})
			l := n.acceptSynced()
			l.wantNack(test.request, test.file, test.want)
			n.wantEnd(test.want)
			l.wantClosed()
			n.wantUnready("ending")
		})
	}
}

func TestRequestsThatEndTheConnection(t *testing.T) {
	encoded := func(request *ztunnelproto.WorkloadRequest) []byte {
		b, err := proto.Marshal(request)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, test := range map[string]struct {
		record []byte
		files  int
		want   string
	}{
		"too long":             {make([]byte, 1025), 0, "longer than 1024 bytes"},
		"garbage":              {[]byte("\xff\xff garbage"), 0, "cannot decode WorkloadRequest"},
		"unknown kind":         {[]byte{0x32, 0}, 0, "of a kind that this proxy does not know"},
		"Add without fd":       {encoded(add("uid0")), 0, `no file descriptor came with the Add of workload "uid0"`},
		"Add with two fds":     {encoded(add("uid0")), 2, "2 file descriptors"},
		"Add with a lot":       {encoded(add("uid0")), 20, "file descriptors were lost"},
		"Keep with an fd":      {encoded(keep("uid0")), 1, "a file descriptor came with a request that has none"},
		"Del with an fd":       {encoded(del("uid0")), 1, "a file descriptor came with a request that has none"},
		"snapshot with an fd":  {encoded(snapshot()), 1, "a file descriptor came with a request that has none"},
		"too long, with an fd": {make([]byte, 1025), 1, "longer than 1024 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nodeproxy.Config{})
			_ = n.agent.Close()
			raw, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: n.path + "-raw", Net: "unixpacket"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = raw.Close() })
			if err := os.Rename(n.path+"-raw", n.path); err != nil {
				t.Fatal(err)
			}
			raw.SetUnlinkOnClose(false)
			conn := acceptRaw(t, raw)
			var rights []byte
			if test.files > 0 {
				file, fds := noNamespace(t), []int(nil)
				for range test.files {
					fds = append(fds, int(file.Fd()))
				}
				rights = unix.UnixRights(fds...)
			}
			if _, _, err := conn.WriteMsgUnix(test.record, rights, nil); err != nil {
				t.Fatal(err)
			}
			l := &link{t: t, conn: ztunnelproto.NewConn(conn)}
			if text := l.answer(); !strings.Contains(text, test.want) {
				t.Errorf("the answer is %q, want %q", text, test.want)
			}
			l.wantClosed()
			acceptRaw(t, raw) // at once
		})
	}
}

// acceptRaw returns a new connection on which the proxy has said hello.
func acceptRaw(t *testing.T, l *net.UnixListener) *net.UnixConn {
	t.Helper()
	if err := l.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	hello := make([]byte, 10)
	if n, err := conn.Read(hello); err != nil || string(hello[:n]) != "\x08\x01" {
		t.Fatalf("instead of a hello the proxy sent %x, %v", hello[:n], err)
	}
	return conn
}

func TestWhatCannotBeServedStaysPending(t *testing.T) {
	n := newNode(t, nodeproxy.Config{Retry: time.Millisecond})
	l := n.accept()
	l.wantNack(add("uid0"), noNamespace(t), "not a namespace")
	l.wantAck(snapshot())
	n.wantUnready("workload uid0 is pending: not a namespace")
	got := n.workload("uid0")
	if got.State != "Pending" || !strings.Contains(got.Error, "not a namespace") || got.Info.Name != "name-uid0" {
		t.Errorf("the workload is %+v", got)
	}
	// The connection has not suffered; a second attempt is no other.
	l.wantNack(add("uid0"), noNamespace(t), "not a namespace")
	l.wantAck(del("uid0"))
	n.wantReady()
}

func TestPendingWorkloadsAreForgottenOnANewConnection(t *testing.T) {
	n := newNode(t, nodeproxy.Config{})
	l := n.acceptSynced()
	l.wantNack(add("uid0"), noNamespace(t), "not a namespace")
	_ = l.conn.Close()
	l = n.accept()
	l.wantAck(keep("uid0"))
	l.wantAck(snapshot())
	n.wantReady()
}

// An agent that is killed resets the connection, which is no request.
func TestWhatIsLoggedWhenTheAgentIsKilled(t *testing.T) {
	var log netlab.Log
	n := newNode(t, nodeproxy.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	l := n.accept()
	l.send(add("uid0"), noNamespace(t))
	l.send(snapshot(), nil)
	n.wantUnready("workload uid0 is pending: not a namespace")
	_ = l.conn.Close() // with an answer that nobody has read
	n.acceptSynced()
	n.wantReady()
	text := log.String()
	for _, want := range []string{`msg="refused the agent's request" uid=uid0`, `msg="disconnected from the agent, connecting again"`, `msg="workload will not be tried again" uid=uid0`} {
		if strings.Count(text, want) != 1 {
			t.Errorf("not logged once: %s", want)
		}
	}
	for _, wrong := range []string{`uid=""`, "workload has ended"} {
		if strings.Contains(text, wrong) {
			t.Errorf("logged: %s", wrong)
		}
	}
	if t.Failed() {
		t.Logf("the log:\n%s", text)
	}
}

func TestTheProxyFindsAnAgentThatComesLate(t *testing.T) {
	n := newNode(t, nodeproxy.Config{})
	l := n.acceptSynced()
	for range 3 {
		_ = n.agent.Close()
		_ = l.conn.Close()
		n.wantUnready("not connected to the agent")
		n.listen()
		l = n.acceptSynced()
	}
}

func TestTheConnectionIsClosedAtOnceWhenTheProxyEnds(t *testing.T) {
	n := newNode(t, nodeproxy.Config{})
	l := n.acceptSynced()
	n.stop()
	l.wantClosed()
	if err := <-n.ended; err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
}

func TestRunEndsWhileTheAgentIsAway(t *testing.T) {
	n := newNode(t, nodeproxy.Config{})
	l := n.acceptSynced()
	_ = n.agent.Close()
	_ = l.conn.Close()
	n.wantUnready("not connected to the agent")
	n.stop()
	if err := <-n.ended; err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
}

func TestFaultNoAck(t *testing.T) {
	n := newNode(t, nodeproxy.Config{Faults: nodeproxy.Faults{NoAck: true, UID: "uid0"}})
	l := n.accept()
	l.send(keep("uid0"), nil)
	// The first answer is the second request's.
	l.wantNack(add("uid1"), noNamespace(t), "not a namespace")
	n.proxy.SetFaults(nodeproxy.Faults{NoAck: true})
	l.send(del("uid1"), nil)
	l.send(snapshot(), nil)
	n.wantReady() // both were carried out
	n.proxy.SetFaults(nodeproxy.Faults{})
	l.wantNack(add("uid1"), noNamespace(t), "not a namespace")
}

func TestFaultSlowAck(t *testing.T) {
	const slow = 30 * time.Millisecond
	n := newNode(t, nodeproxy.Config{Faults: nodeproxy.Faults{SlowAck: slow}})
	l := n.accept()
	begin := time.Now()
	l.wantAck(snapshot())
	if took := time.Since(begin); took < slow {
		t.Errorf("the answer came after %s", took)
	}
	// It does not hold up the end.
	n.proxy.SetFaults(nodeproxy.Faults{SlowAck: time.Hour})
	l.send(del("uid0"), nil)
	n.stop()
	if err := <-n.ended; err != nil {
		t.Errorf("the proxy ended with %v", err)
	}
}

func TestFaultNoHello(t *testing.T) {
	n := newNode(t, nodeproxy.Config{Faults: nodeproxy.Faults{NoHello: true}})
	n.acceptSilent().wantAck(snapshot())
}

func TestFaultDieAfterAcks(t *testing.T) {
	n := newNode(t, nodeproxy.Config{Faults: nodeproxy.Faults{DieAfterAcks: 3}})
	l := n.accept()
	l.wantAck(snapshot())
	l.wantNack(add("uid0"), noNamespace(t), "not a namespace")
	l.wantAck(del("uid0"))
	_ = l.conn.Close() // acks are counted over all connections
	l = n.accept()
	l.wantAck(snapshot())
	n.wantEnd("told to die after 3 acks")
}

func TestConfigIsChecked(t *testing.T) {
	for want, cfg := range map[string]nodeproxy.Config{
		"must not be negative":                         {Drain: -1},
		"retry, drain and DNS timeout must not be":     {Retry: -1},
		"timeout must not be negative":                 {DNSTimeout: -1},
		"127.0.0.53:53 cannot be reached from inside":  {DNS: nameServers(t, "127.0.0.53")},
		"[::]:5353 cannot be reached from inside":      {DNS: nameServers(t, "[::]:5353")},
		"0.0.0.0:53 cannot be reached from inside a p": {DNS: nameServers(t, "10.0.0.10", "0.0.0.0")},
	} {
		if _, err := nodeproxy.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%+v): %v, want %q", cfg, err, want)
		}
	}
}

func TestAnAdminAddressInUseIsAnError(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	proxy, err := nodeproxy.New(nodeproxy.Config{Admin: "127.0.0.1:0", Readiness: l.Addr().String()})
	if err != nil {
		t.Fatal(err)
	}
	if err := proxy.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "choose another address") {
		t.Errorf("Run: %v", err)
	}
}
