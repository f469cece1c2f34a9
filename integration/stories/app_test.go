package stories

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// An app is what runs in a pod, as far as it is about the network.
type app struct {
	conns    map[string]*conn // that it keeps open, by name
	resolver net.Conn         // its one socket to the name server
}

// end ends the app, and so its sockets.
func (a *app) end() {
	for _, c := range a.conns {
		c.close()
	}
	if a.resolver != nil {
		_ = a.resolver.Close() // nothing to lose
	}
	*a = app{}
}

// A conn is a connection to the web server.
type conn struct {
	net.Conn
	lines *bufio.Reader
	way   string
}

func (c *conn) close() { _ = c.Close() } // all of it has been read

// The ways out of a pod.
const (
	direct  = "directly\n"
	proxied = "through the proxy\n"
)

// answerPatience is how long a connection, or an answer on one, may take.
const answerPatience = 5 * time.Second

// dial connects from inside a namespace, and finds out which way the connection goes:
// the web server tells whose socket it sees.
func dial(ctx context.Context, from *netlab.NS) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	raw, err := from.Dial(ctx, "tcp", webServer.String())
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, lines: bufio.NewReader(raw), way: proxied}
	reply, err := c.greeting()
	if err == nil {
		err = c.say()
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("connected, and then: %w", err)
	}
	if reply.Peer.String() == c.LocalAddr().String() {
		c.way = direct
	}
	return c, nil
}

// greeting reads what the web server says first.
func (c *conn) greeting() (netlab.Reply, error) {
	if err := c.SetDeadline(time.Now().Add(answerPatience)); err != nil {
		return netlab.Reply{}, err
	}
	return netlab.ReadReply(c.lines)
}

// say says something and waits for its echo.
func (c *conn) say() error {
	const message = "over and back\n"
	if err := c.SetDeadline(time.Now().Add(answerPatience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, message); err != nil {
		return err
	}
	echo, err := c.lines.ReadString('\n')
	if err == nil && echo != message {
		err = fmt.Errorf("the web server answers %q to %q", echo, message)
	}
	return err
}

// connect opens a connection, and closes it at once or keeps it under a name.
func (n *node) connect(from string, keep ...string) (string, error) {
	s, err := n.sandbox(from)
	if err != nil {
		return "", err
	}
	c, err := dial(n.ctx, s.net)
	if err != nil {
		return "", err
	}
	if len(keep) == 0 {
		c.close()
		return c.way, nil
	}
	if s.app.conns == nil {
		s.app.conns = map[string]*conn{}
	}
	s.app.conns[keep[0]] = c
	return c.way, nil
}

// send says something over a connection that was kept.
func (n *node) send(name, kept string) error {
	s, err := n.sandbox(name)
	if err != nil {
		return err
	}
	c := s.app.conns[kept]
	if c == nil {
		return fmt.Errorf("%s has no connection %s", name, kept)
	}
	return c.say()
}

// hangup closes a connection that was kept.
func (n *node) hangup(name, kept string) error {
	s, err := n.sandbox(name)
	if err != nil {
		return err
	}
	c := s.app.conns[kept]
	if c == nil {
		return fmt.Errorf("%s has no connection %s", name, kept)
	}
	delete(s.app.conns, kept)
	return c.Close()
}

// unclosed is a socket that a resolver does not close.
type unclosed struct{ *net.UDPConn }

func (unclosed) Close() error { return nil }

// resolve asks the pod's name server, always from the same socket, as resolvers do that
// keep theirs; whose answer comes says which way the question went.
func (n *node) resolve(name string) (string, error) {
	s, err := n.sandbox(name)
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(n.ctx, answerPatience)
	defer cancel()
	if s.app.resolver == nil {
		if s.app.resolver, err = s.net.Dial(ctx, "udp", nameServer.String()); err != nil {
			return "", err
		}
	}
	addr, err := netlab.Resolve(ctx, "web.shop", func(context.Context, string) (net.Conn, error) {
		return unclosed{s.app.resolver.(*net.UDPConn)}, nil
	})
	switch {
	case err != nil:
		return "", err
	case addr == proxysNames:
		return proxied, nil
	}
	return direct, nil
}

// own are the ip rules that every namespace has.
var own = regexp.MustCompile(`lookup (local|main|default)`)

// rules is all that a capture puts into a pod: tables of nftables, ip rules, routes in
// other tables than the usual ones, listeners.
func (n *node) rules(name string) (string, error) {
	s, err := n.sandbox(name)
	if err != nil {
		return "", err
	}
	var found strings.Builder
	var errs []error
	for _, look := range []struct {
		keep    func(line string) bool
		command string
	}{
		{func(string) bool { return true }, "nft --stateless list ruleset"},
		{func(line string) bool { return !own.MatchString(line) }, "ip rule"},
		{func(line string) bool { return !own.MatchString(line) }, "ip -6 rule"},
		{func(line string) bool { return strings.Contains(line, "table 100") }, "ip route show table all"},
		{func(line string) bool { return strings.Contains(line, "table 100") }, "ip -6 route show table all"},
		{func(line string) bool { return strings.Contains(line, ":150") }, "ss --no-header --listening --numeric --tcp --udp"},
	} {
		words := strings.Fields(look.command)
		out, err := s.net.Run(words[0], words[1:]...)
		errs = append(errs, err)
		for line := range strings.Lines(out) {
			if look.keep(line) {
				found.WriteString(line)
			}
		}
	}
	if found.Len() == 0 {
		return nothing, errors.Join(errs...)
	}
	return found.String(), errors.Join(errs...)
}
