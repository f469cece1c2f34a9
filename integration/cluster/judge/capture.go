package judge

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"
	"unsafe"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// A Capture listens to what the pods of a node send.
type Capture struct {
	socket    *os.File
	rtnl      *netlink.Handle
	uplinks   []string
	ports     map[int]bool // by interface, whether a pod is behind it
	recording Recording
	stopped   chan error // Stop has asked, and all has been read
}

// buffer is what the kernel keeps until it is read, of packets of about 1 KiB each: some
// seconds' worth.
const buffer = 64 << 20

// Start begins to listen in a node's network namespace, at all interfaces, those too
// that come later, but for those that lead out of the node.
func Start(node string, h *netns.Handle, uplinks ...string) (*Capture, error) {
	c, err := listen(node, h, buffer, uplinks)
	if err != nil {
		return nil, err
	}
	c.start()
	return c, nil
}

func listen(node string, h *netns.Handle, buffer int, uplinks []string) (*Capture, error) {
	c := &Capture{
		uplinks: append([]string{"lo"}, uplinks...), ports: map[int]bool{}, stopped: make(chan error, 1),
		recording: Recording{Node: node, Tagged: map[netip.Addr]int{}},
	}
	if err := h.Do(func() error { return c.open(buffer) }); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot capture in %s: %w", node, err), c.close())
	}
	return c, nil
}

func (c *Capture) start() {
	go func() { c.stopped <- c.read() }()
}

// open makes the sockets in the namespace of the calling thread.
func (c *Capture) open(buffer int) (err error) {
	if c.rtnl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return err
	}
	// Of no protocol: it gets nothing before it is bound.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	c.socket = os.NewFile(uintptr(fd), "packets")
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer); err != nil {
		return fmt.Errorf("no buffer of %d bytes: %w", buffer, err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return err
	}
	if err := filter(fd, fromElsewhere); err != nil {
		return err
	}
	const all = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all})
}

func (c *Capture) close() error {
	if c.rtnl != nil {
		c.rtnl.Close()
	}
	if c.socket != nil {
		return c.socket.Close()
	}
	return nil
}

// head is how much of a packet is looked at: its headers.
const head = 256

// Where a filter finds what is not in the packet (SKF_AD_OFF and on).
const (
	protocol   = 0xfffff000
	packetType = 0xfffff004
)

// fromElsewhere lets through the head of each IP packet that the interface did not send.
var fromElsewhere = []unix.SockFilter{
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: packetType},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.PACKET_OUTGOING, Jt: 4},
	{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: protocol},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.ETH_P_IP, Jt: 1},
	{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.ETH_P_IPV6, Jf: 1},
	{Code: unix.BPF_RET | unix.BPF_K, K: head},
	{Code: unix.BPF_RET | unix.BPF_K, K: 0},
}

var nothing = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}

func filter(fd int, program []unix.SockFilter) error {
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}

// Stop ends the capture and returns what the pods have sent until now.
func (c *Capture) Stop() (Recording, error) {
	var failed error
	raw, err := c.socket.SyscallConn()
	if err == nil {
		// What comes from now on would keep the reader busy for ever.
		err = raw.Control(func(fd uintptr) { failed = filter(int(fd), nothing) })
	}
	if err != nil {
		return Recording{}, fmt.Errorf("cannot stop the capture in %s twice: %w", c.recording.Node, err)
	}
	// The reader ends as soon as it finds nothing more.
	err = errors.Join(err, failed, c.socket.SetReadDeadline(time.Unix(1, 0)), <-c.stopped, c.close())
	if err != nil {
		return Recording{}, fmt.Errorf("cannot capture in %s: %w", c.recording.Node, err)
	}
	return c.recording, nil
}

// read reads until there is nothing more and the deadline is over.
func (c *Capture) read() error {
	raw, err := c.socket.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		failed = c.readAll(int(fd))
		return failed != nil
	})
	if failed != nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		return errors.Join(failed, err)
	}
	// Between the last look and the deadline more may have come.
	if err := raw.Control(func(fd uintptr) {
		if failed = c.readAll(int(fd)); failed == nil {
			failed = c.count(int(fd))
		}
	}); err != nil {
		return err
	}
	return failed
}

// readAll reads what there is.
func (c *Capture) readAll(fd int) error {
	var packet [head]byte
	var control [64]byte
	for {
		n, size, _, from, err := unix.Recvmsg(fd, packet[:], control[:], 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		}
		at, err := timestamp(control[:size])
		if err != nil {
			return err
		}
		s, tagged, ok := parse(packet[:n])
		if !ok || !c.isPort(from.(*unix.SockaddrLinklayer).Ifindex) {
			continue
		}
		if tagged {
			c.recording.Tagged[s.From.Addr()]++
			continue
		}
		s.Time = at
		c.recording.Untagged = append(c.recording.Untagged, s)
	}
}

// isPort says whether a pod is behind an interface. None is behind a bridge, which hands
// on what has come out of one of its ports, with other addresses perhaps. One that is gone
// was a pod's: the others stay.
func (c *Capture) isPort(index int) bool {
	port, known := c.ports[index]
	if !known {
		link, err := c.rtnl.LinkByIndex(index)
		port = err != nil || link.Type() != "bridge" && !slices.Contains(c.uplinks, link.Attrs().Name)
		c.ports[index] = port
	}
	return port
}

func timestamp(control []byte) (time.Time, error) {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return time.Time{}, err
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= int(unsafe.Sizeof(unix.Timespec{})) {
			ts := *(*unix.Timespec)(unsafe.Pointer(&m.Data[0]))
			return time.Unix(ts.Unix()), nil
		}
	}
	return time.Time{}, errors.New("a packet has no time")
}

// count asks the kernel what it had to drop.
func (c *Capture) count(fd int) error {
	stats, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return err
	}
	c.recording.Lost = int(stats.Drops)
	return nil
}
