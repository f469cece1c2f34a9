package agentapi

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
)

const (
	maxNamespace = 63 // a DNS label
	maxName      = 253
	maxID        = 128
	maxPath      = 4095
	maxInterface = 15
	maxIPs       = 64
)

// Validate tells whether r is a request of this version that an agent can act
// on.
func (r Request) Validate() error {
	if r.Version != Version {
		return versionError(r.Version)
	}
	ops := 0
	for _, set := range []bool{r.Add != nil, r.Del != nil, r.Check != nil, r.GC != nil, r.Status != nil, r.Drain != nil, r.Uninstall != nil} {
		if set {
			ops++
		}
	}
	if ops != 1 {
		return fmt.Errorf("a request must carry exactly one of add, del, check, gc, status, drain, uninstall; this one carries %d", ops)
	}
	switch {
	case r.Add != nil:
		return prefix("add", r.Add.validate())
	case r.Check != nil:
		return prefix("check", r.Check.validate())
	case r.Del != nil:
		return prefix("del", r.Del.validateDel())
	case r.GC != nil:
		return prefix("gc", r.GC.validate())
	}
	return nil
}

func versionError(got int) error {
	return fmt.Errorf("this agent speaks version %d, the request has version %d", Version, got)
}

func prefix(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %v", op, err)
}

func (a *Attachment) validate() error {
	for _, f := range []struct{ name, value string }{
		{"namespace", a.Namespace}, {"name", a.Name}, {"uid", a.UID},
		{"netns", a.Netns}, {"interface", a.Interface},
	} {
		if f.value == "" {
			return fmt.Errorf("%s is missing", f.name)
		}
	}
	return a.validateDel()
}

// validateDel demands the container id alone: the runtime repeats DEL later
// with less than it knew at ADD, and an attachment is found by its container.
func (a *Attachment) validateDel() error {
	if a.ContainerID == "" {
		return errors.New("containerID is missing")
	}
	if len(a.IPs) > maxIPs {
		return fmt.Errorf("ips has %d addresses, at most %d are allowed", len(a.IPs), maxIPs)
	}
	for _, ip := range a.IPs {
		if !ip.IsValid() || ip.Zone() != "" {
			return fmt.Errorf("ips: %q is not an address without a zone", ip)
		}
	}
	return errors.Join(
		text("namespace", a.Namespace, maxNamespace, isDNS),
		text("name", a.Name, maxName, isDNS),
		text("uid", a.UID, maxID, isID),
		text("containerID", a.ContainerID, maxID, isID),
		path("netns", a.Netns),
		text("interface", a.Interface, maxInterface, isInterface),
	)
}

func (g *GCRequest) validate() error {
	for _, id := range g.Valid {
		if err := text("valid", id, maxID, isID); err != nil || id == "" {
			return errors.Join(err, fmt.Errorf("valid: %q is not a container's id", id))
		}
	}
	return nil
}

func text(field, value string, most int, ok func(string) bool) error {
	switch {
	case len(value) > most:
		return fmt.Errorf("%s has %d bytes, at most %d are allowed", field, len(value), most)
	case value != "" && !ok(value):
		return fmt.Errorf("%s %q has characters that are not allowed there", field, value)
	}
	return nil
}

func path(field, value string) error {
	if value != "" && !filepath.IsAbs(value) {
		return fmt.Errorf("%s %q is not an absolute path", field, value)
	}
	return text(field, value, maxPath, isPrintable)
}

func isDNS(s string) bool {
	return isAlnum(s[0]) && each(s, func(c byte) bool {
		return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.'
	})
}

// isID admits what is safe as a file's name.
func isID(s string) bool {
	return isAlnum(s[0]) && each(s, func(c byte) bool {
		return isAlnum(c) || c == '-' || c == '_' || c == '.'
	})
}

func isInterface(s string) bool {
	return s != "." && s != ".." && isPrintable(s) && !strings.ContainsAny(s, "/: ")
}

func isPrintable(s string) bool {
	return each(s, func(c byte) bool { return c >= ' ' && c != 0x7f })
}

func isAlnum(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}

func each(s string, ok func(byte) bool) bool {
	for i := range len(s) {
		if !ok(s[i]) {
			return false
		}
	}
	return true
}
