package demo

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/integration/netlab"
)

func nothing(context.Context) error { return nil }

func stopAgent(ctx context.Context, s *story) (mend, error) {
	return withoutAgent(ctx, s, s.pods["client"].net, func() error { return nil })
}

// passConntrack takes what a pod sends past conntrack, and so past every redirect, as
// a NOTRACK rule of an app's would.
func passConntrack(_ context.Context, s *story) (mend, error) {
	late := s.pods["late"].net
	table := &nftables.Table{Family: nftables.TableFamilyINet, Name: "sabotage"}
	return func(context.Context) error {
			return late.Handle.Do(func() error {
				conn := &nftables.Conn{}
				conn.DelTable(table)
				return conn.Flush()
			})
		}, late.Handle.Do(func() error {
			conn := &nftables.Conn{}
			conn.AddTable(table)
			chain := conn.AddChain(&nftables.Chain{
				Name: "output", Table: table, Type: nftables.ChainTypeFilter,
				Hooknum: nftables.ChainHookOutput, Priority: nftables.ChainPriorityRef(-400),
			})
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Notrack{}}})
			return conn.Flush()
		})
}

func misspellConfig(_ context.Context, s *story) (mend, error) {
	path := filepath.Join(dir, "config.yaml")
	return func(ctx context.Context) error {
		if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
			return err
		}
		if err := s.startAgent(); err != nil {
			return err
		}
		return s.settles(ctx, asLabelled)
	}, os.WriteFile(path, []byte(config+"sweepIntervall: 1s\n"), 0o600)
}

// resetTraffic resets connections until one was open.
func resetTraffic(ctx context.Context, s *story) (mend, error) {
	return nothing, netlab.Await(ctx, waitPatience, time.Millisecond, func(context.Context) error {
		s.web.reset()
		if len(s.traffic.failures()) == 0 {
			return errors.New("no connection was reset")
		}
		return nil
	})
}

func resetInPod(_ context.Context, s *story) (mend, error) {
	s.pods["server"].app.reset()
	return nothing, nil
}

func killReplaced(_ context.Context, s *story) (mend, error) {
	s.goodbye = unix.SIGKILL
	return func(context.Context) error { s.goodbye = unix.SIGTERM; return nil }, nil
}
