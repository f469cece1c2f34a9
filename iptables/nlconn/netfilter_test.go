package nlconn

import (
	"context"
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// change is a request about a table of nftables.
func change(kind, flags uint16, table string) Message {
	return Message{unix.NFNL_SUBSYS_NFTABLES<<8 | kind, flags,
		AppendText(NetfilterHeader(unix.NFPROTO_INET), unix.NFTA_TABLE_NAME, table)}
}

func TestBatch(t *testing.T) {
	netlab.Kernel(t)
	netlab.CheckLeaks(t)
	n := netlab.NewNS(t, "a")
	c, err := Open(n.Handle, unix.NETLINK_NETFILTER)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	add := func(table string) Message { return change(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, table) }
	remove := func(table string) Message { return change(unix.NFT_MSG_DELTABLE, 0, table) }
	odd := add("odd")
	odd.Payload = AppendAttr(odd.Payload, unix.NFTA_TABLE_FLAGS, []byte{0, 0, 0, 99})
	wrong := add("wrong")
	wrong.Kind = unix.NFNL_SUBSYS_NFTABLES<<8 | 99
	for _, tt := range []struct {
		name      string
		ctx       context.Context
		subsystem uint16
		messages  []Message
		failed    int
		want      error
		tables    string
	}{
		{"all", t.Context(), unix.NFNL_SUBSYS_NFTABLES, []Message{add("a"), add("b")}, -1, nil, "a b"},
		{"the last fails", t.Context(), unix.NFNL_SUBSYS_NFTABLES, []Message{add("c"), remove("a"), remove("x")}, 2, unix.ENOENT, "a b"},
		{"the first of two", t.Context(), unix.NFNL_SUBSYS_NFTABLES, []Message{add("c"), remove("x"), odd, add("d")}, 1, unix.ENOENT, "a b"},
		{"no such request", t.Context(), unix.NFNL_SUBSYS_NFTABLES, []Message{wrong}, 0, unix.EINVAL, "a b"},
		{"no such subsystem", t.Context(), unix.NFNL_SUBSYS_QUEUE, []Message{add("c")}, -1, unix.EOPNOTSUPP, "a b"},
		{"too late", cancelled, unix.NFNL_SUBSYS_NFTABLES, []Message{add("c")}, -1, context.Canceled, "a b"},
		{"after all that", t.Context(), unix.NFNL_SUBSYS_NFTABLES, []Message{remove("a"), add("c")}, -1, nil, "b c"},
	} {
		failed, err := c.Batch(tt.ctx, tt.subsystem, tt.messages)
		if failed != tt.failed || !errors.Is(err, tt.want) || c.unread {
			t.Errorf("%s: request %d, %v; want %d, %v", tt.name, failed, err, tt.failed, tt.want)
		}
		list := strings.ReplaceAll(netlab.MustRun(t, n, "nft", "list", "tables"), "table inet ", "")
		if got := strings.Join(strings.Fields(list), " "); got != tt.tables {
			t.Errorf("%s: tables %q, want %q", tt.name, got, tt.tables)
		}
	}
}

func TestVerdict(t *testing.T) {
	ack := func(seq uint32, n int32) []byte { return datagram(unix.NLMSG_ERROR, 0, seq, code(n)...) }
	for name, tt := range map[string]struct {
		answers   [][]byte
		confirmed bool
		about     int
		want      error
	}{
		"nothing":             {nil, false, 0, nil},
		"confirmed":           {[][]byte{ack(9, 0)}, true, 0, nil},
		"another's":           {[][]byte{ack(5, -1), ack(11, -1), datagram(20, 0, 9)}, false, 0, nil},
		"an early one":        {[][]byte{ack(7, 0)}, false, 0, nil},
		"the first counts":    {[][]byte{ack(8, -2), ack(9, -1)}, false, 1, unix.ENOENT},
		"at the beginning":    {[][]byte{ack(6, -1), ack(9, 0)}, true, -1, unix.EPERM},
		"at the end":          {[][]byte{ack(10, -1)}, false, -1, unix.EPERM},
		"one of another kind": {[][]byte{datagram(unix.NLMSG_ERROR, 0, 8)}, false, 1, errors.ErrUnsupported},
	} {
		v := verdict{first: testSeq, messages: 3}
		for _, d := range tt.answers {
			if err := split(d, v.take); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		wanted := errors.Is(v.failure, tt.want) || tt.want == errors.ErrUnsupported && v.failure != nil
		if v.confirmed != tt.confirmed || v.about != tt.about || !wanted {
			t.Errorf("%s: %t, %d, %v", name, v.confirmed, v.about, v.failure)
		}
	}
}
