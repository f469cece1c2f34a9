package enroll_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// The model of a node: what there is, and what each pod should come to.

// A slot is a pod's name and what there is of it: at most one object and, once an
// event is over, at most one sandbox.
type slot struct {
	name   string
	object *object
	box    *box
}

// An object is the API's.
type object struct {
	uid      string
	labelled bool
}

// A box is a sandbox that the runtime has told an agent of.
type box struct {
	space
	capture    bool // as the labels say, or as they did when the object was last seen
	redirected bool // captured by a proxy, and not released since
	syn        bool // the redirects leave older connections alone
	loDown     bool // and nothing has brought it up
	conn       *held
	gap        *held // was opened while the rules were away
	over       bool  // the agent has been told of its end, or of another in its place
}

// gone reports whether the object of a pod that runs is not there.
func (s *slot) gone() bool { return s.box != nil && s.object == nil }

// draining reports whether a released pod's connection is still the proxy's.
func (b *box) draining() bool { return !b.capture && b.conn != nil && b.conn.proxied }

// A phase is what a pod has come to. The matrix has a column for each.
type phase string

// The phases. A pod with no sandbox is one of the first four.
const (
	nothing        phase = "nothing"
	plainObject    phase = "plain object"
	labelledObject phase = "labelled object"
	unservedObject phase = "labelled object, no proxy"

	plain          phase = "plain"
	plainConnected phase = "plain, connected"
	plainGone      phase = "plain, object gone"

	captured          phase = "captured"
	capturedConnected phase = "captured, connected"
	capturedOld       phase = "captured, old connection"
	capturedGone      phase = "captured, object gone"

	blocked     phase = "blocked"
	blockedOld  phase = "blocked, old connection"
	blockedGone phase = "blocked, object gone"

	waiting          phase = "waiting"
	waitingConnected phase = "waiting, connected"
	waitingGone      phase = "waiting, object gone"

	draining     phase = "draining"
	drainingGone phase = "draining, object gone"
)

var phases = []phase{
	nothing, plainObject, labelledObject, unservedObject,
	plain, plainConnected, plainGone,
	captured, capturedConnected, capturedOld, capturedGone,
	blocked, blockedOld, blockedGone,
	waiting, waitingConnected, waitingGone,
	draining, drainingGone,
}

// phaseOf is a pod's phase once its node has settled.
func phaseOf(s *slot, proxied bool) phase {
	b := s.box
	switch {
	case b == nil && s.object == nil:
		return nothing
	case b == nil && !s.object.labelled:
		return plainObject
	case b == nil && proxied:
		return labelledObject
	case b == nil:
		return unservedObject
	case b.draining():
		return pick(s, draining, "", "", drainingGone)
	case !b.capture:
		return pick(s, plain, "", plainConnected, plainGone)
	case proxied:
		return pick(s, captured, capturedConnected, capturedOld, capturedGone)
	case b.redirected:
		return pick(s, blocked, "", blockedOld, blockedGone)
	}
	return pick(s, waiting, "", waitingConnected, waitingGone)
}

// pick chooses by the pod's connection, through the proxy or direct.
func pick(s *slot, none, throughProxy, direct, gone phase) phase {
	switch {
	case s.gone():
		return gone
	case s.box.conn == nil || none == draining:
		return none
	case s.box.conn.proxied:
		return throughProxy
	}
	return direct
}

// follow brings the model to what the node comes to.
func (w *world) follow() {
	for _, s := range w.slots {
		b := s.box
		if b == nil {
			continue
		}
		if s.object != nil {
			b.capture = s.object.labelled
		}
		switch {
		case b.capture && w.proxy != nil:
			b.redirected, b.loDown = true, false
			b.syn = b.conn != nil && !b.conn.proxied
		case b.capture && b.redirected, b.draining():
			b.loDown = false
		case b.capture: // marks and routes, and lo with them
			b.loDown, b.syn = false, false
		default:
			b.redirected, b.syn = false, false
		}
	}
}

// form is the form of the rules that should be in the pod's namespace.
func (b *box) form() string {
	switch {
	case b.draining(), b.capture && !b.redirected:
		return "marks"
	case !b.capture:
		return "none"
	case b.syn:
		return "syn"
	}
	return "full"
}

// expect is what observe should come to.
func (w *world) expect() []string {
	var lines []string
	proxied := w.proxy != nil
	for _, s := range w.slots {
		lines = append(lines, w.expectReport(s, proxied)...)
		if b := s.box; b != nil {
			lines = append(lines, b.expectKernel(proxied), b.expectRecord(), b.expectConnection())
			if proxied && (b.capture || b.draining()) {
				lines = append(lines, fmt.Sprintf("%s served by the proxy, %d connections", b.uid, count(b.conn != nil && b.conn.proxied)))
			}
		}
	}
	for _, s := range w.slots {
		if b := s.box; b != nil && (b.redirected || b.draining()) {
			lines = append(lines, b.exemption())
		}
	}
	lines = append(lines, w.host)
	if proxied {
		lines = append(lines, "proxy ready, synced")
	}
	return sorted(lines)
}

func (s space) exemption() string { return fmt.Sprintf("probes of %s exempt, for %s", s.addr, s.uid) }

func (w *world) expectReport(s *slot, proxied bool) []string {
	say := func(format string, args ...any) []string {
		return []string{fmt.Sprintf("%s %s ", s.name, w.uidOf(s)) + fmt.Sprintf(format, args...)}
	}
	b := s.box
	reason := status.OK
	switch {
	case b == nil && s.object == nil:
		return nil
	case b == nil && s.object.labelled:
		return say("Pending, not started")
	case b == nil:
		return say("NotCaptured NotLabelled")
	case b.draining():
		return say("NotCaptured Draining, rules marks in %s", b.container)
	case !b.capture && s.gone():
		return say("NotCaptured ObjectGone, rules none in %s", b.container)
	case !b.capture:
		return say("NotCaptured NotLabelled, rules none in %s", b.container)
	case !proxied && b.redirected:
		return say("Blocked NoProxy, rules %s+dns in %s, listeners none", b.form(), b.container)
	case !proxied:
		return say("waiting for a proxy, rules marks in %s", b.container)
	case b.conn != nil && !b.conn.proxied:
		reason = status.ReasonOldConnections
	}
	if s.gone() {
		reason = status.ObjectGone
	}
	return say("Captured %s, rules %s+dns in %s, listeners all, acked", reason, b.form(), b.container)
}

func (b *box) expectKernel(proxied bool) string {
	lo, ours, listeners := "up", "ours", "none"
	if b.loDown {
		lo = "down"
	}
	if b.form() == "none" {
		ours = "none"
	}
	if proxied && (b.capture || b.draining()) {
		listeners = "all"
	}
	return fmt.Sprintf("%s: rules %s, routing %s, lo %s, listeners %s", b.container, b.form(), ours, lo, listeners)
}

func (b *box) expectRecord() string {
	form := b.form()
	return fmt.Sprintf("%s on record: in %s, capture %t, touched %t, %s", b.uid, b.container, b.capture, form != "none", form)
}

func (b *box) expectConnection() string {
	if b.conn == nil {
		return b.container + " has no connection"
	}
	return b.container + "'s connection lives"
}

func (w *world) uidOf(s *slot) string {
	if s.box != nil {
		return s.box.uid
	}
	return s.object.uid
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

func sorted(lines []string) []string {
	slices.Sort(lines)
	return lines
}

// differ says how two lists of lines do.
func differ(want, got []string) string {
	var out strings.Builder
	for _, line := range want {
		if !slices.Contains(got, line) {
			fmt.Fprintln(&out, "  want:", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			fmt.Fprintln(&out, "  got: ", line)
		}
	}
	return out.String()
}
