package pluginserver

import (
	"context"
	"net"
	"slices"
	"sync"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
)

// A room bounds how many clients are in it. When it is full, who has said nothing
// yet makes room for who comes, the longest there first. Who has said something,
// read or not, is never sent away.
type room struct {
	places chan struct{}

	mu    sync.Mutex
	quiet []*net.UnixConn // nothing has been read from them
}

func newRoom(places int) *room { return &room{places: make(chan struct{}, places)} }

// enter lets a client in. It waits while everyone there waits for an answer, and
// returns false when ctx ends.
func (r *room) enter(ctx context.Context, conn *net.UnixConn) bool {
	select {
	case r.places <- struct{}{}:
	default:
		r.cutOldest()
		select {
		case r.places <- struct{}{}:
		case <-ctx.Done():
			return false
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.quiet = append(r.quiet, conn)
	return true
}

// cutOldest closes a quiet client's connection; that ends the waiting for it, and
// it leaves.
func (r *room) cutOldest() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if i := slices.IndexFunc(r.quiet, agentapi.Waits); i >= 0 {
		_ = r.quiet[i].Close()
		r.quiet = slices.Delete(r.quiet, i, i+1)
	}
}

// speaks notes that a client has something to say, before it is read; false if the
// client was sent away.
func (r *room) speaks(conn *net.UnixConn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.quiet, conn)
	if i >= 0 {
		r.quiet = slices.Delete(r.quiet, i, i+1)
	}
	return i >= 0
}

// leave makes the client's place free.
func (r *room) leave(conn *net.UnixConn) {
	r.speaks(conn)
	<-r.places
}
