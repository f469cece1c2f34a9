//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/cluster"
)

// A kernelView is what is found on a node without asking the agent, its run directory
// apart.
type kernelView struct {
	byAddress map[string]string // what stands in a pod's namespace, by each of its addresses
	probed    []string          // whose probes are exempt
	records   []string          // of which pods there are records
	held      []string          // what the agent holds of namespaces that are no pod's any more
}

// nodeScript prints, a line each and marked by their first word, what stands in the
// namespaces of the runtime's pods, and what is left on the node.
const nodeScript = `
for ns in /run/netns/*; do
	[ -e "$ns" ] || continue
	echo "netns $(stat -Lc %i "$ns")"
	nsenter --net="$ns" sh -c '
		ip -o addr show scope global | sed "s/^/address /"
		nft list table inet fairlead 2>/dev/null | grep -o "redirect to :[0-9]*" | sort -u
		ip -4 rule | sed "s/^/rule v4 /"
		ip -6 rule | sed "s/^/rule v6 /"
		ss -Hltn | sed "s/^/listen /"' 2>/dev/null
done
echo "netns $(stat -Lc %i /proc/1/ns/net)"
nft list table inet fairlead 2>/dev/null | tr ',{}' '\n\n\n' | sed -n 's/^ *\([0-9a-f.:]*\) comment .*/probed \1/p'
ls /run/fairlead/pods 2>/dev/null | sed 's/^/record /'
`

func askKernel(t *testing.T, n *cluster.Node) (kernelView, error) {
	t.Helper()
	view := kernelView{byAddress: map[string]string{}}
	out, err := n.Run(t.Context(), "sh", "-c", nodeScript)
	if err != nil {
		return view, err
	}
	alive := map[uint64]bool{}
	var host uint64 // the node's own, which comes last
	var now namespace
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			return view, fmt.Errorf("cannot make sense of %q", line)
		}
		switch fields[0] {
		case "netns":
			now.note(view.byAddress)
			now = newNamespace()
			if host, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
				return view, err
			}
			alive[host] = true
		case "probed":
			view.probed = append(view.probed, fields[1])
		case "record":
			view.records = append(view.records, strings.TrimSuffix(fields[1], ".json"))
		default:
			now.read(fields)
		}
	}
	view.held, err = heldBy("fairlead", host, alive)
	return view, err
}

// A namespace is what is found of ours in one, as sets.
type namespace struct{ addresses, redirects, rules, listeners map[string]bool }

func newNamespace() namespace {
	return namespace{map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
}

// read takes in a line of the script.
func (n namespace) read(fields []string) {
	switch fields[0] {
	case "address":
		address, _, _ := strings.Cut(fields[4], "/")
		n.addresses[address] = true
	case "redirect":
		n.redirects[strings.TrimPrefix(fields[2], ":")] = true
	case "rule":
		if slices.Equal(fields[2:], []string{"32764:", "from", "all", "fwmark", "0x111/0xfff", "lookup", "100"}) {
			n.rules[fields[1]] = true
		}
	case "listen":
		port := fields[4][strings.LastIndex(fields[4], ":")+1:]
		if slices.Contains([]string{"15001", "15006", "15008", "15053"}, port) {
			n.listeners[port] = true
		}
	}
}

// note writes down what was found, by address.
func (n namespace) note(byAddress map[string]string) {
	found := fmt.Sprintf("redirects to %s, marked packets routed for %s, listeners on %s", sorted(n.redirects), sorted(n.rules), sorted(n.listeners))
	if len(n.redirects)+len(n.rules)+len(n.listeners) == 0 {
		found = absent
	}
	for address := range n.addresses {
		byAddress[address] = found
	}
}

// heldBy tells which open files of a program that runs on a node's network are a network
// namespace, or a socket in one, that is not among those that are alive.
func heldBy(program string, host uint64, alive map[uint64]bool) ([]string, error) {
	var held []string
	commands, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	for _, file := range commands {
		name, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(name)) != program {
			continue // it has ended, or is another one
		}
		var network unix.Stat_t
		if err := unix.Stat(filepath.Join(filepath.Dir(file), "ns/net"), &network); err != nil || network.Ino != host {
			continue // it has ended, or is another node's
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		of, err := namespacesOf(pid)
		if err != nil {
			return nil, err
		}
		for fd, inode := range of {
			if !alive[inode] {
				held = append(held, fmt.Sprintf("net:[%d] by the %s", inode, fd))
			}
		}
	}
	slices.Sort(held)
	return held, nil
}

// namespacesOf returns the network namespaces, by their inodes, that a process holds.
func namespacesOf(pid int) (map[string]uint64, error) {
	of := map[string]uint64{}
	process, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return of, nil
	}
	if err != nil {
		return nil, err
	}
	defer unix.Close(process)
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, entry := range entries {
		target, err := os.Readlink(filepath.Join(dir, entry.Name()))
		if err != nil || !strings.HasPrefix(target, "socket:") && !strings.HasPrefix(target, "net:") {
			continue // closed meanwhile, or something else
		}
		number, err := strconv.Atoi(entry.Name())
		if err != nil {
			return nil, err
		}
		if inode, err := namespaceOf(process, number, strings.HasPrefix(target, "socket:")); err == nil {
			of[fmt.Sprintf("descriptor %s, a %s", entry.Name(), strings.SplitN(target, ":", 2)[0])] = inode
		} else if !errors.Is(err, unix.EBADF) && !errors.Is(err, unix.ESRCH) {
			return nil, fmt.Errorf("cannot look at descriptor %s, %s, of process %d: %w", entry.Name(), target, pid, err)
		}
	}
	return of, nil
}

func namespaceOf(process, number int, socket bool) (inode uint64, err error) {
	fd, err := unix.PidfdGetfd(process, number, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if socket {
		netns, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
		if err != nil {
			return 0, err
		}
		defer unix.Close(netns)
		fd = netns
	}
	var stat unix.Stat_t
	err = unix.Fstat(fd, &stat)
	return stat.Ino, err
}
