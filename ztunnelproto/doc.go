// Package ztunnelproto is the language a node's agent and its node proxy
// (ztunnel, or anything that stands in for it) speak over a Unix socket of type
// SOCK_SEQPACKET: the messages of zds.proto, and a [Conn] for both ends. One
// record is one message with at most one file descriptor.
//
// The proxy dials and says [ZdsHello]. The agent sends a [WorkloadRequest] for
// each workload and then SnapshotSent; the proxy answers each request, in order,
// with one [WorkloadResponse]. An AddWorkload carries an open network namespace,
// nothing else carries a descriptor: [Conn.Receive] says what came, and the
// caller, who knows the message, judges it.
//
// Fields this package does not know are dropped, so a newer peer can be talked
// to. A request or response of an unknown kind arrives with no payload.
//
// # Failures it survives
//
//   - a peer that attaches descriptors it should not, any number of them, also to
//     an empty record or to garbage: each one received is closed;
//   - more descriptors than this process may have open: an error, not a message
//     whose descriptor is silently missing;
//   - records that are too long or cut short, in either direction;
//   - a descriptor closed by someone else while it is being sent: an error, never
//     another file that got the same number;
//   - a socket file left behind by a process that crashed;
//   - a socket file that is removed or replaced while its listener listens:
//     [Listener.InPlace] notices.
package ztunnelproto

//go:generate go -C ../integration/tools run ./protogen -root ../.. -out ../.. ztunnelproto/zds.proto
