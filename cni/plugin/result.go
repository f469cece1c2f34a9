package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types/create"
)

// previous is the result of the plugins before us in the chain.
type previous struct {
	print []byte // in the configuration's version
	ips   []netip.Addr
}

// result is what we read of a result of version 0.3.1 or later.
type result struct {
	CNIVersion string `json:"cniVersion"`
	Interfaces []*struct {
		Sandbox string `json:"sandbox"`
	} `json:"interfaces"`
	IPs []*struct {
		Address   netip.Prefix `json:"address"`
		Interface *int         `json:"interface"`
	} `json:"ips"`
}

// readPrevious takes prevResult as it is: printing what was parsed would lose
// every key that the library does not know. Only a result of another version
// than the configuration's is converted.
func readPrevious(c *config) (previous, error) {
	if c.PrevResult == nil {
		return previous{}, errors.New("there is no prevResult: fairlead-cni must stand after the plugin that makes the interface")
	}
	out := []byte(c.PrevResult)
	var of struct {
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(out, &of); err != nil {
		return previous{}, fmt.Errorf("cannot read prevResult: %v", err)
	}
	if of.CNIVersion != "" && of.CNIVersion != c.CNIVersion {
		var err error
		if out, err = convert(out, c.CNIVersion); err != nil {
			return previous{}, fmt.Errorf("cannot convert prevResult from version %s to %s: %v", of.CNIVersion, c.CNIVersion, err)
		}
	}
	var r result
	if err := json.Unmarshal(out, &r); err != nil {
		return previous{}, fmt.Errorf("cannot read prevResult: %v", err)
	}
	return previous{print: out, ips: r.podIPs()}, nil
}

// convert turns the library's panics at a null in a list into errors.
func convert(data []byte, version string) (out []byte, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("it is malformed: %v", panicked)
		}
	}()
	r, err := create.CreateFromBytes(data)
	if err != nil {
		return nil, err
	}
	converted, err := r.GetAsVersion(version)
	if err != nil {
		return nil, err
	}
	return json.Marshal(converted)
}

// podIPs are the addresses inside the sandbox. Some plugins also list the
// interface at the host's end, which has no sandbox.
func (r *result) podIPs() []netip.Addr {
	var ips []netip.Addr
	for _, ip := range r.IPs {
		if ip == nil || !ip.Address.IsValid() || r.isHostEnd(ip.Interface) {
			continue
		}
		ips = append(ips, ip.Address.Addr().Unmap())
	}
	return ips
}

func (r *result) isHostEnd(index *int) bool {
	if index == nil || *index < 0 || *index >= len(r.Interfaces) {
		return false
	}
	i := r.Interfaces[*index]
	return i != nil && i.Sandbox == ""
}
