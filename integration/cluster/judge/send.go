package judge

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// Send bypasses the proxy: it sends a SYN from an address of a pod, at the pod's
// interface, where no rule of the pod's is asked. Whether anybody answers does not matter.
func Send(h *netns.Handle, link string, from, to netip.AddrPort) error {
	err := h.Do(func() error {
		card, err := netlink.LinkByName(link)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		packet, protocol := synPacket(from, to)
		everybody := [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
		err = unix.Sendto(fd, packet, 0, &unix.SockaddrLinklayer{
			Protocol: protocol<<8 | protocol>>8, Ifindex: card.Attrs().Index, Halen: 6, Addr: everybody,
		})
		return errors.Join(err, unix.Close(fd))
	})
	if err != nil {
		return fmt.Errorf("cannot send a packet from %s to %s: %w", from, to, err)
	}
	return nil
}

// synPacket is an IP packet with a SYN in it, and its protocol number.
func synPacket(from, to netip.AddrPort) (packet []byte, protocol uint16) {
	const size = 20 // of the TCP header
	var header []byte
	if from.Addr().Is4() {
		header, protocol = make([]byte, 20), unix.ETH_P_IP
		header[0], header[8], header[9] = 0x45, 64, unix.IPPROTO_TCP
		binary.BigEndian.PutUint16(header[2:], 20+size)
		copy(header[12:], from.Addr().AsSlice())
		copy(header[16:], to.Addr().AsSlice())
		binary.BigEndian.PutUint16(header[10:], checksum(header))
	} else {
		header, protocol = make([]byte, 40), unix.ETH_P_IPV6
		header[0], header[6], header[7] = 0x60, unix.IPPROTO_TCP, 64
		binary.BigEndian.PutUint16(header[4:], size)
		copy(header[8:], from.Addr().AsSlice())
		copy(header[24:], to.Addr().AsSlice())
	}
	tcp := make([]byte, size)
	binary.BigEndian.PutUint16(tcp, from.Port())
	binary.BigEndian.PutUint16(tcp[2:], to.Port())
	tcp[12], tcp[13], tcp[14] = size/4<<4, 1<<1, 0xff // a SYN, and some window
	pseudo := slices.Concat(from.Addr().AsSlice(), to.Addr().AsSlice(), []byte{0, unix.IPPROTO_TCP, 0, size}, tcp)
	binary.BigEndian.PutUint16(tcp[16:], checksum(pseudo))
	return slices.Concat(header, tcp), protocol
}

// checksum is that of IP, of an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum>>16 + sum)
}
