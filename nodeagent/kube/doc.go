// Package kube is the agent's Kubernetes side: what the API says of this node's pods
// comes in (Source).
//
// Of each pod of this node the little is kept that a decision needs, of namespaces
// their labels and our annotations; other nodes' pods are never asked for.
//
// # What it needs of the API
//
// All of it for the agent's service account, cluster-wide:
//
//	pods          get, list, watch
//	namespaces    get, list, watch (as metadata only)
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
//     itself. If it was deleted before the answer came, it does not come back.
//   - Thousands of pods in the cluster, objects full of what is not ours: neither is kept.
package kube
