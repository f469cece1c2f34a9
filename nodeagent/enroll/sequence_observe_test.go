package enroll_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/enroll"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// observe describes the node as it is.
func (w *world) observe() ([]string, error) {
	var lines []string
	for _, p := range w.agent.reconciler.Report() {
		lines = append(lines, reportLine(p))
	}
	for _, s := range w.slots {
		b := s.box
		if b == nil {
			continue
		}
		kernel, err := b.look(b.form())
		if err != nil {
			return nil, err
		}
		lines = append(lines, kernel, b.connection())
	}
	host, err := hostLine(w.self)
	if err != nil {
		return nil, err
	}
	lines = append(lines, host)
	probes, err := exempted(w.probing.Handle)
	if err != nil {
		return nil, err
	}
	records, err := w.records()
	if err != nil {
		return nil, err
	}
	return sorted(slices.Concat(lines, probes, records, w.proxyLines())), nil
}

// exempted lists the addresses whose probes are exempt, and the pods that they are for.
func exempted(host *netns.Handle) (lines []string, err error) {
	err = nfTables(host, func(conn *nftables.Conn) error {
		set, err := conn.GetSetByName(&nftables.Table{Family: nftables.TableFamilyINet, Name: ruleset.Table}, "probed4")
		if errors.Is(err, unix.ENOENT) {
			return nil // not yet
		}
		if err != nil {
			return err
		}
		elements, err := conn.GetSetElements(set)
		for _, e := range elements {
			addr, _ := netip.AddrFromSlice(e.Key)
			lines = append(lines, fmt.Sprintf("probes of %s exempt, for %s", addr, e.Comment))
		}
		return err
	})
	return lines, err
}

// records reads what is on record, as nobody does who takes it over: what is being
// written is left alone.
func (w *world) records() ([]string, error) {
	var lines []string
	paths, err := filepath.Glob(filepath.Join(w.dir.pods(), "[^.]*"))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		var r enroll.Record
		if err := errors.Join(err, json.Unmarshal(text, &r)); err != nil {
			return nil, err
		}
		lines = append(lines, recordLine(r))
	}
	return lines, err
}

func (b *box) connection() string {
	if b.conn == nil {
		return b.container + " has no connection"
	}
	if err := b.conn.ping(patience); err != nil {
		return fmt.Sprintf("%s's connection: %v", b.container, err)
	}
	return b.container + "'s connection lives"
}

func reportLine(p status.Pod) string {
	line := fmt.Sprintf("%s %s ", p.Name, p.UID)
	rules := fmt.Sprintf("rules %s in %s", p.Rules.State, p.Netns.ContainerID)
	if p.Rules.DNS {
		rules = fmt.Sprintf("rules %s+dns in %s", p.Rules.State, p.Netns.ContainerID)
	}
	listeners := "none"
	switch l := p.Listeners; {
	case l.Ready() && l.DNS:
		listeners = "all"
	case l.Outbound || l.Inbound || l.HBONE || l.DNS:
		listeners = fmt.Sprintf("%+v", l)
	}
	switch {
	case !p.Netns.Known && p.State == status.NotCaptured:
		return line + fmt.Sprintf("%s %s", p.State, p.Reason)
	case !p.Netns.Known && p.State == status.Pending:
		return line + "Pending, not started" // the reason is of its last start
	case p.State == status.NotCaptured:
		return line + fmt.Sprintf("%s %s, %s", p.State, p.Reason, rules)
	case (p.State == status.Pending || p.State == status.Bypassing) && p.Reason == status.NoProxy:
		return line + "waiting for a proxy, " + rules // which of the two is a matter of time
	}
	line += fmt.Sprintf("%s %s, %s, listeners %s", p.State, p.Reason, rules, listeners)
	for _, ack := range p.Proxies {
		line += ", " + ack.State
	}
	return line
}

func recordLine(r enroll.Record) string {
	form := "none"
	if r.Applied.Form != 0 {
		form = r.Applied.Form.String()
	}
	line := fmt.Sprintf("%s on record: in %s, capture %t, touched %t, %s",
		r.Attachment.UID, r.Attachment.ContainerID, r.Decision.Capture, r.Touched, form)
	if r.Adding {
		line += ", in its ADD"
	}
	return line
}

// proxyLines is what the proxy has.
func (w *world) proxyLines() []string {
	if w.proxy == nil {
		return nil
	}
	var lines []string
	ready := "ready"
	if err := w.proxy.Ready(); err != nil {
		ready = err.Error()
	}
	line := "proxy " + ready
	for _, session := range w.agent.server.Sessions() {
		line += ", " + string(session.State)
	}
	lines = append(lines, line)
	for uid, workload := range w.proxy.State().WorkloadState {
		open := len(workload.Connections.Inbound) + len(workload.Connections.Outbound)
		text := fmt.Sprintf("%s served by the proxy, %d connections", uid, open)
		if workload.State != "Up" {
			text += ", " + workload.State + " " + workload.Error
		}
		lines = append(lines, text)
	}
	return lines
}
