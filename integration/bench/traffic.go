package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/bench/figures"
	"github.com/fairlead-mesh/fairlead/integration/netlab"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

const (
	peerAddr   = "10.77.255.1"
	sinkPort   = 8000 // takes in what comes
	greetsPort = 8001 // sends a byte and hangs up
)

// traffic measures what a pod's outbound connections lose: from one namespace to
// another, over a veth pair, without rules; by the rules, which let it pass as the
// proxy's own; and, captured, through the reference proxy.
func (b *bencher) traffic(ctx context.Context) (measures []figures.Measure, err error) {
	n, err := b.startNode(ctx, "traffic", 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	p, err := newPod(0, "traffic")
	if err != nil {
		return nil, err
	}
	n.pods = append(n.pods, p)
	peer, err := netlab.Create("peer")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, peer.Close()) }()
	if err := netlab.Cable(
		netlab.Port{NS: p.net, Addrs: netlab.Prefixes(podAddr(0).String() + "/16")},
		netlab.Port{NS: peer, Addrs: netlab.Prefixes(peerAddr + "/16")}); err != nil {
		return nil, err
	}
	stop, err := serveTraffic(peer)
	if err != nil {
		return nil, err
	}
	defer stop()
	direct, err := b.run(ctx, p.net, 0)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(n.add(ctx, p), n.served(ctx)); err != nil {
		return nil, err
	}
	passing, err := b.run(ctx, p.net, int(ruleset.ProxyMark))
	if err != nil {
		return nil, err
	}
	proxied, err := b.run(ctx, p.net, 0)
	if err != nil {
		return nil, err
	}
	return compare(direct, passing, proxied), nil
}

// A flow is what went through.
type flow struct {
	gigabytes   float64 // a second, over one connection
	connections float64 // a second
}

func compare(direct, passing, proxied flow) []figures.Measure {
	note := "by the rules alone: marked as the proxy's own, so that every rule is passed and none redirects"
	var measures []figures.Measure
	for _, f := range []struct {
		name string
		flow
	}{{"by the rules alone", passing}, {"captured, through the reference proxy", proxied}} {
		measures = append(measures,
			figures.Measure{What: "throughput of one stream, " + f.name, Value: f.gigabytes, Unit: "GB/s", Note: note,
				Others: []figures.Other{{Name: "without rules", Value: direct.gigabytes}}},
			figures.Measure{What: "connections, one byte each, " + f.name, Value: f.connections, Unit: "/s", Note: note,
				Others: []figures.Other{{Name: "without rules", Value: direct.connections}}})
	}
	return measures
}

// serveTraffic starts the two servers.
func serveTraffic(n *netlab.NS) (stop func(), err error) {
	serve := map[int]func(net.Conn){
		sinkPort: func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }, // the client counts
		greetsPort: func(c net.Conn) {
			_, _ = c.Write([]byte{1}) // the client notices
		},
	}
	var listeners []net.Listener
	stop = func() {
		for _, l := range listeners {
			_ = l.Close() // nobody is served any more
		}
	}
	for port, handle := range serve {
		l, err := n.Listen(fmt.Sprintf("%s:%d", peerAddr, port))
		if err != nil {
			stop()
			return nil, err
		}
		listeners = append(listeners, l)
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return // closed
				}
				go func() {
					handle(c)
					_ = c.Close() // the client is satisfied
				}()
			}
		}()
	}
	return stop, nil
}

// run takes the medians of three runs.
func (b *bencher) run(ctx context.Context, n *netlab.NS, mark int) (flow, error) {
	var streams, rates []float64
	for range 3 {
		stream, err := b.stream(ctx, n, mark)
		if err != nil {
			return flow{}, err
		}
		rate, err := b.connect(ctx, n, mark)
		if err != nil {
			return flow{}, err
		}
		streams, rates = append(streams, stream), append(rates, rate)
	}
	return flow{middle(streams), middle(rates)}, nil
}

// stream sends as much as it can over one connection.
func (b *bencher) stream(ctx context.Context, n *netlab.NS, mark int) (float64, error) {
	conn, err := n.Dial(ctx, "tcp", fmt.Sprintf("%s:%d", peerAddr, sinkPort), netlab.Mark(mark))
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }() // what is lost was not counted on
	block := make([]byte, 256<<10)
	sent, began := 0, time.Now()
	for time.Since(began) < b.Sizes.Traffic {
		if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
			return 0, err
		}
		count, err := conn.Write(block)
		if err != nil {
			return 0, err
		}
		sent += count
	}
	return float64(sent) / time.Since(began).Seconds() / 1e9, nil
}

// connect opens connections, reads a byte of each and resets it, from a few
// goroutines. The sockets are made beforehand, all at once, in the namespace.
func (b *bencher) connect(ctx context.Context, n *netlab.NS, mark int) (float64, error) {
	const batch, clients = 200, 4
	connections, busy := 0, time.Duration(0)
	for busy < b.Sizes.Traffic {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		fds, err := openSockets(n, batch, mark)
		if err != nil {
			return 0, err
		}
		errs := make([]error, clients)
		took, _ := timed(func() error {
			var group sync.WaitGroup
			for client := range clients {
				group.Go(func() {
					for i := client; i < batch; i += clients {
						errs[client] = errors.Join(errs[client], greet(fds[i]))
					}
				})
			}
			group.Wait()
			return nil
		})
		if err := errors.Join(errs...); err != nil {
			return 0, err
		}
		connections, busy = connections+batch, busy+took
	}
	return float64(connections) / busy.Seconds(), nil
}

func openSockets(n *netlab.NS, count, mark int) ([]int, error) {
	var fds []int
	err := n.Handle.Do(func() error {
		for range count {
			fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			fds = append(fds, fd)
			err = errors.Join(
				unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark),
				// No TIME_WAIT: a second's connections would use up the ports.
				unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
				unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}),
				unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 5}))
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		for _, fd := range fds {
			err = errors.Join(err, unix.Close(fd))
		}
		return nil, fmt.Errorf("cannot open sockets in %s: %w", n.Name, err)
	}
	return fds, nil
}

// greet uses a socket up.
func greet(fd int) error {
	to := &unix.SockaddrInet4{Port: greetsPort, Addr: [4]byte(net.ParseIP(peerAddr).To4())}
	err := uninterrupted(func() error { return unix.Connect(fd, to) })
	if err == nil {
		var count int
		err = uninterrupted(func() (err error) {
			count, err = unix.Read(fd, make([]byte, 1))
			return err
		})
		if err == nil && count == 0 {
			err = errors.New("the connection ended before its byte")
		}
	}
	return errors.Join(err, unix.Close(fd))
}

// uninterrupted repeats a system call that a signal of Go's scheduler has ended: on a
// socket with a time-out the kernel does not. A connect that is repeated goes on with
// the one before.
func uninterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// middle is the median of a few values; of an even number, the lower of the two.
func middle(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}
