// Package nodeproxy is a node proxy: the process, one on each node, that the agent
// hands captured pods to, and that carries their traffic. It stands in for ztunnel
// in demonstrations and tests, and it is for those who write such a proxy to read. It
// relays bytes; it knows neither identities nor encryption, and one policy only.
//
// # What a node proxy does
//
// It dials the agent's socket, which is of type SOCK_SEQPACKET, and says ZdsHello.
// From then on the agent asks and the proxy answers: each request with one Ack, in
// order, whose error is empty if all went well. This package's session does it in one
// loop.
//
//   - Add names a pod and carries its network namespace. The proxy opens its
//     listeners inside, and acks when all of them are there. If one of them cannot be
//     had it says why (a nack), keeps the namespace, and tries again every 5 seconds
//     for ever. An Add of a pod that is served changes nothing, one with another
//     namespace replaces it.
//   - Keep says that a pod that the proxy may have is to stay, since the agent lost
//     its namespace. It is acked whatever the proxy has.
//   - Del ends a pod: when it is acked, nothing is open there any more.
//   - SnapshotSent says that all pods have been named. Others, from an earlier
//     connection, are ended. Only now, and while no pod waits to be tried again, is
//     the proxy ready.
//
// When the connection ends, pods are served on and the proxy dials again, at once;
// if that fails, with a pause that grows to 15 seconds. When the proxy is told
// to end it leaves the agent first, so that no pod is handed to it any more, makes way
// for another proxy, and lets connections run out. A request that cannot be read ends the connection, after a
// nack; one that makes no sense (an Add without workload_info, a Keep or a snapshot
// after the snapshot) ends the proxy, as it ends ztunnel.
//
// # In the pod
//
//	15001  outbound: redirected here; relayed to where it was going
//	15006  inbound: redirected here; relayed to the app, from the client's address
//	15008  inbound from other proxies, not redirected: CONNECT ip:port says where to
//	15053  DNS, on loopback, UDP and TCP: forwarded to name servers
//
// Every socket carries the mark 0x539, which exempts it from redirection, and is
// opened inside the pod's namespace: that is what makes a socket belong there, it may
// be used anywhere. The app's answers to a client's address come back to the
// proxy by the marks and routes that the agent has set up. Packets are tagged with
// DSCP 0x2e. Two proxies can share a pod while one replaces the other (SO_REUSEPORT).
//
// # Refusing untagged peers
//
// With Config.RefuseUntagged, what was redirected to 15006 is reset unless the peer is
// another proxy: unless its first packet carries the tag. This stands in for the
// policy of a mesh that lets nobody in without an identity, so that one can see what
// becomes of those who have none, as the kubelet. It is no protection: anybody can tag
// what he sends. The peer is connected before it is reset: whoever does no
// more than connect, as a TCP probe does, may not notice.
//
// # Making way for another proxy
//
// While two proxies share a pod the kernel deals new connections out to both. One that
// just closed its listeners would reset those that it had been dealt and not accepted,
// and those whose handshake was under way. So when a proxy is told to end, it does this
// on each port of each pod, TCP and UDP, if somebody else listens there too (drain):
//
//  1. It attaches a program to the sockets that share the port, which sends all that
//     is new to another one's (SO_ATTACH_REUSEPORT_CBPF). The kernel knows them by
//     their places in a row, whose order changes when one leaves, and says of no place
//     whose it is; so the proxy connects to the port itself, and takes the next place
//     if that comes back to it.
//  2. It goes on accepting for 200 ms: handshakes that were under way end meanwhile.
//  3. It looks whether a proxy has come or gone meanwhile, and if so begins again. (Two
//     of three that close in the same moment can still cost a connection.)
//  4. It closes; its queue is empty. DNS queries that it has read are answered first.
//
// It is the one that leaves which does this, when it is told to, since until then it does
// not know whether the other is fit to take all. The program stays when it has gone,
// and does no harm: a place that does not exist any more means that the kernel deals
// out as before. The kernel refuses the program on sockets of MPTCP, which is what Go's
// package net opens unless it is told otherwise.
//
// With nobody else on the port it takes what is in its queue, and closes: connections
// are refused until another proxy comes.
//
// # Goroutines
//
// Run has two, one for the link to the agent and one that tries again what failed.
// Each listener has one that accepts, each connection one that relays, and one more for
// the way back. Those of a pod belong to its server, and have ended when its close
// returns. Run returns when all have ended.
//
// # Failures it survives
//
//   - An agent that is not there yet, goes away, comes back, sends garbage, or
//     attaches files it should not: no connection of a pod's is harmed.
//   - A pod that cannot be served: a port is taken, lo is down, ::1 is missing, what
//     came is no network namespace. Nothing stays half open, the others are served, and
//     the readiness answer names the pod and the cause.
//   - A kernel or a pod without IPv6.
//   - A pod that cannot be served while another proxy serves it: no connection is taken
//     before all ports are there.
//   - Other proxies that come, end or die while this one hands over to them.
//   - A peer that breaks a connection, or ends one direction only: the other side sees
//     the same, a reset as a reset and an end as an end.
//   - A pod deleted under traffic, while connecting, in the middle of a request: both
//     sides see a reset, and nothing is left that could keep the namespace alive.
//   - Somebody who dials the proxy's own ports, or asks by CONNECT for what is not the
//     pod's own, or never finishes asking.
//   - A port, on the way to the app, that the client uses too: conntrack would take the
//     two flows for one. The reverse, a client that later picks such a port, cannot be
//     helped: it is rare, and that attempt to connect times out.
//   - Name servers that do not answer: the next one is asked, and in the end the app told.
//   - A first packet that the kernel has not kept, as when it fell back to SYN cookies,
//     where untagged peers are refused: this one is, too.
//   - File descriptors that run out: accepting goes on when there are some again.
package nodeproxy
