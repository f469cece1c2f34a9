package nodeproxy

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// direction is the way that a connection goes.
type direction int

const (
	outbound direction = iota
	inbound
	hbone
	dns
	directions // how many there are
)

func (d direction) String() string {
	return [...]string{"outbound", "inbound", "hbone", "dns"}[d]
}

type counters [directions]atomic.Uint64

func (c *counters) read() Relayed {
	return Relayed{
		Outbound: c[outbound].Load(), Inbound: c[inbound].Load(),
		HBONE: c[hbone].Load(), DNS: c[dns].Load(),
	}
}

// A State is what a proxy is doing, in the form that config_dump shows it.
type State struct {
	Relayed       Relayed                  `json:"relayed"`
	Untagged      uint64                   `json:"untagged"`      // as a workload's, since the beginning
	WorkloadState map[string]WorkloadState `json:"workloadState"` // by uid
}

// Relayed counts the connections whose other end was reached, and the answered DNS
// queries, since the beginning.
type Relayed struct {
	Outbound uint64 `json:"outbound"`
	Inbound  uint64 `json:"inbound"`
	HBONE    uint64 `json:"hbone"`
	DNS      uint64 `json:"dns"`
}

// WorkloadState is one workload.
type WorkloadState struct {
	State       string      `json:"state"`           // Up or Pending
	Error       string      `json:"error,omitempty"` // why it is Pending
	Info        Info        `json:"info"`
	Netns       string      `json:"netns,omitempty"`
	Connections Connections `json:"connections"`
	Relayed     Relayed     `json:"relayed"`
	Untagged    uint64      `json:"untagged"` // connections refused by Config.RefuseUntagged
}

// Info is what the agent says about a workload.
type Info struct {
	Name           string `json:"name"`
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"serviceAccount"`
}

// Connections are those that are open.
type Connections struct {
	Inbound  []Connection `json:"inbound"`
	Outbound []Connection `json:"outbound"`
}

// A Connection is open; OriginalDst is where its client wants to go, once that is known.
type Connection struct {
	Src         netip.AddrPort `json:"src"`
	OriginalDst netip.AddrPort `json:"originalDst"`
	Direction   string         `json:"direction"` // outbound, inbound, hbone or dns
}

// State returns what the proxy is doing now.
func (p *Proxy) State() State {
	ws := p.workloads
	ws.mu.Lock()
	defer ws.mu.Unlock()
	state := State{
		Relayed: ws.env.relayed.read(), Untagged: ws.env.untagged.Load(), WorkloadState: map[string]WorkloadState{},
	}
	for uid, w := range ws.byUID {
		state.WorkloadState[uid] = w.state()
	}
	return state
}

func (w *workload) state() WorkloadState {
	// Empty lists, not none, for those who read the JSON.
	nothing := Connections{Inbound: []Connection{}, Outbound: []Connection{}}
	state := WorkloadState{State: "Pending", Info: w.info, Connections: nothing}
	if w.failure != nil {
		state.Error = w.failure.Error()
	}
	if w.netns != nil {
		state.Netns = w.netns.ID().String()
	}
	if w.server != nil {
		state.State, state.Connections = "Up", w.server.open(nothing)
		state.Relayed, state.Untagged = w.server.relayed.read(), w.server.untagged.Load()
	}
	return state
}

// open adds to a list of connections those that are open.
func (s *server) open(open Connections) Connections {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		list := &open.Outbound
		if c.direction == inbound || c.direction == hbone {
			list = &open.Inbound
		}
		*list = append(*list, Connection{Src: c.client, OriginalDst: c.to, Direction: c.direction.String()})
	}
	for _, list := range [][]Connection{open.Inbound, open.Outbound} {
		slices.SortFunc(list, func(a, b Connection) int {
			return cmp.Or(a.Src.Compare(b.Src), a.OriginalDst.Compare(b.OriginalDst))
		})
	}
	return open
}

// Ready says what is missing until the proxy serves all that the agent wants, or nil.
func (p *Proxy) Ready() error { return p.workloads.ready() }

// Handler serves GET /config_dump, the State as JSON, and GET /healthz/ready.
func (p *Proxy) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz/ready", func(w http.ResponseWriter, _ *http.Request) {
		if err := p.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	})
	mux.HandleFunc("GET /config_dump", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		out := json.NewEncoder(w)
		out.SetIndent("", "  ")
		_ = out.Encode(p.State()) // fails only when the client has gone
	})
	return mux
}

// httpServers serve Handler.
type httpServers []*http.Server

func (p *Proxy) serveAdmin() (httpServers, error) {
	var servers httpServers
	for _, addr := range []string{p.cfg.Admin, p.cfg.Readiness} {
		if addr == "" {
			continue
		}
		l, err := net.Listen("tcp", addr)
		if err != nil {
			servers.close()
			return nil, fmt.Errorf("cannot serve HTTP: %w (choose another address, or none)", err)
		}
		server := &http.Server{Handler: p.Handler(), ReadHeaderTimeout: 5 * time.Second}
		servers = append(servers, server)
		go func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				p.log.Error("cannot serve HTTP any more", "address", addr, "error", err)
			}
		}()
	}
	return servers, nil
}

func (servers httpServers) close() {
	for _, server := range servers {
		_ = server.Close() // nobody waits for what it was sending
	}
}
