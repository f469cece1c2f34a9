// Package status is the report of every pod on the node: what was asked for, what
// the kernel and the proxies say, and what follows from it. The types are the
// schema of "fairlead status -o json"; what is not known says so and is never
// shown as a zero.
//
// # Failures it survives
//
//   - An answer of a newer agent: fields that are not known here are ignored.
//   - An answer that is cut off: the reader knows, since the agent ends its answer
//     with a mark, and exits with "could not ask", never with "all as intended".
//   - Texts and lists without end, which one pod's author, a proxy or a manifest can
//     cause: they are cut, and say so, and what is still too long to be sent is sent
//     as its least (Clip, Brief). No pod hides the others.
//   - Names that would break the table (control characters): they are quoted.
package status

import "time"

// A State is the one state a pod is in.
type State string

// The states.
const (
	Captured    State = "Captured"    // its traffic goes through the proxy
	Pending     State = "Pending"     // being worked on
	Bypassing   State = "Bypassing"   // should be captured, and traffic flows in the clear
	Blocked     State = "Blocked"     // captured, but no proxy listens: nothing flows
	Unsupported State = "Unsupported" // cannot be captured here
	NotCaptured State = "NotCaptured" // should not be captured, and is not
)

// A Node is the first line of a report.
type Node struct {
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	Source   string    `json:"source"` // where pods are known from
	Synced   bool      `json:"synced"`
	Proxies  []Proxy   `json:"proxies"`
	Problems []string  `json:"problems,omitempty"`
}

// A Proxy is one connected node proxy.
type Proxy struct {
	Session   uint64    `json:"session"`
	PID       int32     `json:"pid"`
	State     string    `json:"state"`
	Since     time.Time `json:"since"`
	Workloads int       `json:"workloads"` // acked
	// EndedBadly is how many of its process's connections did lately, and Why the last.
	EndedBadly int    `json:"endedBadly,omitempty"`
	Why        string `json:"why,omitempty"`
}

// A Pod is what is known of one pod.
type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`

	Intent         Intent         `json:"intent"`
	Netns          Netns          `json:"netns"`
	Rules          Rules          `json:"rules"`
	Listeners      Listeners      `json:"listeners"`
	Proxies        []Ack          `json:"proxies"`
	OldConnections OldConnections `json:"oldConnections"`
	Annotation     string         `json:"annotation"` // what the API shows: its value, none, or Unknown

	State   State     `json:"state"`
	Reason  Reason    `json:"reason"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since"`
	Tried   time.Time `json:"tried,omitzero"` // when the runtime last tried to start it, if it has not started
	Remedy  string    `json:"remedy,omitempty"`
}

// Unknown stands where nothing is known yet.
const Unknown = "unknown"

// An Intent is what the labels ask for.
type Intent struct {
	Capture           bool     `json:"capture"`
	Reason            string   `json:"reason"`
	Message           string   `json:"message,omitempty"`
	DNSCapture        bool     `json:"dnsCapture"`
	IngressMode       bool     `json:"ingressMode"`
	VirtualInterfaces []string `json:"virtualInterfaces,omitempty"`
	Warnings          []string `json:"warnings,omitempty"`
}

// A Netns is a pod's network namespace and where we have it from.
type Netns struct {
	Known       bool   `json:"known"`
	Source      string `json:"source,omitempty"`
	Path        string `json:"path,omitempty"`
	ID          string `json:"id,omitempty"`
	ContainerID string `json:"containerID,omitempty"`
}

// Rules is the redirection found in the namespace.
type Rules struct {
	State       string    `json:"state"` // Unknown, none, or a form: marks, syn, full
	DNS         bool      `json:"dns"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	Checked     time.Time `json:"checked,omitzero"`
	Repaired    int       `json:"repaired"` // how often they differed and were put right
}

// Listeners is which of the proxy's ports are listened on in the namespace.
type Listeners struct {
	Known    bool `json:"known"`
	Outbound bool `json:"outbound"` // 15001
	Inbound  bool `json:"inbound"`  // 15006
	HBONE    bool `json:"hbone"`    // 15008
	DNS      bool `json:"dns"`      // 15053, TCP and UDP
}

// Ready reports whether redirected TCP finds a listener.
func (l Listeners) Ready() bool { return l.Outbound && l.Inbound && l.HBONE }

// An Ack is one proxy's answer about the pod.
type Ack struct {
	Session uint64    `json:"session"`
	PID     int32     `json:"pid"`
	State   string    `json:"state"`
	Text    string    `json:"text,omitempty"`
	Since   time.Time `json:"since,omitzero"`
}

// OldConnections is how many connections are older than the capture.
type OldConnections struct {
	Known bool `json:"known"`
	Count int  `json:"count"`
}
