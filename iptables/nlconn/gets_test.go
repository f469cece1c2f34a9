package nlconn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// Each request has its own answer, whatever becomes of the others.
func TestGets(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "a")
	netlab.MustRun(t, n, "ip", "link", "add", "eth0", "type", "bridge")
	c := open(t, n)
	link := func(index byte) Message {
		payload := make([]byte, unix.SizeofIfInfomsg)
		payload[4] = index
		return Message{Kind: unix.RTM_GETLINK, Payload: payload}
	}
	get := func(ctx context.Context, requests ...Message) (string, error) {
		answers := make([]string, len(requests))
		err := c.Gets(ctx, requests, func(i int, reply []byte, failure error) error {
			if answers[i] += fmt.Sprint(failure); failure == nil {
				answers[i] = fmt.Sprintf("link %d", reply[4])
			}
			return nil
		})
		return strings.Join(answers, ", "), err
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	acknowledged := link(1)
	acknowledged.Kind, acknowledged.Flags = unix.NLMSG_NOOP, unix.NLM_F_ACK
	for name, tt := range map[string]struct {
		ctx      context.Context
		requests []Message
		want     string
		err      error
	}{
		"one":             {t.Context(), []Message{link(2)}, "link 2", nil},
		"several":         {t.Context(), []Message{link(2), link(1), link(2)}, "link 2, link 1, link 2", nil},
		"many":            {t.Context(), slices.Repeat([]Message{link(1), link(2)}, mostAtOnce), strings.TrimSuffix(strings.Repeat("link 1, link 2, ", mostAtOnce), ", "), nil},
		"one of none":     {t.Context(), []Message{link(77)}, "no such device", nil},
		"some of none":    {t.Context(), []Message{link(77), link(1), link(78), link(2)}, "no such device, link 1, no such device, link 2", nil},
		"no such request": {t.Context(), []Message{{Kind: 999}, link(1)}, "operation not supported, link 1", nil},
		"too late":        {cancelled, []Message{link(1)}, "", context.Canceled},
		"no reply":        {t.Context(), []Message{link(1), {Kind: unix.NLMSG_NOOP}}, "link 1, ", errNoAnswer},
		"acknowledged":    {t.Context(), []Message{acknowledged, link(1)}, errNoAnswer.Error() + ", link 1", nil},
	} {
		got, err := get(tt.ctx, tt.requests...)
		if got != tt.want || !errors.Is(err, tt.err) || c.unread {
			t.Errorf("%s: %q, %v; want %q, %v", name, got, err, tt.want, tt.err)
		}
	}
	enough, calls := errors.New("enough"), 0
	err := c.Gets(t.Context(), []Message{link(1), link(2)}, func(int, []byte, error) error { calls++; return enough })
	if !errors.Is(err, enough) || calls != 1 {
		t.Errorf("given up: %v after %d answers", err, calls)
	}
	if got, err := get(t.Context(), link(2), link(1)); got != "link 2, link 1" || err != nil {
		t.Errorf("after that: %q, %v", got, err)
	}
}

// A reply that does not fit is not taken for a shorter one.
func TestGetsTooLong(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "a")
	netlab.MustRun(t, n, "ip", "link", "add", "eth0", "type", "bridge")
	for i := range 40 {
		netlab.MustRun(t, n, "ip", "link", "property", "add", "dev", "eth0", "altname", fmt.Sprintf("%0100d", i))
	}
	c := open(t, n)
	payload := make([]byte, unix.SizeofIfInfomsg)
	payload[4] = 2
	request := Message{Kind: unix.RTM_GETLINK, Payload: payload}
	answered := 0
	count := func(int, []byte, error) error { answered++; return nil }
	if err := c.Gets(t.Context(), []Message{request}, count); err != nil || answered != 1 {
		t.Errorf("one of all the room: %v, %d answers", err, answered)
	}
	answered = 0
	err := c.Gets(t.Context(), slices.Repeat([]Message{request}, mostAtOnce), count)
	if err == nil || !strings.Contains(err.Error(), "bytes, more than 4096") || answered != 0 {
		t.Errorf("many that share it: %v, %d answers", err, answered)
	}
	wantLinks(t, c, "lo eth0")
}

func TestGetsOfOthers(t *testing.T) {
	var got []int
	g := gets{first: testSeq, answered: make([]bool, 2), left: 2, each: func(i int, _ []byte, _ error) error {
		got = append(got, i)
		return nil
	}}
	for _, seq := range []uint32{testSeq - 1, testSeq + 2, testSeq + 1, testSeq + 1, 0xffffffff} {
		if err := split(datagram(20, 0, seq), g.take); err != nil {
			t.Fatal(err)
		}
	}
	if fmt.Sprint(got) != "[1]" || g.left != 1 {
		t.Errorf("answers to %v were taken, %d are left", got, g.left)
	}
}
