package status

// A Reason says in one word why a pod is in its state. It is the same in the log,
// the metrics and the error of a CNI ADD. REASONS.md says what each means.
type Reason string

// The reasons. Those of pods that should not be captured are package intent's.
const (
	OK                   Reason = "OK"
	ReasonOldConnections Reason = "OldConnections"
	ForeignRules         Reason = "ForeignRules"
	ProxyWithoutDNS      Reason = "ProxyWithoutDNS"
	Capturing            Reason = "Capturing"
	Draining             Reason = "Draining"
	Withdrawing          Reason = "Withdrawing"
	PodUnknown           Reason = "PodUnknown"
	ManifestBroken       Reason = "ManifestBroken"
	APIUnavailable       Reason = "APIUnavailable"
	SandboxUnknown       Reason = "SandboxUnknown"
	ObjectGone           Reason = "ObjectGone"
	NetnsUnknown         Reason = "NetworkNamespaceUnknown"
	NetnsRefused         Reason = "NetworkNamespaceRefused"
	NoProxy              Reason = "NoProxy"
	NoAnswer             Reason = "ProxyDoesNotAnswer"
	ProxyRefused         Reason = "ProxyRefused"
	NewProxyRefused      Reason = "NewProxyRefused"
	NoListeners          Reason = "ProxyDoesNotListen"
	PortTaken            Reason = "ProxyPortTaken"
	RulesFought          Reason = "RulesFought"
	KernelRefused        Reason = "KernelRefused"
	Deleted              Reason = "Deleted"
	Cancelled            Reason = "Cancelled"
	Stopping             Reason = "Stopping"
	OwnNetworkStack      Reason = "OwnNetworkStack"
	NodeDrained          Reason = "NodeDrained"
)

var remedies = map[Reason]string{
	ReasonOldConnections: "restart the pod, or its old connections, to bring those under the proxy too",
	ForeignRules:         "remove what is named from the pod's network namespace, or take NET_ADMIN from what put it there",
	ProxyWithoutDNS:      "switch DNS capture on in the proxy, or off for the pod (annotation ambient.istio.io/dns-capture)",
	PodUnknown:           "look whether the pod's object (or manifest) exists and names this node",
	ManifestBroken:       "mend or remove the file that is named; the pod needs nothing else",
	APIUnavailable:       "mend what is named between the agent and the Kubernetes API; it is asked again by itself",
	SandboxUnknown:       "restart the pod, so that the runtime makes it a new sandbox and tells the agent",
	ObjectGone:           "delete the pod at the runtime, or put its object (or manifest) back",
	NetnsUnknown:         "if the pod runs, restart it: it started before the agent, or while fairlead-cni was not in the runtime's configuration; if it has not started yet, there is nothing to do",
	NetnsRefused:         "look at what the runtime gave as CNI_NETNS: a pod needs a network namespace of its own, and the agent the directory that it is in (chart value cniNetnsDir)",
	NoProxy:              "start the node proxy (ztunnel) on this node, and see that it dials the agent's proxy socket",
	NoAnswer:             "look at the node proxy's log; restart it if it hangs",
	ProxyRefused:         "mend what the proxy's own words name (a port that is taken, an address that is missing); it is tried again by itself",
	NewProxyRefused:      "mend what the proxy's own words name (a port that is taken, an address that is missing); it tries again by itself, and its rollout waits for it",
	NoListeners:          "look at the node proxy's log: it has acknowledged the pod, yet does not listen in it",
	PortTaken:            "end the process that is named, or have it use another port; the proxy is asked again by itself",
	RulesFought:          "end what changes the rules in the pod (what is named may be short-lived: look for what starts it), or take NET_ADMIN from it",
	OwnNetworkStack:      "run the pod under another runtime class, or take it out of the mesh (label istio.io/dataplane-mode: none)",
	NodeDrained:          "go on with fairlead uninstall on this node, or end it with fairlead drain --undo; or take the pod out of the mesh (label istio.io/dataplane-mode: none)",
	KernelRefused:        "look at the error; a missing kernel feature is named there; if the operation is not permitted, the agent lacks a capability; it is tried again by itself",
}

// Remedy says what a person can do about it; empty if there is nothing to do.
func (r Reason) Remedy() string { return remedies[r] }
