package hostnet

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/watch"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// Probes says how the kubelet's probes reach captured pods.
type Probes string

// The ways. With HostIP and Off there is no table.
const (
	SNAT   Probes = "snat"   // from an address of their own
	HostIP Probes = "hostIP" // from the host's address
	Off    Probes = "off"
)

// DefaultMark is the default of Config.Mark. The host's conntrack entries belong to
// everybody on the host, and so do the bits of their marks. Of those this one is free:
// the lower twelve are the mesh's (0x539, 0x111 under 0xfff), 0x80 of them the AWS VPC
// plugin's too, and in 0xf00 Cilium has its magic; 0x2000 is portmap's and netavark's,
// 0x4000 and 0x8000 are kube-proxy's and the kubelet's; the upper sixteen are Calico's by
// default, as well as Cilium's identities, Antrea's and Tailscale's.
const DefaultMark uint32 = 0x1000

// DefaultNames are the names of processes that may be the kubelet, or have it in them.
func DefaultNames() []string { return []string{"kubelet", "kubelite", "k3s-server", "k3s-agent"} }

// Config is what an Exemption needs. Host, Probes, and with SNAT Mark, IPv4, IPv6, Look
// and Sweep are required.
type Config struct {
	Host    *netns.Handle // borrowed
	Probes  Probes
	Watcher *watch.Watcher // nil: the sweep alone sees what others do

	Mark       uint32 // one bit of the connection's mark
	IPv4, IPv6 netip.Addr

	Proc  string   // /proc if empty
	Names []string // of the kubelet's process; DefaultNames if empty
	// Within runs fn on a thread in another cgroup namespace. Without it an agent in a
	// cgroup namespace of its own lets any host process pass.
	Within func(space *os.File, fn func() error) error

	// Look is how often the kubelet is looked at, Sweep how often the table is.
	Look, Sweep time.Duration
	// Changed is called when the Status is another one. It must not call the Exemption.
	Changed func(Status)
}

func (c Config) validate() error {
	var errs []error
	if c.Host == nil {
		errs = append(errs, errors.New("the host's network namespace is missing"))
	}
	switch c.Probes {
	case HostIP, Off:
		return errors.Join(errs...)
	case SNAT:
	default:
		errs = append(errs, fmt.Errorf("probes: %q is neither %s, %s nor %s", c.Probes, SNAT, HostIP, Off))
	}
	if bits.OnesCount32(c.Mark) != 1 {
		errs = append(errs, fmt.Errorf("the mark %#x is not one bit", c.Mark))
	}
	if !c.IPv4.Is4() || !c.IPv6.Is6() || c.IPv6.Is4In6() {
		errs = append(errs, fmt.Errorf("%s and %s are not an IPv4 and an IPv6 address", c.IPv4, c.IPv6))
	}
	if c.Look <= 0 || c.Sweep <= 0 {
		errs = append(errs, fmt.Errorf("intervals of %s and %s: both must be more than 0", c.Look, c.Sweep))
	}
	return errors.Join(errs...)
}

// A Pod is what the exemption needs to know of a captured pod.
type Pod struct {
	Addrs []netip.Addr
	// Links are the host's interfaces that lead to it.
	Links []string
}

// A Status is what there is to say about the exemption.
type Status struct {
	Kubelet Kubelet
	// Repairs is how often the table was found changed, Drift what was found last and By
	// who did it, as far as the kernel told.
	Repairs int
	Drift   []string
	By      string
	// Unguarded is why pods' interfaces are not guarded, Problem what went wrong last
	// and has not gone right since; both empty otherwise.
	Unguarded, Problem string
}

// An Exemption keeps our table in the host's network namespace.
type Exemption struct {
	config Config
	conn   *nlconn.Conn
	routes *nlconn.Conn
	wake   chan string // of one: somebody may have changed the table, and who

	wishing sync.Mutex // wishes; it is never held for long
	wishes  []func()   // what change is called for, and has not done yet

	mu       sync.Mutex // the rest, and what is written
	pods     pods
	settled  bool // KeepOnly has been called: the table is to hold the pods' and nothing else
	removed  bool
	kubelet  *process  // nil if there is none
	seen     time.Time // when it was there last, or we began
	looked   time.Time // when it was looked for last
	space    *os.File  // the cgroup namespace of the rules for the last one
	status   Status
	have     *table   // what stands in the kernel, nil if that has to be read
	number   uint32   // the ruleset's, when it was read
	lines    []string // of the wanted table
	linesFor Kubelet
	began    bool   // the table has stood once: from then on what is missing was taken away
	fresh    bool   // have was read since the change began
	by       string // who has last changed the ruleset, if the kernel told
}

// New makes an Exemption. It changes nothing.
func New(c Config) (*Exemption, error) {
	if c.Proc == "" {
		c.Proc = "/proc"
	}
	if len(c.Names) == 0 {
		c.Names = DefaultNames()
	}
	if err := c.validate(); err != nil {
		return nil, fmt.Errorf("cannot exempt health probes: %w", err)
	}
	e := &Exemption{config: c, wake: make(chan string, 1), pods: newPods(), seen: time.Now()}
	var err error
	if e.conn, err = nlconn.Open(c.Host, unix.NETLINK_NETFILTER); err != nil {
		return nil, err
	}
	if e.routes, err = nlconn.Open(c.Host, unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(err, e.conn.Close())
	}
	switch c.Probes {
	case HostIP:
		e.status.Kubelet.Mode = HostAddress
	case Off:
		e.status.Kubelet.Mode = NoProbes
	default:
		e.status.Kubelet = Kubelet{Mode: AnyHostProcess, Reason: "the kubelet has not been looked for yet"}
	}
	return e, nil
}

// Close gives up what is open, and leaves the table. It is idempotent.
func (e *Exemption) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	err := errors.Join(e.conn.Close(), e.routes.Close())
	if e.kubelet != nil {
		err = errors.Join(err, e.kubelet.close())
		e.kubelet = nil
	}
	if e.space != nil {
		err = errors.Join(err, e.space.Close())
		e.space = nil
	}
	return err
}

// Status is the last one.
func (e *Exemption) Status() Status {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.copied()
}

func (e *Exemption) copied() Status {
	s := e.status
	s.Drift = slices.Clone(s.Drift)
	return s
}

// Exempt is Set for a pod that is known by its network namespace. Addresses to which no
// kubelet connects, as those that are only good on a link, are left out.
func (e *Exemption) Exempt(ctx context.Context, uid string, pod *netns.Handle, addrs []netip.Addr) error {
	if e.config.Probes != SNAT {
		return nil
	}
	links, err := e.links(ctx, pod)
	if err != nil {
		return err
	}
	addrs = slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return !a.Unmap().IsGlobalUnicast() })
	return e.Set(ctx, uid, Pod{Addrs: addrs, Links: links})
}

// Set exempts the probes of a pod: when it returns without an error they are. What the
// pod had before and is not named any more is taken away. Of two pods with one address
// the one that named it last has it; naming it again is nothing new.
//
// With an error the wish stands, and is tried again until Delete.
func (e *Exemption) Set(ctx context.Context, uid string, p Pod) error {
	p, err := p.checked(uid)
	if err != nil {
		return err
	}
	return e.change(ctx, func() { e.pods.set(uid, p) })
}

// Delete takes away what is the pod's own. That it has nothing is fine.
func (e *Exemption) Delete(ctx context.Context, uid string) error {
	return e.change(ctx, func() { e.pods.remove(uid) })
}

// KeepOnly says that the pods known by now are all there are, with those that an earlier
// agent has left and that are named here. Before it is called nothing is pruned, and it is
// to be called again if it fails.
func (e *Exemption) KeepOnly(ctx context.Context, uids []string) error {
	return e.change(ctx, func() {
		if e.have != nil { // else it is not known what there is to keep
			e.settled = true
			e.pods.keepOnly(uids)
		}
	})
}

// change carries out a wish, together with all that others have meanwhile, so that many
// at once wait for one transaction and not for each other's.
func (e *Exemption) change(ctx context.Context, wish func()) error {
	e.wishing.Lock()
	e.wishes = append(e.wishes, wish)
	e.wishing.Unlock()

	e.mu.Lock()
	defer e.mu.Unlock()
	if e.config.Probes != SNAT || e.removed {
		e.grant()
		return nil
	}
	if e.have == nil { // so that what stands there is known before it is decided on
		if err := e.apply(ctx); err != nil {
			e.grant()
			return err
		}
	}
	e.grant()
	return e.apply(ctx)
}

// grant carries out all wishes, in their order. e.mu is held.
func (e *Exemption) grant() {
	e.wishing.Lock()
	wishes := e.wishes
	e.wishes = nil
	e.wishing.Unlock()
	for _, wish := range wishes {
		wish()
	}
}

// Check reads the table and says how it differs from the wanted one.
func (e *Exemption) Check(ctx context.Context) ([]string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	got, _, err := read(ctx, e.conn)
	if err != nil {
		return nil, err
	}
	if e.config.Probes != SNAT || e.removed {
		if got.lines != nil {
			return []string{"a table that is not wanted"}, nil
		}
		return nil, nil
	}
	want, err := e.want()
	if err != nil {
		return nil, err
	}
	return got.differences(want), nil
}

// Remove takes the whole table away, for good: nothing puts it back. That there is none
// is fine. Probes that are under way may be cut off.
func (e *Exemption) Remove(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.removed = true
	return e.remove(ctx)
}
