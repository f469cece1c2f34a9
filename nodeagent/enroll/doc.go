// Package enroll is the reconciler: it compares, pod by pod, what the labels ask
// for with what the kernel and the proxies say, and closes the difference. There
// is no other way in which a pod is captured or released: a CNI ADD, a label, a
// proxy that comes or goes and the timer all lead to the same [Reconciler.turn].
//
// A turn never waits. It does what can be done now, says in which state that
// leaves the pod, and when to look again; what it waits for (a pod's object, a
// proxy's answer, the end of a drain) wakes it. A CNI ADD is a pod's attachment
// plus somebody who waits for the outcome of its turns.
//
// The orders:
//
//   - at ADD nothing runs yet: rules in form full → announced to the proxies and
//     acknowledged → listeners seen → health probes exempted → success;
//   - capture of a running pod: marks and routes → announced and acknowledged →
//     listeners seen → redirects in form syn, and the conntrack entries that would
//     defeat them deleted → connections that are older reset or kept, by their cause
//     → form full when none is left → health probes exempted;
//   - release: redirects flushed → drained → withdrawn from every proxy → the rest
//     removed, the exemption of health probes too.
//
// A node that is drained ([Reconciler.Drain]) has all its pods released: to them it is as if
// they did not ask for capture. Those that ask and have not started do not start, since they
// would bypass the mesh unseen. It is undone by the same verb; what was decided otherwise is
// not forgotten.
//
// What is to be done in a namespace is on record before it is done, so that the
// next agent takes over from wherever this one ends: it looks at the namespaces on
// record, has their pods announced, and only then are proxies told of the node. It
// looks for those that are not on record, too, and takes over redirects that stand in
// one which it finds.
//
// A turn costs little when nothing has changed: the kernel numbers the changes of a
// ruleset, and tells of most changes as they are made, in namespaces that are watched
// from the first look on. Every pod has a turn at each sweep, pods that are due at about
// the same time together, one after the other, beside the workers. One sweep in sixty
// looks at everything, whatever the kernel has told: rules, routes, who holds the proxy's
// ports, and what else may take a pod's packets before our redirects do.
//
// # Failures it survives
//
//   - An ADD that is repeated, whose plugin dies, that is overtaken by a DEL or by
//     the next sandbox's ADD: an attachment is (UID, container id); the newest ADD
//     has the pod, the others are undone or touch nothing.
//   - A DEL for an old sandbox, whenever it comes: success, and nothing is touched.
//   - No proxy, one that refuses, one that does not answer, one that does not
//     listen: an ADD fails with that reason after its wait; a running pod is tried
//     again for ever, with a growing pause.
//   - A proxy without DNS: the DNS part is left out until somebody listens there, by the next
//     agent, too, and where DNS is switched on later.
//   - The newest of two proxies refuses a pod that the older one serves: it stays captured,
//     and its reason says so.
//   - A process in the pod that holds a port of the proxy's: it is named, the pod is not
//     offered to proxies, or not any more once none has it, and counts as bypassing them.
//   - The kernel refuses: tried again; a release whose first step fails stops there
//     and keeps the namespace, so that the pod is not cut off.
//   - A label that is put back while the pod is being released: the release ends
//     there.
//   - The API goes on showing a pod that is being released as captured, so that others send
//     it what only the proxy understands: the proxy keeps it, up to the drain's timeout.
//   - The pod's object vanishes while its namespace lives: its state stays. The
//     namespace vanishes: whatever anybody says, the pod is over. The process ends by
//     which a pod was found: it is searched for again, and over when nothing more of it
//     is found.
//   - A manifest that cannot be read, an API that cannot be asked: pods that were decided
//     on stay as they are, and proxies keep what they have; those that cannot be wait, and
//     say why. An agent that starts then has proxies told of the pods on record after a
//     while, so that a proxy can start, too; and what was decided of a pod holds for its
//     next sandbox.
//   - A namespace that cannot be opened: a pod that is to be left alone starts even so.
//   - A DEL that is lost, whose pod's namespace lives on: a GC ends the pod, if its object
//     is gone too.
//   - A DEL for a pod that was found, and whose container's id nobody knows: the
//     namespace that it names decides, and otherwise the kernel.
//   - A pod started before the agent did, on a new node or after a boot: if it is known
//     to be younger than the installation, what it opened in the clear is reset.
//   - The node is drained at any moment: during an ADD, which then fails and is undone; with
//     pods that are not on record, which are looked for; with pods whose object is gone, or
//     cannot be asked for.
//   - The agent is killed between any two steps, and whatever happens until the next
//     one runs.
//   - Rules, routes or loopback changed by somebody else: put right, and connections
//     opened meanwhile reset. Somebody who does so again and again is named, and
//     answered at a growing pause.
//   - Rules of somebody else that may take packets before ours do: they are named.
//   - A pod that istio-cni had captured: its rules stand until ours redirect, and then go, or
//     with the release. What cannot be removed of them is named when the pod is released.
//   - No record can be written: the pod starts; the next agent has to look for it. A
//     record that is removed: it is written again at the next turn.
//   - One pod's namespace that is slow: a turn holds one worker of a bounded pool, which
//     another replaces after a second; liveness fails when it holds it for a minute.
//   - A pod that changes its namespace without a pause, and has filled it so that a look
//     takes long: it is looked at less often, and others have their turns meanwhile.
package enroll
