package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// A process in the pod with CAP_NET_ADMIN can send to any netlink socket in the pod's namespace. It must not be able to
// tell us what the pod's rules are.
func TestNobodyButTheKernelCanAnswer(t *testing.T) {
	netlab.Kernel(t)
	n := netlab.NewNS(t, "forged")
	table := open(t, n)
	apply(t, table, ordinary(t))
	number := generation(t, table)
	forger := rawSocket(t, n)

	if err := forge(t, forger, table.socket, number+1000); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("the socket takes other senders' messages: %v", err)
	}
	if got := generation(t, table); got != number {
		t.Errorf("the ruleset's number is %d, and was read as %d", number, got)
	}

	// A socket that is not connected gets the message, and does not believe it.
	open := &socket{fd: rawSocket(t, n)}
	if err := unix.Bind(open.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Fatal(err)
	}
	if err := forge(t, forger, open, number+1000); err != nil {
		t.Fatal(err)
	}
	if got, err := open.generation(); err != nil || got != number {
		t.Errorf("the ruleset's number is %d, and was read as %d: %v", number, got, err)
	}
}

func rawSocket(t *testing.T, n *netlab.NS) int {
	t.Helper()
	var fd int
	var err error
	n.Do(t, func() {
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) }) // of a test that is over
	return fd
}

// forge sends s the answer to its next request before it has asked.
func forge(t *testing.T, from int, s *socket, number uint32) error {
	t.Helper()
	to, err := unix.Getsockname(s.fd)
	if err != nil {
		t.Fatal(err)
	}
	answer := answerTo(s.seq+1, subsystem|unix.NFT_MSG_NEWGEN, func(b *builder) { b.uint32(unix.NFTA_GEN_ID, number) })
	return unix.Sendto(from, answer, 0, to)
}

// answerTo is a message as from the kernel.
func answerTo(seq uint32, kind uint16, fill func(*builder)) []byte {
	var b builder
	fill(&b)
	s := &socket{seq: seq - 1}
	return s.appendTo(nil, message{kind: kind, attributes: b}, unix.NFPROTO_INET, 0)
}

func TestParseMessages(t *testing.T) {
	one := answerTo(7, subsystem|unix.NFT_MSG_NEWGEN, func(b *builder) { b.uint32(unix.NFTA_GEN_ID, 5) })
	two := answerTo(8, unix.NLMSG_MIN_TYPE, func(b *builder) { b.text(1, "x") })
	messages, err := parseMessages(append(bytes.Clone(one), two...))
	if err != nil || len(messages) != 2 || messages[0].seq != 7 || messages[1].seq != 8 {
		t.Fatalf("got %v, %v", messages, err)
	}
	a, err := decode(messages[0].attributes)
	if err != nil || a.uint32(unix.NFTA_GEN_ID) != 5 {
		t.Errorf("got %v, %v", a, err)
	}
	for name, size := range map[string]uint32{"too long": uint32(len(one) + 1), "too short": nlHeader - 1, "zero": 0} {
		bad := bytes.Clone(one)
		binary.NativeEndian.PutUint32(bad, size)
		if _, err := parseMessages(bad); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if a.uint32(99) != 0 || a.text(99) != "" {
		t.Error("an attribute that is not there has a value")
	}
}

func TestKernelErrors(t *testing.T) {
	failure := func(flags uint16, errno int32, rest ...byte) message {
		b := binary.NativeEndian.AppendUint32(nil, uint32(errno))
		return message{kind: unix.NLMSG_ERROR, flags: flags, attributes: append(b, rest...)}
	}
	header := make([]byte, nlHeader)
	var words builder
	words.text(unix.NLMSGERR_ATTR_MSG, "Chain type is odd")
	whole := binary.NativeEndian.AppendUint32(nil, nlHeader+4)
	whole = append(append(whole, make([]byte, nlHeader)...), words...) // a request of 20 bytes, given back
	for name, tt := range map[string]struct {
		message message
		want    string
	}{
		"success":         {failure(0, 0, header...), "<nil>"},
		"nothing in it":   {message{kind: unix.NLMSG_DONE}, "<nil>"},
		"number":          {failure(0, -int32(unix.ENOENT), header...), "no such file or directory"},
		"words":           {failure(unix.NLM_F_CAPPED|unix.NLM_F_ACK_TLVS, -int32(unix.EINVAL), slices.Concat(header, words)...), "Chain type is odd (invalid argument)"},
		"behind it all":   {failure(unix.NLM_F_ACK_TLVS, -int32(unix.EINVAL), whole...), "Chain type is odd (invalid argument)"},
		"words cut":       {failure(unix.NLM_F_CAPPED|unix.NLM_F_ACK_TLVS, -int32(unix.EINVAL), slices.Concat(header, words[:6])...), "invalid argument"},
		"words not there": {failure(unix.NLM_F_ACK_TLVS, -int32(unix.EINVAL)), "invalid argument"},
		"a false length":  {failure(unix.NLM_F_ACK_TLVS, -int32(unix.EINVAL), bytes.Repeat([]byte{0x7f}, nlHeader)...), "invalid argument"},
		"end of a dump":   {message{kind: unix.NLMSG_DONE, attributes: binary.NativeEndian.AppendUint32(nil, uint32(0xffffffff))}, "operation not permitted"},
	} {
		err := tt.message.failure()
		if got := strings.TrimSpace(errorText(err)); got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return "<nil>"
	}
	return err.Error()
}

func FuzzMessages(f *testing.F) {
	f.Add(answerTo(7, subsystem|unix.NFT_MSG_NEWGEN, func(b *builder) { b.uint32(unix.NFTA_GEN_ID, 5) }))
	f.Add([]byte{20, 0, 0, 0, 2, 0, 0, 3, 1, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		messages, err := parseMessages(b)
		if err != nil {
			return
		}
		for _, m := range messages {
			_ = m.failure()
			if a, err := decode(m.attributes); err == nil {
				_ = comment(a.bytes(unix.NFTA_RULE_USERDATA))
			}
		}
	})
}
