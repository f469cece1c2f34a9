package sandbox

import "strings"

// A membership is what a cgroup's path says of the processes in it.
type membership struct {
	uid       string // with dashes, as the API writes it
	container string // the name of the container's cgroup: its id, with what the runtime puts around it
	depth     int    // how far below the container's cgroup
}

// paths returns the paths in a process's cgroup file by their hierarchies. A file
// that makes no sense has none.
func paths(file string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(file) {
		// hierarchy-ID:controllers:path. The path may hold a colon.
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) == 3 && strings.HasPrefix(fields[2], "/") {
			all[fields[1]] = strings.TrimSuffix(fields[2], " (deleted)")
		}
	}
	return all
}

// levels returns, for each hierarchy, the part of the path above the kubelet's
// cgroups, if self is the cgroup file of a process in a pod. It is not empty where
// the node is a container that has no cgroup namespace of its own, as one inside of
// another node's pod: that pod's UID stands in the path as well, and is not ours.
func levels(self string) map[string]string {
	all := map[string]string{}
	for hierarchy, path := range paths(self) {
		parts := strings.Split(path, "/")
		for i := range parts {
			if top, _, ok := podAt(parts, i); ok && parts[top] != ".." {
				all[hierarchy] = strings.Join(parts[:top], "/")
			}
		}
	}
	return all
}

// podOf returns whose a process is, going by its cgroup file, below the levels.
// Hierarchies that name no pod, as the unified one beside those of cgroup v1, do not
// count; ones that name different pods make it nobody's.
func podOf(file string, levels map[string]string) (membership, bool) {
	var is membership
	for hierarchy, path := range paths(file) {
		below, ok := strings.CutPrefix(path, levels[hierarchy]+"/")
		if !ok {
			continue
		}
		m, ok := podInPath("/" + below)
		if !ok {
			continue
		}
		if is.uid == "" {
			is = m
		}
		if m.uid != is.uid || m.container != is.container {
			return membership{}, false
		}
		is.depth = min(is.depth, m.depth)
	}
	return is, is.uid != ""
}

// podInPath finds the pod whose cgroup the kubelet has made. What stands below it the
// pod may have made, and is not looked at.
func podInPath(path string) (membership, bool) {
	parts := strings.Split(path, "/")
	for i := range parts {
		if _, m, ok := podAt(parts, i); ok {
			m.depth = len(parts) - 1 - i - 1
			if strings.Contains(parts[i], ":") {
				m.depth++ // pod and container are one part
			}
			// conmon is the runtime's, and has no business in the pod's namespace.
			return m, !strings.HasPrefix(m.container, "crio-conmon-")
		}
	}
	return membership{}, false
}

// podAt reads parts[i] as the name of a pod's cgroup, in one of the forms
//
//	kubepods/[QOS/]podUID/CONTAINER                                    cgroupfs
//	kubepods.slice/[kubepods-QOS.slice/]kubepods[-QOS]-podUID.slice/CONTAINER   systemd
//	…/kubepods[-QOS]-podUID.slice:RUNTIME:CONTAINER                    systemd's names, on cgroupfs
//
// The cgroups above it have to be the kubelet's. A reader in a container with a cgroup
// namespace sees ".." in place of those it shares with the pod: the first is the pod
// that it is itself in, so that there are two at least. top is the index of the
// kubelet's uppermost cgroup, or of the "..".
func podAt(parts []string, i int) (top int, m membership, ok bool) {
	if slice, rest, joined := strings.Cut(parts[i], ":"); joined {
		_, uid, isPod := podSlice(slice)
		_, container, complete := strings.Cut(rest, ":")
		return i, membership{uid: uid, container: container}, isPod && complete && container != ""
	}
	if i+1 >= len(parts) || parts[i+1] == "" {
		return 0, m, false
	}
	m.container = strings.TrimSuffix(parts[i+1], ".scope")
	if uid, plain := strings.CutPrefix(parts[i], "pod"); plain && isUID(uid) {
		m.uid = dashes(uid)
		top, ok = above(parts, i, "kubepods", "besteffort", "burstable")
		return top, m, ok
	}
	root, uid, isPod := podSlice(parts[i])
	if !isPod {
		return 0, m, false
	}
	m.uid = uid
	inside := strings.TrimSuffix(parts[i], ".slice")
	parent := inside[:strings.LastIndex(inside, "-pod")] + ".slice"
	if parent == root+".slice" {
		top, ok = above(parts, i, parent)
	} else {
		top, ok = above(parts, i, root+".slice", parent)
		ok = ok && (parts[i-1] == parent || parts[i-1] == "..") // a QoS class's pod stands in its slice
	}
	return top, m, ok
}

// above checks the cgroups above parts[i]: root, and perhaps one of classes below it.
func above(parts []string, i int, root string, classes ...string) (top int, ok bool) {
	top = i - 1
	for _, class := range classes {
		if top >= 0 && parts[top] == class {
			top--
			break
		}
	}
	switch {
	case top < 0:
		return 0, false
	case parts[top] == "..":
		return top, top >= 2 && parts[top-1] == ".." // parts[0] is before the first slash
	}
	return top, parts[top] == root
}

// podSlice reads the name of a pod's slice. root is the name, without its ending, of
// the kubelet's uppermost slice, which stands in the name as in all of systemd's.
func podSlice(name string) (root, uid string, ok bool) {
	name, ok = strings.CutSuffix(name, ".slice")
	at := strings.LastIndex(name, "-pod")
	if !ok || at < 0 {
		return "", "", false
	}
	root, uid = name[:at], name[at+len("-pod"):]
	for _, class := range []string{"-besteffort", "-burstable"} {
		if cut, is := strings.CutSuffix(root, class); is {
			root = cut
			break
		}
	}
	ok = (root == "kubepods" || strings.HasSuffix(root, "-kubepods")) && isUID(uid)
	return root, dashes(uid), ok
}

// dashes undoes systemd's escape of a UID: in its names a dash means a level.
func dashes(uid string) string { return strings.ReplaceAll(uid, "_", "-") }

// isUID says whether s may be a pod's UID: one of the API's, a static pod's hash, or
// what somebody wrote into a manifest.
func isUID(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '-', c == '_':
		default:
			return false
		}
	}
	return s != ""
}
