package enroll

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/fairlead-mesh/fairlead/iptables/route"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/sockets"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// A space is a namespace as a Kernel sees it.
type space struct {
	w         *world
	path      string
	open      int
	rules     string // what is applied, as text
	down      bool   // lo is
	missing   string // listeners that are not there: "tcp", "dns"
	proxied   int
	older     int // connections that bypass
	squatters []sockets.Squatter
	foreign   []string
	left      []string // what a release cannot remove
	changed   func(by string)
	looks     int              // at the listeners
	turns     int              // how often the rules were looked at
	closely   map[string][]int // the turns in which everything was looked at, by verb
	fail      map[string]error // by verb
	block     chan struct{}    // Apply hangs until it is closed
	gate      chan struct{}    // as does to open it
	slow      time.Duration    // Check takes so long
}

func (w *world) space(container string) *space {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.spaceOf(container)
}

// spaceOf is space where w.mu is held.
func (w *world) spaceOf(container string) *space {
	path := "/run/netns/" + container
	if w.spaces[path] == nil {
		w.spaces[path] = &space{w: w, path: path, fail: map[string]error{}, closely: map[string][]int{}}
	}
	return w.spaces[path]
}

// set changes a space while the reconciler may look at it.
func (s *space) set(change func()) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	change()
}

func describe(want ruleset.Config) string {
	text := want.Form.String()
	if want.CaptureDNS {
		text += "+dns"
	}
	if want.Ingress {
		text += "+ingress"
	}
	return text
}

func (s *space) Netns() *netns.Handle { return nil }

func (s *space) Fingerprint() string { return "print of " + s.rules }

func (s *space) Apply(_ context.Context, want ruleset.Config) error {
	s.w.mu.Lock()
	block := s.block
	s.w.mu.Unlock()
	if block != nil {
		<-block
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if err := cmp.Or(s.fail["apply"], s.w.step()); err != nil {
		return err
	}
	s.rules, s.down = describe(want), false
	s.w.note("apply %s", s.rules)
	return nil
}

// look notes how close a look at the space is. s.w.mu is held.
func (s *space) look(verb string, depth Depth) {
	if depth == Everything {
		s.closely[verb] = append(s.closely[verb], s.turns)
	}
}

func (s *space) Check(_ context.Context, want ruleset.Config, depth Depth) (string, error) {
	s.w.mu.Lock()
	slow := s.slow
	s.turns++
	s.look("check", depth)
	s.w.mu.Unlock()
	<-time.After(slow) // the bubble's clock
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if err := s.fail["check"]; err != nil {
		return "", err
	}
	if s.down {
		return route.LoopbackDown + "\nIPv4: the route over it is missing", s.fail["look"]
	}
	if s.rules != describe(want) {
		return "table inet fairlead is missing", s.fail["look"]
	}
	return "", s.fail["look"]
}

func (s *space) Expel(_ context.Context, want ruleset.Config) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if err := cmp.Or(s.fail["expel"], s.w.step()); err != nil {
		return err
	}
	if want.CaptureDNS {
		s.w.note("expel")
	} else {
		s.w.note("expel, DNS too")
	}
	return nil
}

func (s *space) Remove(context.Context) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if err := cmp.Or(s.fail["remove"], s.w.step()); err != nil {
		return err
	}
	s.rules = ""
	s.w.note("remove")
	return nil
}

func (s *space) Left(context.Context) ([]string, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return slices.Clone(s.left), s.fail["left"]
}

func (s *space) Listeners(context.Context) (status.Listeners, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if err := s.fail["listeners"]; err != nil {
		return status.Listeners{}, err
	}
	s.looks++
	tcp := s.missing != "tcp"
	return status.Listeners{Known: true, Outbound: tcp, Inbound: tcp, HBONE: tcp, DNS: s.missing != "dns"}, nil
}

func (s *space) Foreign(_ context.Context, depth Depth) ([]string, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.look("foreign", depth)
	return slices.Clone(s.foreign), s.fail["foreign"]
}

func (s *space) Squatters(_ context.Context, depth Depth) ([]sockets.Squatter, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.look("squatters", depth)
	return s.squatters, s.fail["squatters"]
}

func (s *space) Proxied(context.Context) (int, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return s.proxied, s.fail["proxied"]
}

func (s *space) Bypassing(context.Context, ruleset.Config) ([]sockets.Connection, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	return make([]sockets.Connection, s.older), s.fail["pair"]
}

func (s *space) Destroy(_ context.Context, connections []sockets.Connection) (int, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if err := cmp.Or(s.fail["destroy"], s.w.step()); err != nil {
		return 0, err
	}
	s.w.note("reset %d", len(connections))
	s.older = 0
	return len(connections), nil
}

func (s *space) Close() error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.open--
	return nil
}
