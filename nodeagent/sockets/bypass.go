package sockets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// errTooMany says that a namespace has more sockets, or local routes, than are looked
// at.
var errTooMany = errors.New("too many to look at")

// maxSockets is how many sockets of a pod are looked at. Each costs some microseconds
// and some hundred bytes, for as long as the look takes.
const maxSockets = 1 << 15

// A Connection is an open TCP connection of a pod's, seen from the app's end.
type Connection struct {
	Local, Remote netip.AddrPort // IPv4 over a socket of IPv6 is IPv4
	// Listened says that the app listens on the local port: it did most probably not
	// dial but was dialled, which is no bypass where inbound traffic is not captured.
	Listened bool

	socket socket
}

// ID is the kernel's number for the socket, which it gives to no other until the
// machine is booted again.
func (c Connection) ID() uint64 { return c.socket.cookie }

func (c Connection) String() string { return fmt.Sprintf("%s with %s", c.Local, c.Remote) }

// Bypassing returns the open TCP connections of the pod that bypass the proxy: no
// socket of the proxy's mirrors them. Exempt are the proxy's own, those with
// loopback or within the pod, and those that exempt, which may be nil, says are.
//
// A list of sockets is not of one moment. So one that seems to bypass is believed
// only if it does in a second list, too: by then the proxy's end of a connection
// that was just being made is there, and one that was just ending has ended.
func (c *Conn) Bypassing(ctx context.Context, exempt func(Connection) bool) ([]Connection, error) {
	first, err := c.look(ctx, exempt)
	if err == nil && len(first) > 0 {
		seen := make(map[uint64]bool, len(first))
		for _, f := range first {
			seen[f.socket.cookie] = true
		}
		first, err = c.look(ctx, exempt)
		first = slices.DeleteFunc(first, func(s Connection) bool {
			known := seen[s.socket.cookie]
			delete(seen, s.socket.cookie) // a list that changes may have it twice
			return !known
		})
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find the connections that bypass the proxy: %w", err)
	}
	return first, nil
}

// look looks once.
func (c *Conn) look(ctx context.Context, exempt func(Connection) bool) (_ []Connection, err error) {
	all, err := c.list(ctx)
	if err != nil {
		return nil, err
	}
	census := newCensus(all)
	if len(census.apps) == 0 {
		return nil, nil
	}
	redirects := redirects{namespace: c.namespace}
	defer func() { err = errors.Join(err, redirects.close()) }()
	bypassing, err := census.bypassing(func(s socket) (netip.AddrPort, bool, error) { return redirects.source(ctx, s) })
	if err != nil || len(bypassing) == 0 {
		return nil, err
	}
	own, err := ownAddresses(ctx, c.namespace)
	if err != nil {
		return nil, err
	}
	var found []Connection
	for _, s := range bypassing {
		one := Connection{Local: s.local, Remote: s.remote, Listened: census.listened[s.local.Port()], socket: s}
		if !own.contain(s.remote.Addr()) && (exempt == nil || !exempt(one)) {
			found = append(found, one)
		}
	}
	return found, nil
}

// list lists the TCP sockets of the namespace that pairing needs. Those of the app on
// loopback, of which there may be many, are left out.
func (c *Conn) list(ctx context.Context) ([]socket, error) {
	if err := c.probe(ctx, unix.IPPROTO_TCP); err != nil {
		return nil, err
	}
	var all []socket
	seen := 0
	err := c.conn.Request(ctx, tcpSockets, unix.NLM_F_DUMP, listTCP(pairedStates), func(reply []byte) error {
		if seen++; seen > c.max {
			return fmt.Errorf("%w: more than %d in the pod", errTooMany, c.max)
		}
		s, err := parseMarked(reply)
		if err != nil {
			return err
		}
		if !s.hasMark && s.state == stateEstablished {
			return errors.New("the kernel does not tell the sockets' marks (CAP_NET_ADMIN is missing)")
		}
		if s.isProxy() || s.state == stateListen || !s.isLoopback() {
			all = append(all, s)
		}
		return nil
	})
	return all, err
}
