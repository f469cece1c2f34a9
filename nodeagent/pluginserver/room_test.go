package pluginserver

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

// pairs returns connections as the server has them, and their clients' ends.
func pairs(t *testing.T, n int) (servers, clients []*net.UnixConn) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "agent.sock")
	l, err := agentapi.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for range n {
		c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = c.Close(), s.Close() }) // some are closed already
		servers, clients = append(servers, s), append(clients, c)
	}
	return servers, clients
}

func TestRoom(t *testing.T) {
	servers, clients := pairs(t, 4)
	r := newRoom(3)
	for i := range 3 {
		if !r.enter(t.Context(), servers[i]) {
			t.Fatalf("no room for client %d", i)
		}
	}
	if _, err := clients[0].Write([]byte("x")); err != nil { // not read yet
		t.Fatal(err)
	}
	if !r.speaks(servers[1]) {
		t.Fatal("client 1 was sent away")
	}
	entered := make(chan bool)
	go func() { entered <- r.enter(t.Context(), servers[3]) }()
	// The only one that has said nothing makes room.
	if err := agentapi.Await(servers[2]); !errors.Is(err, net.ErrClosed) {
		t.Errorf("got %v", err)
	}
	if r.speaks(servers[2]) {
		t.Error("client 2 was not sent away")
	}
	r.leave(servers[2])
	if !<-entered {
		t.Error("no room for client 3")
	}
	for _, i := range []int{0, 3} {
		if !r.speaks(servers[i]) {
			t.Errorf("client %d was sent away", i)
		}
	}
	for _, i := range []int{0, 1, 3} {
		r.leave(servers[i])
	}
}

// Nobody who waits for an answer makes room: who comes waits.
func TestFullRoom(t *testing.T) {
	servers, clients := pairs(t, 3)
	r := newRoom(2)
	for _, s := range servers[:2] {
		if !r.enter(t.Context(), s) {
			t.Fatal("no room")
		}
	}
	if _, err := clients[0].Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	r.speaks(servers[1])
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r.enter(ctx, servers[2]) {
		t.Error("one too many")
	}
	for i, s := range servers {
		if err := s.SetDeadline(time.Time{}); err != nil {
			t.Errorf("client %d was sent away: %v", i, err)
		}
	}
}
