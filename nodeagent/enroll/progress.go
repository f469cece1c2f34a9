package enroll

import (
	"net/netip"
	"time"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
	"github.com/fairlead-mesh/fairlead/nodeagent/sandbox"
	"github.com/fairlead-mesh/fairlead/nodeagent/sockets"
	"github.com/fairlead-mesh/fairlead/nodeagent/status"
)

// progress is what a pod's worker knows of an attachment and has done for it. It alone
// touches it.
type progress struct {
	attachment *agentapi.Attachment // nil: the runtime has said that it is over
	adding     *call                // the ADD that waits for the outcome
	waiting    waiting
	resumed    bool // adopted, and had no turn yet
	orphan     bool // adopted in the middle of its ADD

	asked
	whereabouts
	redirection
	bypass
	service

	began       time.Time // when the capture was begun
	releasing   time.Time // since when redirects are flushed; zero: not being released
	withdrawing time.Time // since when no proxy should have it any more

	failures int           // by the kernel, in a row
	logged   status.Reason // why the pod is not as it should be, as it was logged last
}

// asked is what the source asks for.
type asked struct {
	object   intent.Pod
	decision intent.Decision
	known    bool   // object and decision are the pod's, now or when it was last seen
	unknown  string // why they are not
	gone     bool   // the object has been seen and is not there any more
}

// whereabouts are those of the pod's namespace.
type whereabouts struct {
	place    sandbox.Place
	found    bool      // place is known
	recorded *netns.ID // which namespace it is by the record; nil: not adopted
	lost     bool      // it was known by a process that has ended
	unfound  string    // why it is not found again
	kernel   Kernel    // nil: the namespace is not open
}

// redirection is what stands in the namespace.
type redirection struct {
	sought    bool           // it was found by a search: what stands there is not known
	touched   bool           // something of ours may be there
	applied   ruleset.Config // what was put in place last; Form 0: nothing of ours
	exempted  []netip.Addr   // whose health probes are let in
	verified  bool           // and was seen to be there after that
	checked   time.Time      // when
	inspectAt time.Time      // when to look at everything again
	stale     bool           // conntrack entries may defeat the redirects
	foreign   []string       // what may take packets before they do
	named     bool           // that they do was logged
	namedAt   time.Time      // when
	left      string         // what may be istio-cni's, and stayed when the pod was released
	repaired  int
	repairs   []time.Time // the latest ones
	unsaid    string      // what was put right last, and may have been the pod's end
	unsaidAt  time.Time   // when
}

// bypass is what goes past the proxy though the redirects stand: connections that are
// older than they.
type bypass struct {
	stood     bool     // redirects have been in place
	older     bool     // there may be connections that are older than the redirects
	gap       bool     // and they were opened while redirects that had stood were away
	raced     bool     // or because the pod was quicker than the agent
	kept      []uint64 // the older connections that are kept, by their sockets' numbers, in order
	paired    bool     // bypassing is known
	bypassing int      // how many connections do
}

// service is what the proxies do for the pod.
type service struct {
	announced bool
	behind    time.Time // since when the proxy owes another answer, before the pod has its turn
	refusals  int       // in a row
	refusal   string    // the last one's words
	retryAt   time.Time // when to announce again after a refusal

	listeners status.Listeners
	squatters []sockets.Squatter // who hold ports of the proxy's
	noDNS     bool               // the proxy does not listen for DNS
	noDNSFrom time.Time          // since when
}
