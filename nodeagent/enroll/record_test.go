package enroll

import (
	"testing"
	"time"
)

// What an earlier agent has put on record, and is so still, is not written again.
func TestRecordsStay(t *testing.T) {
	captured(t, func(w *world, _ *space) {
		w.mu.Lock()
		before := w.saves
		w.mu.Unlock()
		w.restart()
		w.pass(10 * time.Second)
		w.wantDone(announced)
		w.mu.Lock()
		defer w.mu.Unlock()
		if r := w.records["uid-web"]; w.saves != before || r.Version != recordVersion {
			t.Errorf("%d records were written at the restart, which leaves one of version %d", w.saves-before, r.Version)
		}
	})
}
