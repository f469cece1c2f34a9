// Package install puts the plugin onto a node and into the runtime's configuration,
// and keeps it there: the plugin's binary in the runtime's directory of plugins, and a
// list of our own, 02-fairlead.conflist, in its directory of network configurations.
//
// The list is derived from the primary: the first list that is neither ours nor
// istio-cni's. It is the primary's own text with our entry put behind its plugins, so
// that not a byte of them changes; entries of istio-cni are left out. It sorts before
// the primary, and the runtime uses the first. No other file is ever written: whoever
// owns the primary goes on to own it, and whenever its content changes ours is derived
// again.
//
// What has been installed stays when the agent ends, and when the node boots: without
// an agent a pod's ADD fails, and no pod starts uncaptured. Only [Installer.Remove]
// takes the list away.
//
// # Failures it survives
//
//   - A primary that is not there yet, half written, replaced, renamed or removed: our
//     list stays as it is, and what is waited for is said.
//   - Our list or the binary removed, changed or made unreadable by somebody else: put
//     there again.
//   - A full disk, a directory that is read-only or missing, a process killed at any
//     moment: what was there stays there whole, and the next look tries again.
//   - No inotify instances left, notifications lost, a directory exchanged: the look at
//     every poll needs none.
//   - A list that we must not copy (Multus, one without plugins of its own, one of a CNI
//     version that our plugin does not speak): refused by name, since every ADD of the
//     node would fail.
//   - A file that sorts before ours: named, since the runtime uses that one.
package install
