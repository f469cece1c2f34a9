// Package manifests is a source of pods for a node without Kubernetes: a watched
// directory of Pod and Namespace manifests, all of which are this node's.
//
// Files end in .yaml, .yml or .json, do not begin with a dot, and hold one or more
// documents, at most 1 MiB; they are read strictly, since a label that is spelt
// wrong would silently leave a pod in the clear. A file says what its last good
// version says. Notifications only wake the reader: the directory is listed again
// at each, and every [Config.Poll] without one, and a file is read again if it was
// notified, if its size, inode or times are different, or if it was last read so
// soon after a change that another one might not show in them.
//
// # What the absence of a manifest proves
//
// A pod in a namespace without a manifest is in a namespace without labels, which
// usually means that it is left alone. A manifest can be absent for other reasons
// than that nobody wrote one, so:
//
//   - A namespace that once had a manifest keeps the labels of the last one for as
//     long as the agent runs. To release its pods, write one without the label.
//   - While any file has no good version, nobody knows what it holds, and no absence
//     proves anything: pods of namespaces that never had a manifest are not known to
//     [Dir.Lookup], like pods that have none themselves. An ADD of such a pod waits
//     and fails; a pod that runs stays as it is.
//
// Both are shown among the problems. A new agent knows only what the directory says
// when it starts.
//
// # Failures it survives
//
//   - A file that does not parse, or that is empty because it is just being written:
//     its last good version stays in force, and the problem is shown until it is
//     mended. (A file cut off between two labels cannot be told from a whole one:
//     replace files by a rename.)
//   - A file that cannot be read, a link that leads nowhere, a directory, pipe or
//     device with a manifest's name, a file without an end: likewise, without waiting
//     for it and without reading more than the limit.
//   - A Namespace manifest that is removed or that was broken when the agent started:
//     as above, no pod is released and none starts in the clear.
//   - A directory that is missing or cannot be read: what was known stays known. It is
//     watched again when it is back, or when another takes its place.
//   - No inotify instance left, a broken watcher, lost notifications: the directory is
//     polled, and at each poll the watch is tried again.
//   - Thousands of files at once: notifications are collected for a moment, then what
//     they name is read once.
//   - One pod in two files: the file that sorts first has it, the other is refused
//     and named.
package manifests
