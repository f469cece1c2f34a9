// Package hostnet lets the kubelet's health probes into captured pods.
//
// A probe that a pod's inbound redirect caught would be subject to the mesh's policy,
// and the kubelet has no identity that one could allow. So the probes get a source
// address of their own on their way out of the host's network namespace, which the
// rules in the pod exempt. Our table inet fairlead in the host's namespace does that:
//
//   - The sets probed4 and probed6 hold the captured pods' addresses, each with its
//     pod's UID as the comment.
//   - At output, before any destination NAT, the first packet of the kubelet's TCP
//     connections to them sets one bit of the connection's mark. This is where the
//     kubelet can be told by its cgroup: at postrouting the kernel refuses to look.
//   - At postrouting, with priority -190, the bit becomes a source NAT. Of all NAT
//     chains of a hook the first to decide has the connection, so the MASQUERADE rules
//     of kube-proxy or of a CNI plugin (100) come too late, whatever their order.
//   - What arrives at the host from the probe address is dropped, before anything else: nobody
//     but the host itself may use it. What a bridge without br_netfilter forwards does not
//     come by there; so it is dropped, too, at ingress of each captured pod's interface, on
//     the host's side. On such a bridge a pod that is not captured may still send from that
//     address. It gets no answers, which go to the host.
//
// # Who counts as the kubelet
//
// By preference: a socket made in the kubelet's cgroup of the unified hierarchy; one with
// the kubelet's net_cls class, on cgroup v1 and if it has one; else any process in the
// host's network namespace ([AnyHostProcess]). [Status] says which, and why not better.
//
// Linux counts a cgroup's level from the cgroup namespace of the process that writes the
// rule (6.11, and what it was backported to), and nothing above that can be named. An
// agent in a cgroup namespace of its own, as containers get them, therefore has to be
// lent the kubelet's ([Config.Within]).
//
// # Failures it survives
//
//   - An agent that restarts: what stands in the table stays, with the UIDs that the
//     elements carry, until [Exemption.KeepOnly] says which pods are still there. The
//     table of an older version is replaced in one transaction, its addresses kept.
//   - An address that is reused: the pod that claimed it last has it, and the older one's
//     Delete, whenever it comes, takes away only what is still its own.
//   - The table flushed, deleted or changed by somebody: noticed by the kernel's own
//     word, and put back. Other tables are neither read nor touched.
//   - The kubelet restarts, and is in another cgroup, or in a new one of the same name.
//     While there is none, the rules for its last cgroup stand.
//   - A process in a pod that calls itself kubelet: it is not in the host's network
//     namespace, or, in a host-network pod, it is in a pod's cgroup.
//   - An interface that vanishes before its pod's Delete, or a kernel without inet ingress
//     (before 5.10): the exemption does without the guard; of the kernel [Status] says so.
//   - The kernel refuses a change: the caller is told, and it is tried again.
package hostnet
