package agentapi

import (
	"encoding/json"
	"fmt"
	"net/netip"
)

// Version is the version of the messages in this package.
const Version = 1

// MaxMessage is the most bytes one message takes, its newline included.
const MaxMessage = 64 << 10

// Codes of an Error. Those below 100 are the CNI specification's own.
const (
	CodeBadRequest   uint = 6   // what was sent could not be decoded
	CodeTryAgain     uint = 11  // overtaken by another request
	CodeNoAgent      uint = 100 // the agent is not running or does not answer
	CodeNoProxy      uint = 101 // no node proxy is connected
	CodeProxyRefused uint = 102 // the node proxy refused the pod
	CodeKernel       uint = 103 // the kernel refused the redirection, or somebody undoes it
	CodePodUnknown   uint = 104 // the pod is not known on this node
	CodeNamespace    uint = 105 // the network namespace is not known, or not one we may touch
	CodeInternal     uint = 999 // a defect in the agent or the plugin
)

// Request carries exactly one of its operations.
type Request struct {
	Version   int               `json:"version"`
	Add       *Attachment       `json:"add,omitempty"`
	Del       *Attachment       `json:"del,omitempty"`
	Check     *Attachment       `json:"check,omitempty"`
	GC        *GCRequest        `json:"gc,omitempty"`
	Status    *StatusRequest    `json:"status,omitempty"`
	Drain     *DrainRequest     `json:"drain,omitempty"`
	Uninstall *UninstallRequest `json:"uninstall,omitempty"`
}

// Attachment is one sandbox of a pod, as the container runtime describes it.
type Attachment struct {
	Namespace   string       `json:"namespace"`
	Name        string       `json:"name"`
	UID         string       `json:"uid"`
	ContainerID string       `json:"containerID"`
	Netns       string       `json:"netns,omitempty"` // a path; may be empty in Del
	Interface   string       `json:"interface"`
	IPs         []netip.Addr `json:"ips,omitempty"`
}

// GCRequest says which sandboxes the runtime has, by their containers' ids: all others
// that are attached to its network are over.
type GCRequest struct {
	Valid []string `json:"valid"`
}

// StatusRequest asks for the state of every pod of the node.
type StatusRequest struct{}

// DrainRequest has every pod of the node released, and none captured until it is undone.
type DrainRequest struct {
	Undo bool `json:"undo,omitempty"`
}

// UninstallRequest has taken from the node what was put there beside the pods.
type UninstallRequest struct{}

// Response is one answer, or one line of an answer that has several.
type Response struct {
	Version int             `json:"version"`
	Error   *Error          `json:"error,omitempty"`
	Item    json.RawMessage `json:"item,omitempty"`
	End     bool            `json:"end,omitempty"`
}

// Error is why a request failed, fit to be shown by kubectl describe.
type Error struct {
	Code    uint   `json:"code"`
	Message string `json:"message"`
	Details string `json:"details,omitempty"` // the chain of causes, and the remedy
}

func (e *Error) Error() string {
	if e.Details == "" {
		return e.Message
	}
	return e.Message + "; " + e.Details
}

func badRequest(format string, args ...any) *Error {
	return &Error{Code: CodeBadRequest, Message: fmt.Sprintf(format, args...)}
}
