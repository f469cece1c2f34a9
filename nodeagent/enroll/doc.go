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
//     acknowledged → listeners seen → success;
//   - capture of a running pod: marks and routes → announced and acknowledged →
//     listeners seen → redirects in form syn, and the conntrack entries that would
//     defeat them deleted. Older connections live on, and are shown as unknown;
//   - release: redirects flushed → drained → withdrawn from every proxy → the rest
//     removed.
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
//   - A proxy without DNS: the DNS part is left out until somebody listens there.
//   - The kernel refuses: tried again; a release whose first step fails stops there
//     and keeps the namespace, so that the pod is not cut off.
//   - A label that is put back while the pod is being released: the release ends
//     there.
//   - The pod's object vanishes while its namespace lives: its state stays.
//   - One pod's namespace that is slow: a turn holds one worker of a bounded pool,
//     and liveness fails when it holds it for a minute.
package enroll
