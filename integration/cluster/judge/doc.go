// Package judge tells whether the TCP of captured pods went past the proxy, from what
// left the pods, not from what anybody says about them.
//
// The reference proxy tags all that it sends (DSCP 0x2e). A [Capture] listens in a
// node's network namespace to what pods send, and [Judge] finds the segments of captured
// pods that have no tag:
//
//	capture, err := judge.Start("n1", handle, prefixes)
//	…traffic, and a bypass on purpose…
//	recording, err := capture.Stop()
//	verdict := judge.Judge([]judge.Recording{recording}, pods)
//	…verdict.Err(), verdict.String()
//
// A segment is looked at where it comes out of its pod, before the node has translated
// an address: so a pod is known by its own address, also where it talks to another one
// on the same node, and the node of the peer does not matter.
//
// # What is a bypass
//
// A segment without the tag, of a captured pod, that begins a connection (SYN, also of
// an answer) or carries something. What only confirms or ends (ACK, RST, FIN) is none:
// the kernel sends it for sockets that are gone. None of these is one, either:
//
//   - Answers to the kubelet's probes: they go to the address that the agent gives
//     these, 169.254.7.127 or its like of IPv6.
//   - What a peer outside of the mesh sends to the pod: it is not the pod's. What the pod
//     answers is judged.
//   - An [Exemption]: a connection that was older than the capture and kept; a port or a
//     network that is not to be captured; in ingress mode, the ports that the pod listens on.
//
// # Failures it survives
//
//   - It sees nothing, or not one version of IP, or not one node: each run has a pod on
//     each node that bypasses on purpose (see [Send]), from each of its addresses. Where
//     that is not found the verdict is an error.
//   - Packets come faster than they are read: the kernel counts what it had to drop, and
//     the verdict is an error.
//   - A sender that no pod is known for: the verdict is an error.
//   - An address that one pod had after another: pods are told apart by time.
//   - Fragments and headers it cannot read to the end: they count as carrying something.
package judge
