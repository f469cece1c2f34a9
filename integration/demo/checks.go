package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

// A look looks at something real, and says what it saw or what is wrong.
type look func(ctx context.Context) (seen string, err error)

// outside is the web server outside the mesh, on the node.
func (s *story) outside() netip.AddrPort { return netip.AddrPortFrom(gateway4, webPort) }

// outsides are its addresses, one of each IP version.
func (s *story) outsides() [2]netip.AddrPort {
	return [2]netip.AddrPort{s.outside(), netip.AddrPortFrom(gateway6, webPort)}
}

// starts has the runtime start a pod.
func (s *story) starts(p *pod) look {
	return func(ctx context.Context) (string, error) {
		if err := s.runtime.start(ctx, p); err != nil {
			return "", err
		}
		return fmt.Sprintf("CNI ADD %s, addresses %s", rounded(p.took), join(p.addrs, ", ")), nil
	}
}

// direct is a connection that reaches the outside server untouched: from the app's
// own socket, without the proxy's tag, without the proxy counting.
func (s *story) direct(p *pod) look {
	return func(ctx context.Context) (string, error) {
		before, err := s.counters(ctx, p)
		if err != nil {
			return "", err
		}
		c, err := converse(ctx, p.net, s.outside())
		if err != nil {
			return "", err
		}
		defer c.close()
		after, err := s.counters(ctx, p)
		switch {
		case err != nil:
			return "", err
		case c.Tagged || after != before:
			return "", fmt.Errorf("it went through the proxy: the server saw %s, tag: %t; relayed before %+v, after %+v", c.Peer, c.Tagged, before, after)
		case c.Peer != c.local():
			return "", fmt.Errorf("the server saw %s, but the app's socket is %s", c.Peer, c.local())
		}
		return fmt.Sprintf("seen as %s, the app's own socket", c.Peer), c.say()
	}
}

// outbound is a connection to the outside server that the proxy carries.
func (s *story) outbound(p *pod) look {
	return func(ctx context.Context) (string, error) {
		before, err := s.counters(ctx, p)
		if err != nil {
			return "", err
		}
		c, err := converse(ctx, p.net, s.outside())
		if err != nil {
			return "", err
		}
		defer c.close()
		after, err := s.counters(ctx, p)
		switch {
		case err != nil:
			return "", err
		case !c.Tagged || after.Outbound != before.Outbound+1:
			return "", fmt.Errorf("it went past the proxy: the server saw %s, tag: %t; outbound relayed before %d, after %d",
				c.Peer, c.Tagged, before.Outbound, after.Outbound)
		}
		return fmt.Sprintf("seen as %s, with the proxy's tag", c.Peer), c.say()
	}
}

// addressKept is a connection to a captured pod, of each IP version: the proxy
// carries it in, and the app sees who its client is.
func (s *story) addressKept(client, server *pod) look {
	return func(ctx context.Context) (string, error) {
		before, err := s.counters(ctx, server)
		if err != nil {
			return "", err
		}
		for i, from := range client.addrs {
			c, err := converse(ctx, client.net, netip.AddrPortFrom(server.addrs[i], webPort))
			if err != nil {
				return "", err
			}
			defer c.close()
			if c.Peer.Addr() != from || !c.Tagged {
				return "", fmt.Errorf("the server in the pod saw %s (proxy's tag: %t), but the client is %s", c.Peer.Addr(), c.Tagged, from)
			}
			if err := c.say(); err != nil {
				return "", err
			}
		}
		after, err := s.counters(ctx, server)
		if err == nil && after.Inbound != before.Inbound+len(client.addrs) {
			err = fmt.Errorf("they went past the proxy: inbound relayed before %d, after %d", before.Inbound, after.Inbound)
		}
		return "seen as " + join(client.addrs, " and "), err
	}
}

// listens reads in the pod which of the proxy's ports are listened on.
func (s *story) listens(p *pod) look {
	return func(context.Context) (string, error) {
		var ports []int
		err := p.net.Handle.Do(func() (err error) {
			ports, err = listening()
			return err
		})
		if err == nil && !slices.Equal(ports, []int{outboundPort, inboundPort, hbonePort, dnsPort}) {
			err = fmt.Errorf("listened on: %v", ports)
		}
		return "on " + join(ports, " "), err
	}
}

// resolves asks a name server that does not exist, and gets the node's answer.
func (s *story) resolves(p *pod) look {
	return func(ctx context.Context) (string, error) {
		addr, err := resolve(ctx, p.net, "server.demo")
		if err == nil && addr != gateway4 {
			err = fmt.Errorf("asked %s, and got %s instead of %s", nowhere.Addr(), addr, gateway4)
		}
		if err != nil {
			return "", err
		}
		err = await(ctx, func(ctx context.Context) error { // it answers first, and counts then
			now, err := s.counters(ctx, p)
			if err == nil && now.DNS == 0 {
				err = errors.New("the proxy has not counted a query")
			}
			return err
		})
		return fmt.Sprintf("asked %s, where nobody is; got %s", nowhere.Addr(), addr), err
	}
}

// nowhere is the name server that a pod asks: an address that nobody has.
var nowhere = netip.MustParseAddrPort("192.0.2.53:53")

func resolve(ctx context.Context, n *netlab.NS, name string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return netlab.Resolve(ctx, name, func(ctx context.Context, network string) (net.Conn, error) {
		return n.Dial(ctx, network, nowhere.String())
	})
}

// lives says something over a connection that was opened before.
func (s *story) lives(c *conversation) look {
	return func(context.Context) (string, error) {
		if err := c.say(); err != nil {
			return "", fmt.Errorf("it broke: %w", err)
		}
		return fmt.Sprintf("%s still talks, both ways", c.local()), nil
	}
}

// refused is a pod that does not start because there is no proxy.
func (s *story) refused(p *pod, reason *string) look {
	return func(ctx context.Context) (string, error) {
		began := time.Now()
		err := s.runtime.start(ctx, p)
		if err == nil {
			return "", errors.Join(errors.New("it has started, in the clear"), p.stop(ctx))
		}
		const noProxy = 101
		var refusal *types.Error
		if !errors.As(err, &refusal) || refusal.Code != noProxy {
			return "", fmt.Errorf("it did not start, but for another reason: %w", err)
		}
		*reason = err.Error()
		return fmt.Sprintf("CNI ADD failed with code %d after %s", refusal.Code, rounded(time.Since(began))), nil
	}
}

// closed is a captured pod while no proxy listens: it has no network rather than
// an open one.
func (s *story) closed(p *pod) look {
	return func(ctx context.Context) (string, error) {
		c, err := converse(ctx, p.net, s.outside())
		if err == nil {
			defer c.close()
			return "", fmt.Errorf("%s got out: the server saw %s", p.name, c.Peer)
		}
		if !errors.Is(err, unix.ECONNREFUSED) {
			return "", fmt.Errorf("not refused, but: %w", err)
		}
		return p.name + " → web server: connection refused", nil
	}
}

// startsCaptured starts a pod as the kubelet would, at its next try, and connects.
func (s *story) startsCaptured(p *pod) look {
	return func(ctx context.Context) (string, error) {
		// The kubelet's next try comes 12 seconds later, when the proxy has connected.
		if err := s.awaitProxy(ctx); err != nil {
			return "", err
		}
		if err := s.runtime.start(ctx, p); err != nil {
			return "", err
		}
		_, err := s.outbound(p)(ctx)
		return fmt.Sprintf("CNI ADD %s, first connection proxied", rounded(p.took)), err
	}
}

// drains says something over a proxied connection of a pod that is being released,
// ends it, and waits for the end of the release.
func (s *story) drains(p *pod, c *conversation) look {
	return func(ctx context.Context) (string, error) {
		began := time.Now()
		for time.Since(began) < time.Second { // longer than the grace: it is the connection that keeps the release waiting
			if err := c.say(); err != nil {
				return "", fmt.Errorf("it broke %s after the label went: %w", rounded(time.Since(began)), err)
			}
			now, err := s.state(ctx, p)
			if err != nil {
				return "", err
			}
			if now.Reason != "Draining" {
				return "", fmt.Errorf("the release went on (%s) while the connection was open", now.Reason)
			}
		}
		said := c.count
		c.close()
		_, err := s.becomes(ctx, p, "NotCaptured", "NotLabelled")
		return fmt.Sprintf("%d lines each way before the app closed it", said), err
	}
}

// untouched finds nothing of ours in a pod's namespace.
func (s *story) untouched(p *pod) look {
	return func(context.Context) (string, error) {
		found, err := traces(p.net)
		if err == nil && len(found) > 0 {
			err = errors.New(strings.Join(found, "; "))
		}
		return "no nft table, no ip rule, no route, no listener", err
	}
}

// settles waits until the agent's own view is the story's.
func (s *story) settles(ctx context.Context, want map[string]string) error {
	return await(ctx, func(ctx context.Context) error {
		if err := s.agent.Alive(); err != nil {
			return err
		}
		r, err := s.status(ctx)
		if err != nil {
			return err
		}
		for _, p := range r.Pods {
			if p.State != want[p.Name] {
				return fmt.Errorf("%s is %s (%s), not %s", p.Name, p.State, p.Reason, want[p.Name])
			}
		}
		if len(r.Pods) != len(want) {
			return fmt.Errorf("%d pods are known, not %d", len(r.Pods), len(want))
		}
		return nil
	})
}

// allAsIntended compares the agent's own view with the story's.
func (s *story) allAsIntended(want map[string]string) look {
	return func(ctx context.Context) (string, error) {
		return "3 captured, 1 not, as their labels say", s.settles(ctx, want)
	}
}

// showStatus runs the command for people and passes its output on.
func (s *story) showStatus(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, waitPatience)
	defer cancel()
	out, err := exec.CommandContext(ctx, filepath.Join(s.bin, "fairlead"), "status").CombinedOutput()
	s.printf("\n   $ fairlead status\n")
	for line := range strings.Lines(string(out)) {
		s.printf("%s\n", strings.TrimRight("   "+line, " \n"))
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 1 {
		return nil // it says by its exit code what the check has said
	}
	return err
}

// join lists values for people.
func join[T any](values []T, separator string) string {
	texts := make([]string, len(values))
	for i, value := range values {
		texts[i] = fmt.Sprint(value)
	}
	return strings.Join(texts, separator)
}

func rounded(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
