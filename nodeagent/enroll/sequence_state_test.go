package enroll_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// state describes all that a node is made of: its pods' namespaces, its own, the
// world outside, and what the test's process, which is the agent's and the proxy's,
// holds. What is not the same each time, such as a number, is left out.
func (w *world) state() string {
	var out strings.Builder
	section := func(title string, describe func() ([]string, error)) {
		lines, err := describe()
		if err != nil {
			lines = append(lines, "cannot be seen: "+err.Error())
		}
		fmt.Fprintf(&out, "%s:\n", title)
		for _, line := range lines {
			fmt.Fprintf(&out, "  %s\n", line)
		}
	}
	for _, s := range w.slots {
		if s.box != nil {
			section(fmt.Sprintf("pod %s, sandbox %s", s.name, s.box.container), func() ([]string, error) {
				return namespaceText(s.box.pod.Handle)
			})
		}
	}
	section("node's namespace", func() ([]string, error) { return namespaceText(w.self) })
	if w.outside != nil {
		section("outside", func() ([]string, error) { return links(w.outside.Handle) })
	}
	section("files of the node", func() ([]string, error) { return filesBelow(string(w.dir)) })
	section("open files", openFiles)
	section("network namespaces", namespaces)
	section("goroutines", goroutines)
	return out.String()
}

// hostLine says what of ours is in the node's own namespace.
func hostLine(h *netns.Handle) (string, error) {
	tables, err := tableNames(h)
	if err != nil {
		return "", err
	}
	found := append([]string{"host:"}, tables...)
	err = rtnl(h, func(nl *netlink.Handle) error {
		return ours(nl,
			func(r *netlink.Rule) error { found = append(found, r.String()); return nil },
			func(r *netlink.Route) error { found = append(found, r.String()); return nil })
	})
	return strings.Join(found, " "), err
}

// namespaceText describes what is in a network namespace.
func namespaceText(h *netns.Handle) ([]string, error) {
	var all []string
	var errs []error
	for _, look := range []func(*netns.Handle) ([]string, error){rules, routing, links, socketsIn} {
		lines, err := look(h)
		all, errs = append(all, lines...), append(errs, err)
	}
	return all, errors.Join(errs...)
}

// rules lists the rules, as many as there are in each chain, of all tables.
func rules(h *netns.Handle) ([]string, error) {
	names, err := tableNames(h)
	if err != nil {
		return nil, err
	}
	err = nfTables(h, func(conn *nftables.Conn) error {
		chains, err := conn.ListChains()
		if err != nil {
			return err
		}
		for _, c := range chains {
			rules, err := conn.GetRules(c.Table, c)
			if err != nil {
				return err
			}
			names = append(names, fmt.Sprintf("chain %s %s: %d rules", c.Table.Name, c.Name, len(rules)))
		}
		return nil
	})
	return names, err
}

func routing(h *netns.Handle) ([]string, error) {
	var all []string
	err := rtnl(h, func(nl *netlink.Handle) error {
		for _, family := range families {
			rules, err := nl.RuleList(family)
			if err != nil {
				return err
			}
			for _, r := range rules {
				text := fmt.Sprintf("%s: priority %d table %d", netlinkFamily(family), r.Priority, r.Table)
				if r.Mask != nil {
					text += fmt.Sprintf(" mark %#x/%#x", r.Mark, *r.Mask)
				}
				all = append(all, text)
			}
		}
		return ours(nl, nil, func(r *netlink.Route) error {
			all = append(all, fmt.Sprintf("table %d: type %d scope %s dst %s link %d", r.Table, r.Type, r.Scope, r.Dst, r.LinkIndex))
			return nil
		})
	})
	return all, err
}

func netlinkFamily(family int) string {
	if family == families[0] {
		return "ip rule"
	}
	return "ip -6 rule"
}

func links(h *netns.Handle) ([]string, error) {
	var all []string
	err := rtnl(h, func(nl *netlink.Handle) error {
		list, err := nl.LinkList()
		for _, link := range list {
			a := link.Attrs()
			all = append(all, fmt.Sprintf("link %s %s %s", a.Name, a.Flags, a.OperState))
		}
		return err
	})
	return all, err
}

var tcpStates = map[string]string{
	"01": "ESTABLISHED", "02": "SYN_SENT", "03": "SYN_RECV", "04": "FIN_WAIT1", "05": "FIN_WAIT2", "06": "TIME_WAIT",
	"07": "CLOSE", "08": "CLOSE_WAIT", "09": "LAST_ACK", "0A": "LISTEN", "0B": "CLOSING",
}

// socketsIn counts a namespace's sockets by local port and state; a port that is not
// one of the proxy's is left out, since the kernel chose most of them.
func socketsIn(h *netns.Handle) ([]string, error) {
	counts := map[string]int{}
	for _, name := range []string{"tcp", "tcp6", "udp", "udp6"} {
		var text []byte
		if err := h.Do(func() (err error) {
			text, err = os.ReadFile("/proc/thread-self/net/" + name)
			return err
		}); err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			fields := strings.Fields(line)
			if len(fields) < 4 || fields[0] == "sl" {
				continue
			}
			var port int
			if _, err := fmt.Sscanf(fields[1][strings.LastIndex(fields[1], ":")+1:], "%X", &port); err != nil {
				return nil, err
			}
			where := "other port"
			if port/100 == 150 {
				where = fmt.Sprint(port)
			}
			counts[fmt.Sprintf("%s %s %s", name, where, tcpStates[fields[3]])]++
		}
	}
	return counted(counts), nil
}

// counted lists what was counted, in order.
func counted(counts map[string]int) []string {
	var all []string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%d × %s", counts[what], what))
	}
	return all
}

var number = regexp.MustCompile(`\d+`)

// openFiles counts the process's open files by kind. It leaves out what Go keeps for
// itself: its poller, and pipes for splicing between connections.
func openFiles() ([]string, error) {
	names, err := filesIn("/proc/self/fd")
	counts := map[string]int{}
	for _, name := range names {
		target, err := os.Readlink(filepath.Join("/proc/self/fd", name))
		if err != nil || strings.HasPrefix(target, "pipe:") || target == "/proc/1/fd" || target == "/proc/self/fd" {
			continue // closed meanwhile, as the directory that was just read
		}
		counts[number.ReplaceAllString(target, "N")]++
	}
	return counted(counts), err
}

// namespaces counts the network namespaces that processes are in, that this one's files
// hold, and that are mounted. One that is held by a socket alone is not seen here, but
// outside: by its end of a cable.
func namespaces() ([]string, error) {
	all := map[string]bool{}
	for _, pattern := range []string{"/proc/self/fd/*", "/proc/[0-9]*/task/*/ns/net"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			if target, err := os.Readlink(path); err == nil && strings.HasPrefix(target, "net:") {
				all[target] = true
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[3], "net:") {
			all[fields[3]] = true
		}
	}
	return []string{fmt.Sprint(len(all))}, err
}

// goroutines counts goroutines by what started them.
func goroutines() ([]string, error) {
	text := make([]byte, 1<<20)
	text = text[:runtime.Stack(text, true)]
	counts := map[string]int{}
	for stack := range bytes.SplitSeq(text, []byte("\n\n")) {
		_, by, found := strings.Cut(string(stack), "created by ")
		if !found {
			continue // the first one
		}
		by, _, _ = strings.Cut(by, " in goroutine")
		by, _, _ = strings.Cut(by, "\n")
		counts[by]++
	}
	return counted(counts), nil
}

// filesBelow lists the files below a directory.
func filesBelow(dir string) ([]string, error) {
	var all []string
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && !entry.IsDir() {
			all = append(all, strings.TrimPrefix(path, dir))
		}
		return err
	})
	return all, err
}

// filesIn lists a directory.
func filesIn(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, err
}
