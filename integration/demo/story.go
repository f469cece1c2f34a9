package demo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// errStuck ends a story whose next part makes no sense after what has failed.
var errStuck = errors.New("what comes next needs what has just failed")

// tell tells the whole story.
func (s *story) tell(ctx context.Context) error {
	for _, chapter := range []func(context.Context) error{
		s.unlabelled, s.labelledAtCreation, s.labelledWhileRunning, s.withoutProxy, s.released,
		s.flushed, s.agentKilled, s.proxyReplaced, s.atTheEnd,
	} {
		if err := chapter(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (s *story) unlabelled(ctx context.Context) error {
	s.step(1, "A pod without the label: left alone",
		`The runtime starts the pod "plain": libcni executes bridge, host-local and fairlead-cni. `+
			`fairlead-cni asks the agent, and the agent says that this pod is not meant to be captured.`)
	plain, err := s.create("plain", false)
	if err != nil {
		return err
	}
	if !s.check(ctx, "plain starts", s.starts(plain)) {
		return errStuck
	}
	s.check(ctx, "it reaches the web server directly", s.direct(plain))
	s.check(ctx, "nothing of ours is in its namespace", s.untouched(plain))
	return nil
}

func (s *story) labelledAtCreation(ctx context.Context) error {
	s.step(2, "Labelled at creation: captured from the first packet",
		`The pods "server" and "client" carry `+modeLabel+`=ambient. Before either starts, its namespace has the rules, `+
			`and the node proxy, which was handed the namespace, listens in it: so the very first connection, made right after ADD as an init container would, is captured. `+
			`A proxied connection is known by the tag (DSCP 0x2e) that the server sees on its packets, and by the proxy's own count.`)
	server, err := s.create("server", true)
	if err != nil {
		return err
	}
	client, err := s.create("client", true)
	if err != nil {
		return err
	}
	if !s.check(ctx, "server starts", s.starts(server)) || !s.check(ctx, "client starts", s.starts(client)) {
		return errStuck
	}
	s.check(ctx, "its first connection is captured", s.outbound(client))
	s.check(ctx, "the server sees the client's address", s.addressKept(client, server))
	s.check(ctx, "the proxy listens inside the pod", s.listens(client))
	s.check(ctx, "DNS to any address is answered by the proxy", s.resolves(client))
	return nil
}

func (s *story) labelledWhileRunning(ctx context.Context) error {
	s.step(3, "Labelled while running: no restart, no connection lost",
		`"plain" holds a connection open, made in the clear. Now it gets the label. That connection stays in the clear, which status calls OldConnections; every new one is captured.`)
	plain, client := s.pods["plain"], s.pods["client"]
	old, err := converse(ctx, plain.net, s.outside())
	if err != nil {
		return err
	}
	defer old.close()
	if err := old.say(); err != nil {
		return err
	}
	s.check(ctx, "labelled, it is captured", func(ctx context.Context) (string, error) {
		began := time.Now()
		if err := s.write(plain, true); err != nil {
			return "", err
		}
		now, err := s.becomes(ctx, plain, "Captured")
		return fmt.Sprintf("%s (%s), %s after the label", now.State, now.Reason, rounded(time.Since(began))), err
	})
	s.check(ctx, "new connections out of it are captured", s.outbound(plain))
	s.check(ctx, "new connections into it are captured", s.addressKept(client, plain))
	s.check(ctx, "the connection from before lives", s.lives(old))
	return nil
}

func (s *story) withoutProxy(ctx context.Context) error {
	s.step(4, "No proxy: nothing starts in the clear, and we say why",
		`The node proxy is stopped. Then the labelled pod "late" is to start, and later the proxy comes back.`)
	if err := s.proxy.End(ctx, unix.SIGTERM); err != nil {
		return err
	}
	late, err := s.create("late", true)
	if err != nil {
		return err
	}
	var reason string
	s.check(ctx, "late does not start", s.refused(late, &reason))
	if reason != "" {
		s.printf("     the runtime's error, which kubectl describe pod shows:\n")
		s.paragraph(yellow, "       ", "       ", reason)
	}
	s.check(ctx, "captured pods are closed meanwhile, not open", s.closed(s.pods["client"]))
	s.check(ctx, "with the proxy back, late starts captured", func(ctx context.Context) (string, error) {
		if err := s.startProxy(); err != nil {
			return "", err
		}
		return s.startsCaptured(late)(ctx)
	})
	return nil
}

func (s *story) released(ctx context.Context) error {
	s.step(5, "Unlabelled: released without a cut, and without a trace",
		`"plain" holds a connection open, this time through the proxy. Its label is taken away.`)
	plain := s.pods["plain"]
	if _, err := s.becomes(ctx, plain, "Captured"); err != nil {
		return err
	}
	old, err := converse(ctx, plain.net, s.outside())
	if err != nil {
		return err
	}
	defer old.close()
	if !old.Tagged {
		return errors.New("the connection that was to be drained does not go through the proxy")
	}
	if err := s.write(plain, false); err != nil {
		return err
	}
	if _, err := s.becomes(ctx, plain, "NotCaptured", "Draining"); err != nil {
		return err
	}
	s.check(ctx, "new connections are direct at once", s.direct(plain))
	s.check(ctx, "the proxied connection is drained, not cut", s.drains(plain, old))
	s.check(ctx, "nothing of ours is left in its namespace", s.untouched(plain))
	return nil
}

func (s *story) flushed(ctx context.Context) error {
	s.step(6, "Rules flushed by somebody else: seen, and put back",
		`Somebody deletes every nft rule in "client", as nft flush ruleset does.`)
	client := s.pods["client"]
	s.check(ctx, "the rules are put back", s.repaired(client))
	s.check(ctx, "connections after that are captured", s.outbound(client))
	return nil
}

// asLabelled is how the pods are from here on.
var asLabelled = map[string]string{
	"plain": "NotCaptured", "server": "Captured", "client": "Captured", "late": "Captured",
}

func (s *story) agentKilled(ctx context.Context) error {
	s.step(7, "The agent killed: nothing stops, and its successor adopts the pods",
		`"client" holds a connection to "server" open, and makes others all the time. The agent is killed (-9), and later started again. `+
			`What redirects is the kernel, and what listens is the proxy: neither needs the agent to go on.`)
	client, server := s.pods["client"], s.pods["server"]
	old, err := converse(ctx, client.net, netip.AddrPortFrom(server.addrs[0], webPort))
	if err != nil {
		return err
	}
	defer old.close()
	s.traffic = begin(ctx, 2, s.trips(client)...)
	defer func() { _ = s.traffic.stop() }() // a check has said what of it failed
	if err := s.agent.End(ctx, unix.SIGKILL); err != nil {
		return err
	}
	s.check(ctx, "while it is away pods stay captured", s.outbound(s.pods["late"]))
	if !s.check(ctx, "started again, it adopts all of them", s.adopts(asLabelled)) {
		return errStuck
	}
	s.check(ctx, "no connection was refused or reset", unharmed(s.traffic))
	s.check(ctx, "the one that was open all the time lives", s.lives(old))
	return nil
}

func (s *story) proxyReplaced(ctx context.Context) error {
	s.step(8, "The node proxy replaced under traffic, again and again",
		`All captured pods connect all the time. A new node proxy starts, is handed all pods, and listens in them beside the old one, which is then told to end: it steers what is new to the other's sockets, `+
			`accepts what is queued, lets its connections end (5 s at most), and goes. Then the next one.`)
	client, server, late := s.pods["client"], s.pods["server"], s.pods["late"]
	trips := s.trips(client, server, late)
	for _, addr := range server.addrs {
		trips = append(trips, trip{client, netip.AddrPortFrom(addr, webPort)}, trip{late, netip.AddrPortFrom(addr, webPort)})
	}
	s.traffic = begin(ctx, 2, trips...)
	defer func() { _ = s.traffic.stop() }() // a check has said what of it failed
	if !s.check(ctx, "replaced: no connection is refused or reset", s.replaced(s.traffic)) {
		return errStuck
	}
	s.check(ctx, "the last proxy carries what comes now", s.outbound(client))
	return nil
}

func (s *story) atTheEnd(ctx context.Context) error {
	s.step(9, "What fairlead status says of it all", "This is the command's own output.")
	s.check(ctx, "every pod is as it should be", s.allAsIntended(asLabelled))
	return s.showStatus(ctx)
}
