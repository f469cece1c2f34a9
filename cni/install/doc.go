// Package install puts the plugin onto a node and into the runtime's configuration,
// and keeps it there: the plugin's binary in the runtime's directory of plugins, and, in
// one of three ways, what has the runtime execute it for every pod, behind the plugins of
// the primary: the first list that is neither ours nor istio-cni's.
//
//   - [Owned], unless something else is asked for: a list of our own,
//     02-fairlead.conflist, which sorts before the primary. It is the primary's own text
//     with our entry put behind its plugins, so that not a byte of them changes; entries
//     of istio-cni are left out. Whoever owns the primary goes on to own it, and whenever
//     its content changes ours is derived again. No other file is ever written.
//   - [Chained]: our entry stands in the primary's own list, last; of Multus's, in the
//     list to which it delegates. All else of it keeps its bytes.
//   - [DropIn]: our entry is a file in the directory of plugins that belongs to the
//     primary's network. A runtime whose libcni is older than 1.3 passes it over without a
//     word; where its process is seen, that is found out and said.
//
// What has been installed stays when the agent ends, and when the node boots: without
// an agent a pod's ADD fails, and no pod starts uncaptured. Only [Installer.Remove]
// takes it away.
//
// # Failures it survives
//
//   - A primary that is not there yet, half written, replaced, renamed, moved in or
//     removed: ours stays as it is, and what is waited for is said.
//   - Ours or the binary removed, changed or made unreadable by somebody else: put there
//     again. Somebody who undoes it again and again: named, with what ends that, and tried
//     once in ten seconds from then on, never less often.
//   - An owner who writes the primary at the very moment that we do: its text is compared
//     when it has been exchanged for ours, and put back if it is another, or still open for
//     writing.
//   - A full disk, a directory that is read-only or missing, a process killed at any
//     moment: what was there stays there whole, and the next look tries again.
//   - No inotify instances left, notifications lost, a directory exchanged: the look at
//     every poll needs none.
//   - A list that we must not copy, or not extend (Multus's, one without plugins of its
//     own, one of a CNI version that our plugin does not speak, one with ours already,
//     one in which ours would come first): refused by name, since every ADD of the node would
//     fail, or be done twice.
//   - A file that the runtime takes instead of ours, a runtime that reads other
//     directories, more than one list, or a list of another name: named. What it reads is
//     looked up in the configuration that its process was told to read, if it is seen.
//   - A runtime, or a plugin of the primary's, for which the version of our list is not to
//     be raised ([StatusAlways]), since every ADD would fail: they are asked first, it stays
//     as it is, and who stands against it is named. One that does not answer is not waited
//     for; nor is the list, once raised, taken down because of it, as while it is restarted.
//   - ADDs that wait while a list has to change: the change waits for them, for ten
//     seconds at most, lest all others wait for both ([Config.Hold]).
//   - A mode that is exchanged for another one: the new is there before the old goes, and
//     the old stays while the runtime would not see the new.
//   - A removal that fails in part: the plugin's binary stays while it may be named.
package install
