package hostnet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/nlconn"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
)

// want is the table that is to stand in the kernel. e.mu is held.
func (e *Exemption) want() (table, error) {
	if e.lines == nil || !e.linesFor.same(e.status.Kubelet) {
		lines, err := e.config.lines(e.status.Kubelet)
		if err != nil {
			return table{}, err
		}
		e.lines, e.linesFor = lines, e.status.Kubelet
	}
	t := table{lines: e.lines, addresses: e.pods.addresses.owners()}
	if e.status.Unguarded == "" {
		t.guards = e.pods.links.owners()
	}
	return t, nil
}

// apply makes the kernel's table the wanted one. e.mu is held.
func (e *Exemption) apply(ctx context.Context) error {
	before := e.copied()
	err := e.converge(ctx)
	if err != nil {
		e.have = nil
	}
	switch {
	case err == nil:
		e.status.Problem = ""
	case ctx.Err() == nil: // else nobody waits for it any more
		e.status.Problem = err.Error()
	}
	e.began = e.began || err == nil
	e.tell(before)
	return err
}

func (e *Exemption) tell(before Status) {
	now := e.copied()
	same := now.Kubelet == before.Kubelet && now.Repairs == before.Repairs &&
		now.Unguarded == before.Unguarded && now.Problem == before.Problem
	if !same && e.config.Changed != nil {
		e.config.Changed(now)
	}
}

// errStale says that the kernel's table is not the one that was taken for it.
var errStale = errors.New("the table was changed by somebody else")

// converge writes what differs, and begins again if that shows that the difference was
// another one.
func (e *Exemption) converge(ctx context.Context) error {
	const most = 5
	var err error
	e.fresh = false
	for range most + len(e.pods.links) {
		if err = e.once(ctx); !errors.Is(err, errStale) {
			return err
		}
		e.have = nil
	}
	return err
}

func (e *Exemption) once(ctx context.Context) error {
	if e.have == nil {
		if err := e.look(ctx); err != nil {
			return err
		}
	}
	want, err := e.want()
	if err != nil {
		return err
	}
	if !slices.Equal(e.have.lines, want.lines) {
		steps, err := replacement(e.config.chains(e.status.Kubelet), want)
		if err != nil {
			return err
		}
		if err := e.config.within(e.space, func() error { return e.run(ctx, steps) }); err != nil {
			return err
		}
		e.have = &table{lines: want.lines, addresses: want.addresses, guards: map[string]string{}}
	}
	return e.adjust(ctx, want)
}

// look reads what stands there.
func (e *Exemption) look(ctx context.Context) error {
	got, number, err := read(ctx, e.conn)
	if err != nil {
		return err
	}
	if !e.settled {
		e.pods.adopt(got)
	}
	want, err := e.want()
	if err != nil {
		return err
	}
	if drift := got.differences(want); e.began && len(drift) > 0 {
		const most = 10
		e.status.Repairs++
		e.status.Drift, e.status.By = drift[:min(len(drift), most)], e.by
	}
	e.have, e.number, e.by, e.fresh = &got, number, "", true
	return nil
}

// mostSteps is how many messages a transaction has, so that all its bytes fit into the
// socket's buffer.
const mostSteps = 400

// adjust changes the addresses and the guards, and not the rules. The addresses are
// changed in one transaction, so that none that stays is ever absent.
func (e *Exemption) adjust(ctx context.Context, want table) error {
	gone, more := differ(e.have.addresses, want.addresses)
	steps := slices.Concat(elements(unix.NFT_MSG_DELSETELEM, gone), elements(unix.NFT_MSG_NEWSETELEM, more))
	for _, link := range e.have.idle {
		steps = append(steps, deleteGuard(link))
	}
	old, guards := differ(e.have.guards, want.guards)
	for _, link := range slices.Sorted(maps.Keys(old)) {
		steps = append(steps, deleteGuard(link))
	}
	for _, link := range slices.Sorted(maps.Keys(guards)) {
		added, err := addGuard(link, guards[link])
		if err != nil {
			return err
		}
		steps = append(steps, added...)
	}
	for some := range slices.Chunk(steps, mostSteps) {
		if err := e.run(ctx, some); err != nil {
			return err
		}
	}
	want.idle = nil
	e.have = &want
	return nil
}

// differ is what of have is not wanted, or by another comment, and what of want is not there.
func differ[K comparable](have, want map[K]string) (gone, more map[K]string) {
	gone, more = map[K]string{}, map[K]string{}
	for k, comment := range have {
		if now, ok := want[k]; !ok || now != comment {
			gone[k] = comment
		}
	}
	for k, comment := range want {
		if old, ok := have[k]; !ok || old != comment {
			more[k] = comment
		}
	}
	return gone, more
}

// run sends the steps as one transaction.
func (e *Exemption) run(ctx context.Context, steps []step) error {
	messages := make([]nlconn.Message, len(steps))
	for i := range steps {
		messages[i] = steps[i].message
	}
	i, err := e.conn.Batch(ctx, unix.NFNL_SUBSYS_NFTABLES, messages)
	if err == nil {
		return nil
	}
	if i < 0 {
		return e.failed(step{what: "the transaction"}, err)
	}
	return e.failed(steps[i], err)
}

// failed says what follows from the failure of a step.
func (e *Exemption) failed(failed step, err error) error {
	gone := errors.Is(err, unix.ENOENT)
	switch {
	case failed.guard != "" && errors.Is(err, unix.EOPNOTSUPP):
		e.status.Unguarded = fmt.Sprintf("%s: %v (Linux 5.10 has ingress chains of family inet)", failed.what, err)
		return errStale
	case failed.guard != "" && gone:
		if e.fresh { // else it may be the table that has gone
			e.pods.forget(failed.guard)
		}
		return errStale
	case gone, errors.Is(err, unix.EEXIST), errors.Is(err, unix.EBUSY):
		if e.have.lines != nil {
			return errStale
		}
	}
	return fmt.Errorf("cannot exempt health probes: %s in table inet %s: %w%s", failed.what, ruleset.Table, err, remedy(err))
}

func remedy(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return ": CAP_NET_ADMIN is needed, and no other process may own the table (flag owner)"
	case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EPROTONOSUPPORT):
		return ": the kernel needs nf_tables with the modules nft_ct, nft_nat, nft_chain_nat and nft_socket (Linux 5.13); without them choose another way for probes in the configuration"
	}
	return ""
}

func (e *Exemption) remove(ctx context.Context) error {
	e.have = nil
	_, err := e.conn.Batch(ctx, unix.NFNL_SUBSYS_NFTABLES, []nlconn.Message{message(unix.NFT_MSG_DELTABLE, 0, named(unix.NFTA_TABLE_NAME, ruleset.Table))})
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cannot remove table inet %s from the host's network namespace: %w%s", ruleset.Table, err, remedy(err))
	}
	return nil
}
