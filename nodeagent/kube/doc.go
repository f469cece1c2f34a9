// Package kube is the agent's Kubernetes side: what the API says of this node's pods
// comes in (Source), and what has become of them goes out (Writer).
//
// Of each pod of this node the little is kept that a decision needs, of namespaces their
// labels and our annotations, of runtime classes their handlers; other nodes' pods are never
// asked for. When the agent was installed is asked once, of its own DaemonSet.
//
// What goes out is the annotation ambient.istio.io/redirection and the condition
// fairlead.io/Captured, in one patch, when what the API shows is different:
//
//   - A captured pod is enabled, and True.
//   - One that is released, or not to be captured, has no annotation at once: before its
//     connections are drained. The condition is False where it stands, or where the pod
//     has it as a readiness gate; otherwise nothing is written of such a pod.
//   - One that should be captured and is not keeps what stands for 30 s, but for the
//     condition of one that bypasses. Then the condition is False, and, if no proxy has
//     listened in it all the time, enabled becomes pending, or goes, without redirects.
//
// Neither is ever read as proof of anything.
//
// Of the node itself, where the configuration asks for it (NodeWriter): the startup taint
// goes when the agent is ready, and, if that is asked for, is put there when it starts
// without the plugin in place (PutBack), or has not been ready for 30 s (Guard); the
// condition fairlead.io/Ready is True at once, and False after as long.
//
// People are told by events on the pod when it bypasses, is blocked, unsupported or long
// on its way, when its start failed, when older connections go past the proxy, and when
// its rules had to be repaired though it does not end; the event's reason is the one in
// status.
//
// # What it needs of the API
//
// All of it for the agent's service account, cluster-wide but for the last:
//
//	pods             get, list, watch
//	pods/status      patch
//	namespaces       get, list, watch (as metadata only)
//	runtimeclasses   list, watch (of the group node.k8s.io)
//	events           create, patch (of the group events.k8s.io)
//	daemonsets       get, of its own (of the group apps)
//	nodes            get, if either is asked for; patch, if the startup taint is
//	nodes/status     patch, if the node's condition is asked for
//
// # Failures it survives
//
//   - The API is away, slow, or refuses us: what was known stays in force, nothing is
//     released by it, and it is asked again with a growing pause, for ever. It is logged
//     once with its cause and remedy, and shown in status until it is over.
//   - A watch that is closed, or has expired: begun anew, and what changed meanwhile is
//     seen.
//   - An API server that lags behind the others: it is not believed at the start, and
//     what is older than what is known is passed over later.
//   - A pod with the name of one before it: it is told from that by its UID, whichever of
//     them the API speaks of last.
//   - A pod that an ADD asks about before the watch has told of it: it is asked for by
//     itself. If it was deleted before the answer came, it does not come back. If there is
//     no answer, the ADD's error has the API's own words, and what helps.
//   - Runtime classes, or the agent's own DaemonSet, may not be read, as with the role of an
//     older chart: classes go by their names; older connections are kept. Either is said.
//   - A runtime class that is deleted: its pods run on, and are what they were.
//   - A write that is refused, or not answered: tried again with a growing pause, and
//     logged once for each cause. A pod that is gone, or replaced by one of its name, is
//     not tried again, and the other not touched: the UID stands in the patch.
//   - A pod that ends, whose network goes piece by piece: no repair of it is told of.
//   - Somebody else's hand on the annotation or the condition: corrected.
//   - A proxy that is replaced, a state that changes back and forth, a message that
//     changes all the time: hardly seen by the API, and by the mesh not at all.
//   - Others who write the node's taints, which are one list, at the same moment: by its
//     version the API server refuses a list that was made of an older one, and ours is made
//     again. A cache of the API's that lags decides nothing.
//   - A node that is deleted and made again: it is looked at every 30 s, and another UID is
//     another node. A taint that is taken away by hand while the agent is not ready is not put
//     back until it has been ready again.
//   - An agent that ends, or hangs, beside its successor: at its end it changes nothing, and
//     what is still on its way is corrected by the one that runs.
//   - A flood of events: of one pod's and of the node's so many are sent; what is the same
//     is counted; the rest is dropped, and nobody waits for it.
//   - Thousands of pods in the cluster, objects full of what is not ours: neither is kept.
package kube
