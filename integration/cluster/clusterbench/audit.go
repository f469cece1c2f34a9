package clusterbench

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// A request is one to the API server, as its audit log has it.
type request struct {
	AuditID   string
	Verb      string
	User      struct{ Username string }
	ObjectRef struct{ Resource, Subresource, Namespace, Name string }

	RequestReceivedTimestamp time.Time
}

// readAudit returns a user's requests that came in from one time on. One that is answered
// in parts, a watch, has several lines and is one request.
func readAudit(log io.Reader, user string, from time.Time) ([]request, error) {
	var all []request
	seen := map[string]bool{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("cannot read the API server's audit log: %w", err)
		}
		if r.User.Username != user || r.RequestReceivedTimestamp.Before(from) || seen[r.AuditID] {
			continue
		}
		seen[r.AuditID] = true
		all = append(all, r)
	}
	return all, lines.Err()
}
