package enroll

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/fairlead-mesh/fairlead/cni/agentapi"
	"github.com/fairlead-mesh/fairlead/iptables/ruleset"
	"github.com/fairlead-mesh/fairlead/nodeagent/intent"
	"github.com/fairlead-mesh/fairlead/nodeagent/netns"
)

// A Record is what is written down of a pod for the next agent: which sandbox it
// has, what was decided last, and what was set out to be done in its namespace.
// What is really there the next agent sees for itself.
type Record struct {
	Version    int                 `json:"version"`
	Attachment agentapi.Attachment `json:"attachment"`
	Netns      netns.ID            `json:"netns"`
	// Process is not 0 if the attachment's netns is a process's, of which nobody has
	// told us: see sandbox.Place.
	Process int `json:"process,omitempty"`

	ServiceAccount string          `json:"serviceAccount"`
	Decision       intent.Decision `json:"decision"`

	// Touched: something of ours may be in the namespace.
	Touched bool `json:"touched"`
	// Adding: nobody has been told yet whether the ADD succeeded.
	Adding  bool           `json:"adding"`
	Applied ruleset.Config `json:"applied"`
	// Stood: redirects have been in place. Older, Gap: there may be connections that
	// are older than they are, or were opened while they were away. Raced: or because
	// the pod was quicker than the agent.
	Stood bool `json:"stood"`
	Older bool `json:"older"`
	Gap   bool `json:"gap"`
	Raced bool `json:"raced,omitempty"`
	// Stale: conntrack entries may defeat the redirects.
	Stale bool `json:"stale,omitempty"`
	// Kept are the older connections that are kept, by their sockets' numbers.
	Kept []uint64 `json:"kept,omitempty"`
}

const recordVersion = 1

// Records keeps a Record for each pod.
type Records interface {
	// Load returns all that can be read, and what cannot, with which it is done.
	Load() ([]Record, error)
	Save(Record) error
	// Has says whether a pod is on record, as far as a glance can tell.
	Has(uid string) bool
	// Delete forgets a pod; one that is not known is forgotten already.
	Delete(uid string) error
}

// A RecordDir keeps each Record in a file of a directory, which is on a tmpfs: a
// boot ends all sandboxes, and their records with them.
type RecordDir string

// Save writes the file anew and renames it over the old one: a reader, or an agent
// that is killed, finds one or the other.
func (d RecordDir) Save(r Record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("cannot write a pod's record: %w", err)
	}
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("cannot write a pod's record: %w", err)
	}
	return renameio.WriteFile(d.file(r.Attachment.UID), text, 0o600, renameio.WithTempDir(string(d)), renameio.WithStaticPermissions(0o600))
}

// Has looks for the file, which somebody may have removed, or the whole directory.
func (d RecordDir) Has(uid string) bool {
	var stat unix.Stat_t
	return unix.Lstat(d.file(uid), &stat) == nil
}

// Delete removes the file.
func (d RecordDir) Delete(uid string) error {
	if err := os.Remove(d.file(uid)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot delete a pod's record: %w", err)
	}
	return nil
}

// Load reads every file. One that is not a whole Record, and what an agent left
// that was killed while it wrote, is removed: nothing can be made of it.
func (d RecordDir) Load() ([]Record, error) {
	entries, err := os.ReadDir(string(d))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the pods' records: %w", err)
	}
	var records []Record
	var errs []error
	for _, entry := range entries {
		path := filepath.Join(string(d), entry.Name())
		record, err := readRecord(path)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s is not a pod's record, and is removed: %w", path, err), os.Remove(path))
			continue
		}
		records = append(records, record)
	}
	return records, errors.Join(errs...)
}

func readRecord(path string) (Record, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Record{}, err
	}
	var r Record
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&r); err != nil {
		return Record{}, err
	}
	if r.Version != recordVersion {
		return Record{}, fmt.Errorf("it is of version %d, this agent reads version %d", r.Version, recordVersion)
	}
	if uid := strings.TrimSuffix(filepath.Base(path), recordSuffix); uid == "" || uid != r.Attachment.UID {
		return Record{}, fmt.Errorf("it is about pod %q", r.Attachment.UID)
	}
	return r, nil
}

const recordSuffix = ".json"

// file is filepath.Join without its garbage: each turn asks whether the record is there.
func (d RecordDir) file(uid string) string { return string(d) + "/" + uid + recordSuffix }

// record is what the next agent should know of the pod.
func (p *pod) record() Record {
	return Record{
		Version: recordVersion, Attachment: *p.attachment, Netns: p.place.ID, Process: p.place.Process,
		ServiceAccount: p.object.ServiceAccount, Decision: p.decision,
		Touched: p.touched, Adding: p.adding != nil || p.orphan, Applied: p.applied,
		Stood: p.stood, Older: p.older, Gap: p.gap, Raced: p.raced, Stale: p.stale, Kept: p.kept,
	}
}

// unrecord forgets a pod that is over, or of which no record is better than the one there.
func (r *Reconciler) unrecord(uid string) {
	if err := r.config.Records.Delete(uid); err != nil {
		r.config.Logger.Warn("a record that is over cannot be deleted", "pod", uid, "error", err)
	}
}

// remember writes the pod's record, if it is different or was removed; before
// something is done in its namespace, and at the end of each turn.
func (p *pod) remember() {
	if p.attachment == nil {
		if p.written != nil {
			p.written, p.begun = nil, false
			if !p.outlived() {
				p.r.unrecord(p.uid)
			}
		}
		return
	}
	// An ADD under way is put on record only for what it leaves in the namespace.
	if !p.found || (p.adding != nil && !p.touched) {
		return
	}
	p.draft = p.record()
	if reflect.DeepEqual(&p.draft, p.written) && p.r.config.Records.Has(p.uid) {
		return
	}
	record := p.draft
	if err := p.r.config.Records.Save(record); err != nil {
		if !p.unrecorded {
			p.r.config.Logger.Warn("a pod is not on record: the next agent has to find it", "pod", p.name(), "error", err)
		}
		p.unrecorded = true
		if p.begun && !record.Adding {
			// The next agent would leave the pod to the runtime, which has had its answer.
			p.written, p.begun = nil, false
			p.r.unrecord(p.uid)
		}
		return
	}
	p.written, p.begun, p.unrecorded = &record, record.Adding, false
}
