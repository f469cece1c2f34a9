package nodeproxy

import (
	"errors"
	"time"
)

// Faults make a proxy misbehave, so that an agent can be tested against it.
type Faults struct {
	// UID limits the first three to requests about this workload.
	UID string
	// Nack is the text with which each Add is refused, at each retry too.
	Nack string
	// NoAck leaves requests without an answer, though they are carried out.
	NoAck bool
	// SlowAck is the time that each answer takes.
	SlowAck time.Duration
	// NoHello leaves out the hello.
	NoHello bool
	// DieAfterAcks ends the proxy, all at once, when it has sent that many acks.
	DieAfterAcks int
}

// SetFaults changes the faults of a proxy that may be running.
func (p *Proxy) SetFaults(f Faults) { p.faults.Store(&f) }

// about returns the faults that concern requests about a workload.
func (f Faults) about(uid string) Faults {
	if f.UID != "" && f.UID != uid {
		f.Nack, f.NoAck, f.SlowAck = "", false, 0
	}
	return f
}

// refuse says why a workload must not be started.
func (p *Proxy) refuse(uid string) error {
	if text := p.faults.Load().about(uid).Nack; text != "" {
		return errors.New(text)
	}
	return nil
}
