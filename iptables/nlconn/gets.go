package nlconn

import (
	"context"

	"golang.org/x/sys/unix"
)

// Gets sends requests for one thing each, all together, and hands each the reply to
// each of them, or the kernel's error in its place: those go by themselves, one that
// fails does not touch the others. It costs a third of as many calls of Request.
//
// each must not keep the reply, which has 4 KiB at most. Its first error ends the call.
func (c *Conn) Gets(ctx context.Context, requests []Message, each func(i int, reply []byte, failure error) error) error {
	g := gets{answered: make([]bool, len(requests)), left: len(requests), each: each}
	err := c.exchange(ctx, func(b []byte) []byte {
		g.first = c.seq
		for _, m := range requests {
			b = c.append(b, m.Kind, m.Flags, m.Payload)
		}
		return b
	}, len(requests), g.take, func() bool { return g.left == 0 })
	if err == nil && g.left > 0 {
		err = errNoAnswer
	}
	return err
}

// gets is what has come of the answers.
type gets struct {
	first    uint32 // number of the first request
	answered []bool
	left     int
	each     func(int, []byte, error) error
}

func (g *gets) take(m message) error {
	i := int(int32(m.seq - g.first))
	if i < 0 || i >= len(g.answered) || g.answered[i] || m.kind == unix.NLMSG_NOOP {
		return nil
	}
	g.answered[i] = true
	g.left--
	if m.kind == unix.NLMSG_ERROR {
		failure := m.failure()
		if failure == nil {
			failure = errNoAnswer // an acknowledgement is not what was asked for
		}
		return g.each(i, nil, failure)
	}
	return g.each(i, m.payload, nil)
}
