package netlab

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestAnswerQuery(t *testing.T) {
	addr := netip.MustParseAddr("10.88.0.1")
	query := []byte("\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x06server\x04demo\x00\x00\x01\x00\x01and something more")
	const want = "\x12\x34\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00\x06server\x04demo\x00\x00\x01\x00\x01" +
		"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x1e\x00\x04\x0a\x58\x00\x01"
	if got := answerQuery(query, addr); string(got) != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for size := range strings.Index(string(query), "and") {
		if got := answerQuery(query[:size], addr); got != nil {
			t.Errorf("%q is answered", query[:size])
		}
	}
	if got := answerQuery(append(query[:12:12], 200, 1, 2), addr); got != nil {
		t.Errorf("a label that is too long is answered: %q", got)
	}
}

func TestResolve(t *testing.T) {
	Kernel(t)
	CheckLeaks(t)
	n, want := NewNS(t, "names"), netip.MustParseAddr("192.0.2.1")
	server, err := ServeNames(n, "127.0.0.1:53", want)
	if err != nil {
		t.Fatal(err)
	}
	ask := func() (netip.Addr, error) {
		return Resolve(t.Context(), "web.shop", func(ctx context.Context, network string) (net.Conn, error) {
			return n.Dial(ctx, network, "127.0.0.1:53")
		})
	}
	if got, err := ask(); err != nil || got != want {
		t.Errorf("got %s, %v", got, err)
	}
	if err := server.Close(); err != nil {
		t.Error(err)
	}
	if got, err := ask(); err == nil {
		t.Errorf("a server that is closed answers %s", got)
	}
}
