// Command nodeproxy is a node proxy to run in place of ztunnel, for demonstrations
// and tests, and for people who write one: see package nodeproxy.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/nodeproxy"
	"github.com/fairlead-mesh/fairlead/ztunnelproto"
)

const usage = `usage: nodeproxy [flags]

Serves the pods that a node's agent hands over, in place of ztunnel, until SIGTERM.

`

// version is set by the build.
var version = "of no release"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintf(os.Stderr, "nodeproxy: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stderr io.Writer) error {
	cfg, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	proxy, err := nodeproxy.New(cfg)
	if err != nil {
		return err
	}
	cfg.Logger.Info("nodeproxy", "version", version)
	return proxy.Run(ctx)
}

func parse(args []string, stderr io.Writer) (cfg nodeproxy.Config, err error) {
	fs := flag.NewFlagSet("nodeproxy", flag.ContinueOnError)
	fs.StringVar(&cfg.ZDS, "zds", ztunnelproto.DefaultSocket, "the agent's `socket`")
	fs.StringVar(&cfg.Admin, "admin", "127.0.0.1:15000", "`address` of /config_dump and /healthz/ready; empty: none")
	fs.StringVar(&cfg.Readiness, "readiness", "", "a second such `address`, as :15021, for probes")
	fs.BoolVar(&cfg.RefuseUntagged, "refuse-untagged", false, "refuse captured inbound connections that no proxy has opened")
	fs.DurationVar(&cfg.Retry, "retry", 0, "how often to try a pod again that could not be served (default 5s)")
	fs.DurationVar(&cfg.Drain, "drain", 0, "how long connections may go on after SIGTERM (default 5s)")
	captureDNS := fs.Bool("dns-capture", true, "listen for DNS in pods")
	fs.Func("dns", "`address` of a name server to forward to, may be repeated (default those of /etc/resolv.conf)", func(s string) error {
		server, err := nodeproxy.ParseNameServer(s)
		cfg.DNS = append(cfg.DNS, server)
		return err
	})
	fs.DurationVar(&cfg.DNSTimeout, "dns-timeout", 0, "how long a name server may take before the next is asked (default 2s)")
	verbose := fs.Bool("v", false, "log connections that are refused or break")
	fs.StringVar(&cfg.Faults.Nack, "fault-nack", "", "refuse to serve pods, with this `text`")
	fs.BoolVar(&cfg.Faults.NoAck, "fault-no-ack", false, "do not answer requests")
	fs.DurationVar(&cfg.Faults.SlowAck, "fault-slow-ack", 0, "answer each request this much later")
	fs.StringVar(&cfg.Faults.UID, "fault-uid", "", "limit these three to the pod with this `uid`")
	fs.BoolVar(&cfg.Faults.NoHello, "fault-no-hello", false, "do not say hello")
	fs.IntVar(&cfg.Faults.DieAfterAcks, "fault-die-after-acks", 0, "die after `n` acks")

	fs.SetOutput(io.Discard) // main says what is wrong, and that alone
	err = fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fs.SetOutput(stderr)
		fmt.Fprint(stderr, usage)
		fs.PrintDefaults()
	case err == nil && fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if err != nil {
		return cfg, err
	}
	level := slog.LevelInfo
	if *verbose {
		level = slog.LevelDebug
	}
	cfg.Logger = slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	switch {
	case !*captureDNS:
		cfg.DNS = nil
	case cfg.DNS == nil:
		cfg.DNS, err = nodeproxy.NameServers("/etc/resolv.conf")
	}
	return cfg, err
}
