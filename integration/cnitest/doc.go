// Package cnitest has no code but tests: they build the CNI plugin and let the
// runtime's own library, libcni, execute it in a chain, in real network
// namespaces, against an agent on the real socket.
//
// # Failures it survives
//
// The tests provoke:
//   - An agent that is absent, late, killed in the middle of a request, or hanging.
//   - A runtime that kills the plugin; a caller who is not root; many plugins at once.
//   - Namespaces that are none, gone, or the host's.
//   - A DEL that comes again, without a namespace and without an agent.
package cnitest
