package hostnet

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
)

// initialSpace is the inode number of the first cgroup namespace, PROC_CGROUP_INIT_INO.
const initialSpace = 0xEFFFFFFB

// recognise finds out how a process's sockets are recognised.
func (c Config) recognise(ctx context.Context, conn *nlconn.Conn, p *process) Kubelet {
	k := Kubelet{Mode: AnyHostProcess, PID: p.pid}
	err := c.within(p.space, func() error { return k.place(p) })
	if err == nil && k.Mode == ByCgroup {
		err = c.trustLevels(ctx, conn, p)
	}
	if err != nil {
		k.Mode, k.Reason = AnyHostProcess, err.Error()
	}
	return k
}

// within runs fn in a cgroup namespace.
func (c Config) within(space *os.File, fn func() error) error {
	var here, there unix.Stat_t
	if space == nil || unix.Stat(filepath.Join(c.Proc, "thread-self/ns/cgroup"), &here) != nil {
		return fn()
	}
	if err := unix.Fstat(int(space.Fd()), &there); err != nil {
		return err
	}
	if here.Ino == there.Ino {
		return fn()
	}
	if c.Within == nil {
		return errors.New("the kubelet is in another cgroup namespace, which cannot be entered")
	}
	return c.Within(space, fn)
}

// place fills in the kubelet's cgroup, as seen from its cgroup namespace.
func (k *Kubelet) place(p *process) error {
	memberships, err := p.read("cgroup")
	if err != nil {
		return err
	}
	mounts, err := p.read("mountinfo")
	if err != nil {
		return err
	}
	err = errors.New("the kubelet is in no cgroup")
	for line := range strings.Lines(memberships) {
		// hierarchy-ID:controllers:path. The path may hold a colon.
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			continue
		}
		root, mounted := cgroupMount(mounts, fields[1])
		dir := filepath.Join(p.dir.Name(), "root", root, fields[2])
		switch {
		case fields[1] == "" && fields[2] == "/":
			err = errors.New("the kubelet is in the root cgroup, like any process")
		case fields[1] == "" && !mounted:
			err = errors.New("the unified cgroup hierarchy is not mounted")
		case fields[1] == "":
			var stat unix.Stat_t
			if err = unix.Stat(dir, &stat); err == nil {
				k.Mode, k.Cgroup = ByCgroup, fields[2]
				k.id, k.level = stat.Ino, uint32(strings.Count(fields[2], "/"))
				return nil
			}
			err = fmt.Errorf("cannot look at the kubelet's cgroup %s: %w", fields[2], err)
		case hasController(fields[1], "net_cls") && mounted:
			if class, ok := readClass(dir); ok {
				k.Mode, k.Cgroup, k.class = ByClass, fields[2], class
			}
		}
	}
	if k.Mode == ByClass {
		return nil
	}
	return err
}

// readClass reads the class of a net_cls cgroup; 0 is that of all that have none.
func readClass(dir string) (uint32, bool) {
	text, err := os.ReadFile(filepath.Join(dir, "net_cls.classid"))
	if err != nil {
		return 0, false
	}
	class, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	return uint32(class), err == nil && class != 0
}

func hasController(list, controller string) bool {
	return strings.Contains(","+list+",", ","+controller+",")
}

// cgroupMount finds where a hierarchy is mounted as a whole: the unified one if
// controllers is empty. A line of mountinfo is as
//
//	63 43 0:4 / /sys/fs/cgroup rw - cgroup2 none rw
func cgroupMount(mounts, controllers string) (string, bool) {
	for line := range strings.Lines(mounts) {
		before, after, _ := strings.Cut(line, " - ")
		fields, of := strings.Fields(before), strings.Fields(after)
		if len(fields) < 5 || len(of) < 3 || fields[3] != "/" {
			continue
		}
		if controllers == "" && of[0] == "cgroup2" ||
			controllers != "" && of[0] == "cgroup" && hasController(of[2], strings.Split(controllers, ",")[0]) {
			return unescape.Replace(fields[4]), true
		}
	}
	return "", false
}

// unescape undoes the kernel's escapes of what would end a field, or a line.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)

// trustLevels fails if a level counted from the process's cgroup namespace is not what
// the kernel takes it for.
func (c Config) trustLevels(ctx context.Context, conn *nlconn.Conn, p *process) error {
	if p.space == nil {
		return nil
	}
	var space unix.Stat_t
	if err := unix.Fstat(int(p.space.Fd()), &space); err != nil || space.Ino == initialSpace {
		return err // everybody counts from the root
	}
	relative := false
	err := c.within(p.space, func() (err error) {
		relative, err = relativeLevels(ctx, conn)
		return err
	})
	if err == nil && !relative {
		err = errors.New("the kubelet is in a cgroup namespace of its own, and this kernel counts levels from the root, which cannot be seen there (Linux 6.11 counts from the namespace)")
	}
	return err
}

// relativeLevels says whether the kernel counts cgroups' levels from the calling thread's
// cgroup namespace, and that is below the root: the sum is then too much for a level.
func relativeLevels(ctx context.Context, conn *nlconn.Conn) (bool, error) {
	const scratch = "fairlead-level"
	const ruleTable, ruleChain = unix.NFTA_RULE_TABLE, unix.NFTA_RULE_CHAIN
	list, err := marshal([]expr.Any{&expr.Socket{Key: expr.SocketKeyCgroupv2, Level: math.MaxUint8, Register: 1}})
	if err != nil {
		return false, err
	}
	table := named(unix.NFTA_TABLE_NAME, scratch)
	chain := nlconn.AppendText(named(unix.NFTA_CHAIN_TABLE, scratch), unix.NFTA_CHAIN_NAME, scratch)
	rule := nlconn.AppendText(named(ruleTable, scratch), ruleChain, scratch)
	rule = nlconn.AppendAttr(rule, unix.NLA_F_NESTED|unix.NFTA_RULE_EXPRESSIONS, list)
	_, err = conn.Batch(ctx, unix.NFNL_SUBSYS_NFTABLES, []nlconn.Message{ // which leaves nothing behind
		message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, table),
		message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, chain),
		message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, rule),
		message(unix.NFT_MSG_DELTABLE, 0, table),
	})
	if errors.Is(err, unix.EOPNOTSUPP) {
		return true, nil
	}
	return false, err
}
