package sockets

import (
	"net/netip"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// openStates are the states, as bits, of a connection that the app can use both ways
// now, or is about to.
const openStates uint32 = 1<<stateEstablished | 1<<stateSynSent | 1<<stateSynRecv

// pairedStates are those of the sockets that pairing needs to know. The counterpart of
// an open socket is open, or has ended its side and cannot get the end across; in any
// other state it would know that its peer is not open any more.
const pairedStates = openStates | 1<<stateFinWait1 | 1<<stateListen

// A tuple is a connection as one of its ends sees it.
type tuple struct{ local, remote netip.AddrPort }

// A census is what the kernel has told about the TCP sockets of a pod, sorted for
// pairing.
type census struct {
	apps     []socket               // the app's, open, and not mirrored
	claims   map[netip.AddrPort]int // how many of them have a local address
	carried  map[netip.AddrPort]int // the proxy's ends of redirected connections, by peer
	listened map[uint16]bool        // ports that the app listens on
}

// newCensus sorts all, in which it keeps what is left to be paired.
func newCensus(all []socket) census {
	c := census{apps: all[:0], claims: map[netip.AddrPort]int{}, carried: map[netip.AddrPort]int{}, listened: map[uint16]bool{}}
	mirrored := map[tuple]bool{} // by the proxy's sockets, as the app's end sees it
	for _, s := range all {
		switch {
		case !s.isProxy() || s.state == stateListen:
		case s.carries():
			c.carried[s.remote]++
		default:
			mirrored[tuple{s.remote, s.local}] = true
		}
	}
	for _, s := range all {
		switch {
		case s.isProxy():
		case s.state == stateListen:
			c.listened[s.local.Port()] = true
		case openStates&(1<<s.state) != 0 && !s.isLoopback() && !mirrored[tuple{s.local, s.remote}]:
			c.apps = append(c.apps, s)
			c.claims[s.local]++
		}
	}
	return c
}

func (s socket) isProxy() bool { return s.hasMark && s.mark&ruleset.MarkMask == ruleset.ProxyMark }

func (s socket) isLoopback() bool {
	return s.local.Addr().IsLoopback() || s.remote.Addr().IsLoopback()
}

// carries says whether a socket of the proxy's is one that an outgoing connection is
// redirected to.
func (s socket) carries() bool {
	return s.local.Port() == ruleset.OutboundPort || s.local.Port() == ruleset.DNSPort
}

// A sourceFunc tells whether conntrack redirects what a socket sends to the proxy, and
// with which address it arrives there.
type sourceFunc func(socket) (as netip.AddrPort, redirected bool, err error)

// bypassing returns the open connections that no socket of the proxy's mirrors.
//
// A redirected connection reaches the proxy with the app's address and port, as a
// rule. Not if the app has several from one port, to different destinations, which is
// usual once it has some hundred of them: all are redirected to the same address, so
// that the kernel has to give all but one another port. So whenever more sockets claim
// a counterpart than there are, source decides.
func (c census) bypassing(source sourceFunc) ([]socket, error) {
	asked := make([]bool, len(c.apps))
	var bypassing []socket
	for again := true; again; { // one that is found at another address may be one too many there
		again = false
		for i, s := range c.apps {
			if asked[i] || c.claims[s.local] <= c.carried[s.local] {
				continue
			}
			asked[i] = true
			to, redirected := netip.AddrPort{}, false
			// Without any counterpart there is nothing to share. But a SYN that the proxy
			// has not taken up yet is on its way to it all the same.
			if len(c.carried) > 0 || s.state == stateSynSent {
				var err error
				if to, redirected, err = source(s); err != nil {
					return nil, err
				}
			}
			c.claims[s.local]--
			if redirected {
				c.claims[to]++
				again = true
			} else {
				bypassing = append(bypassing, s)
			}
		}
	}
	return bypassing, nil
}
