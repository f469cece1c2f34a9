// Package legacy tells what is in the tables of iptables-legacy in a network namespace.
//
// Those are not nftables' tables: no ruleset number counts their changes, no notification tells of them, and the nft command
// does not show them. But their rules stand on the same hooks: raw at priority -300, mangle at -150, and nat at -100, which is
// behind our redirects. So a rule in raw can take a packet out of connection tracking, and one in mangle can give it the
// proxy's mark; in both cases it is not redirected, while every rule of ours stands.
//
// Rules are counted, not read. A look takes 0.05 ms, and where the kernel has no such tables one failed open for each family.
//
// # Failures it survives
//
//   - A kernel without iptables-legacy, or without IPv6: there are no tables then. Asking loads no module and makes no table.
//   - Empty tables, which the first iptables-legacy -L leaves behind: they are not told of.
//   - A table that goes meanwhile.
package legacy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// A Table is one that is not empty.
type Table struct {
	Family  string // ip or ip6, as nft calls them
	Name    string // as nat
	Entries int    // rules, and two for each chain that somebody has added
}

func (t Table) String() string {
	return fmt.Sprintf("iptables-legacy table %s %s: %d entries", t.Family, t.Name, t.Entries)
}

// Tables lists the tables in a namespace that have something in them.
func Tables(h *netns.Handle) ([]Table, error) { return tables(h, "/proc/thread-self/net") }

// A family is one whose tables the kernel keeps apart.
type family struct {
	name          string
	domain, level int
	names         string // where the kernel lists the tables that exist
}

var families = []family{
	{"ip", unix.AF_INET, unix.SOL_IP, "ip_tables_names"},
	{"ip6", unix.AF_INET6, unix.SOL_IPV6, "ip6_tables_names"},
}

func tables(h *netns.Handle, proc string) ([]Table, error) {
	var known []family
	for _, f := range families {
		// The file is there in all namespaces, or in none.
		if err := unix.Access(filepath.Join(proc, f.names), unix.F_OK); err == nil {
			known = append(known, f)
		}
	}
	if len(known) == 0 {
		return nil, nil
	}
	var found []Table
	if err := h.Do(func() error {
		for _, f := range known {
			names, err := os.ReadFile(filepath.Join(proc, f.names))
			if err == nil && len(names) > 0 {
				err = f.tables(strings.Fields(string(names)), &found)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("cannot look at the tables of iptables-legacy: %w", err)
	}
	return found, nil
}

// tables adds those that have something in them, of tables that exist in the namespace of the calling thread.
func (f family) tables(names []string, found *[]Table) (err error) {
	fd, err := unix.Socket(f.domain, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot open a socket: %w", err)
	}
	defer func() { err = errors.Join(err, unix.Close(fd)) }()
	for _, name := range names {
		entries, err := f.entries(fd, name)
		if err != nil && !errors.Is(err, unix.ENOENT) { // else it has gone
			return fmt.Errorf("table %s %s: %w", f.name, name, err)
		}
		if entries > 0 {
			*found = append(*found, Table{f.name, name, entries})
		}
	}
	return nil
}

// What linux/netfilter_ipv4/ip_tables.h calls IPT_SO_GET_INFO, and ip6_tables.h alike, and the struct ipt_getinfo.
const (
	getInfo = 64

	nameSize      = 32
	hooksOffset   = nameSize
	entriesOffset = hooksOffset + 4 + 5*4 + 5*4
	infoSize      = entriesOffset + 4 + 4
)

// entries counts what a table has besides the policies of its hooks and the mark of its end.
func (f family) entries(fd int, table string) (int, error) {
	var info [infoSize]byte
	copy(info[:nameSize-1], table)
	size := uint32(len(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(f.level), getInfo,
		uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	switch {
	case errno == unix.EPERM:
		return 0, fmt.Errorf("%w (CAP_NET_ADMIN is missing)", errno)
	case errno != 0:
		return 0, errno
	case size != infoSize:
		return 0, fmt.Errorf("the kernel tells %d bytes about it, not %d", size, infoSize)
	}
	hooks := bits.OnesCount32(binary.NativeEndian.Uint32(info[hooksOffset:]))
	return int(binary.NativeEndian.Uint32(info[entriesOffset:])) - hooks - 1, nil
}
