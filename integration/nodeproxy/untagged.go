package nodeproxy

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// keepSYN has a listener keep the first packet of each connection, for wantTag.
func keepSYN(f *os.File) error {
	return control(f, func(fd int) error {
		return unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_SAVE_SYN, 1)
	})
}

// wantTag says why a peer is not taken for another proxy: the first packet of its
// connection does not carry the tag.
func (s *server) wantTag(c *connection) error {
	err := wantTag(c)
	if err != nil {
		s.untagged.Add(1)
		s.env.untagged.Add(1)
	}
	return err
}

func wantTag(c *connection) error {
	var class byte
	err := control(c, func(fd int) error {
		// Not made for packet headers, but large enough. IPv4's is kept of an IPv4 peer,
		// even where the socket is of family IPv6.
		head, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_SAVED_SYN)
		if err != nil {
			return fmt.Errorf("cannot read the first packet of a connection: %w", err)
		}
		switch first, second := head.State, head.Ca_state; first >> 4 {
		case 4:
			class = second
		case 6:
			class = first<<4 | second>>4
		default:
			return errors.New("the kernel has not kept the first packet of a connection (are its SYN queues full?)")
		}
		return nil
	})
	const ecn = 3 // bits that belong to the network
	if err == nil && class&^ecn != tag {
		err = fmt.Errorf("the peer is untagged: its first packet has DSCP %#x, not %#x", class>>2, tag>>2)
	}
	return err
}
