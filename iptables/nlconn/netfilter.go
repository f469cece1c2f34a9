package nlconn

import (
	"context"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// NetfilterHeaderSize is the size of the header that the payload of each netfilter
// message begins with, a struct nfgenmsg.
const NetfilterHeaderSize = 4

// NetfilterHeader is the start of a netfilter request's payload.
func NetfilterHeader(family uint8) []byte { return []byte{family, unix.NFNETLINK_V0, 0, 0} }

// A Message is one request of a batch.
type Message struct {
	Kind, Flags uint16
	Payload     []byte
}

// Batch sends requests to a subsystem of netfilter's, as unix.NFNL_SUBSYS_NFTABLES.
// The kernel does all of them or none. The int is the index of the request that the
// error is about, or -1 if it is about all of them.
func (c *Conn) Batch(ctx context.Context, subsystem uint16, messages []Message) (int, error) {
	v := verdict{messages: len(messages)}
	err := c.exchange(ctx, func(b []byte) []byte {
		mark := binary.BigEndian.AppendUint16(NetfilterHeader(unix.AF_UNSPEC)[:2], subsystem)
		b = c.append(b, unix.NFNL_MSG_BATCH_BEGIN, 0, mark)
		v.first = c.seq
		for i, m := range messages {
			flags := m.Flags
			if i == len(messages)-1 {
				flags |= unix.NLM_F_ACK // one is enough: a request that fails is always answered
			}
			b = c.append(b, m.Kind, flags, m.Payload)
		}
		return c.append(b, unix.NFNL_MSG_BATCH_END, 0, mark)
	}, 1, v.take, func() bool { return false }) // the last request's confirmation is not the last word
	switch {
	case v.failure != nil:
		return v.about, v.failure
	case err == nil && !v.confirmed:
		err = errors.New("the kernel did not confirm the transaction")
	}
	return -1, err
}

// A verdict is what the kernel says to a batch.
type verdict struct {
	first    uint32 // number of the first request; before it is the begin, behind the last the end
	messages int

	confirmed bool
	failure   error
	about     int
}

func (v *verdict) take(m message) error {
	i := int(int32(m.seq - v.first))
	if m.kind != unix.NLMSG_ERROR || i < -1 || i > v.messages {
		return nil
	}
	err := m.failure()
	switch {
	case err == nil:
		v.confirmed = v.confirmed || i == v.messages-1
	case v.failure == nil: // the first one is the cause of the others
		v.failure, v.about = err, i
		if i == v.messages {
			v.about = -1
		}
	}
	return nil
}
